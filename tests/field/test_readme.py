"""The table of cases in README.md says what the tests say."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
ROW = re.compile(r"^\| O(\d\d) \|[^|]+\|([^|]+)\|[^|]+\|$", re.MULTILINE)
LATER = {5, 31, 34, 35, 36, 56, 57, 77, 78, 79}
"""Cases of features that are not there yet."""


def table() -> dict[int, list[tuple[str, str]]]:
    """File and name of the tests, by case."""
    text = (TESTS / "field" / "README.md").read_text("utf-8")
    rows = {int(number): re.findall(r"`([\w/.]+)::(\w+)`", tests) for number, tests in ROW.findall(text)}
    assert len(rows) == len(ROW.findall(text)), "one row per case"
    return rows


def test_every_case_has_its_row_and_every_one_in_scope_a_test() -> None:
    rows = table()
    assert rows.keys() == set(range(1, 81))
    assert {number for number, tests in rows.items() if not tests} == LATER


def test_what_the_table_names_is_there_and_carries_its_number() -> None:
    for number, tests in table().items():
        for file, name in tests:
            source = ast.parse((TESTS / file).read_text("utf-8"))
            defined = {one.name for one in ast.walk(source) if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}
            assert name in defined, f"{file} has no {name}"
            assert name.startswith(f"test_o{number:02d}_")

"""YAML with places: what is read, what is refused, and where."""

from __future__ import annotations

import pytest

from gateway.config.document import parse


def places(text: str) -> list[str]:
    return [str(problem) for problem in parse(text, "f").problems]


def test_scalars_keep_their_types() -> None:
    document = parse("{a: 1, b: 1.5, c: true, d: 'true', e: null, f: 2020-01-01, g: yes, h: 010, i: 9e-10}", "f")
    assert not document.problems
    assert document.data == {
        "a": 1, "b": 1.5, "c": True, "d": "true", "e": None, "f": "2020-01-01", "g": "yes", "h": 10, "i": 9e-10,
    }  # fmt: skip


def test_sequences_are_tuples_and_every_node_has_a_place() -> None:
    document = parse("a:\n  - x: 1\n    y: 2\n", "f")
    assert document.data == {"a": ({"x": 1, "y": 2},)}
    assert document.keys[("a", 0, "y")] == (3, 5)
    assert document.values[("a", 0, "y")] == (3, 8)


def test_all_duplicate_keys_are_found_and_the_first_counts() -> None:
    document = parse("a: 1\na: 2\nb: {c: 1, c: 2}\n", "f")
    assert [str(p) for p in document.problems] == [
        "f:2:1: a: duplicate key (first given in line 1)",
        "f:3:11: b.c: duplicate key (first given in line 3)",
    ]
    assert document.data == {"a": 1, "b": {"c": 1}}


def test_merge_keys_fill_what_is_not_given() -> None:
    document = parse("a:\n  - &d {x: 1, y: 2}\n  - {<<: *d, y: 3}\n", "f")
    assert document.data == {"a": ({"x": 1, "y": 2}, {"x": 1, "y": 3})}
    assert not document.problems


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("a: [1", "f:1:6: not valid YAML: "),
        ("a:\n\t- b", "f:2:1: not valid YAML: "),
        ("a: 1\n---\nb: 2", "f:2:1: not valid YAML: "),
        ("a: *nobody", "f:1:4: not valid YAML: "),
        ("x: 1\na: \x01", "f:2:4: a control character"),
        ("a: !run rm", "f:1:4: a: tags are not used here"),
        ("? [1, 2]\n: 3", "f:1:3: a key must be text"),
        ("a: &a [*a]", "f:1:1: a: nested too deeply, or aliases"),
        ("a: {b: ${C}}", "f:1:9: not valid YAML: "),
    ],
)
def test_what_cannot_be_read_is_one_problem_at_its_place(text: str, start: str) -> None:
    (problem,) = places(text)
    assert problem.startswith(start)


def test_interpolation_in_flow_style_is_explained() -> None:
    (problem,) = places("a: {b: ${C}}")
    assert 'quotes are needed: "${NAME}"' in problem


def test_aliases_that_multiply_end() -> None:
    text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    text += "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9))
    document = parse(text, "f")
    assert any("multiply" in problem.message for problem in document.problems)
    assert len(document.values) <= 100_001


def test_deep_nesting_is_a_problem_and_no_crash() -> None:
    assert places("[" * 5_000 + "]" * 5_000)

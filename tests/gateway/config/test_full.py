"""The files in configs/: full.yaml is what the models say, and all of them are good."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gateway.config import Config, ConfigErrors, default_config, load, loads
from gateway.config.full import render
from gateway.config.schema import knobs

if TYPE_CHECKING:
    from collections.abc import Iterator

CONFIGS = Path(__file__).parents[3] / "configs"
ENVIRON = {
    "WARMROUTE_SECRET": "s", "WARMROUTE_ADMIN_TOKEN": "t", "GPU_1_KEY": "k", "POOL_A_KEY": "p",
    "TEAM_A_KEY": "a-key-of-team-a-", "TEAM_B_KEY": "a-key-of-team-b-", "ADMIN_TOKEN": "t",
}  # fmt: skip
KNOBS = {key for key, _ in knobs(Config)}
FULL = (CONFIGS / "full.yaml").read_text()


def test_full_yaml_is_what_the_models_say() -> None:
    assert render() == FULL, "run python -m gateway.config.full configs/full.yaml"


def test_full_yaml_names_every_knob_in_its_section() -> None:
    places = FULL.splitlines()
    at = 0
    for key, path in knobs(Config):  # in the order of the file
        found = next((i for i in range(at, len(places)) if re.match(rf"[ #-]*{key}:", places[i])), None)
        assert found is not None, path
        at = found


def test_full_yaml_shows_the_defaults() -> None:
    full, plain = load(CONFIGS / "full.yaml", {}), default_config()
    for name in Config.model_fields:
        if name not in {"models", "backends", "routes"}:
            assert getattr(full, name) == getattr(plain, name), name
    assert full.all_routes == plain.all_routes
    assert full.warnings == ()


def test_full_yaml_works_with_any_optional_knob_uncommented(tmp_path: Path) -> None:
    lines = FULL.splitlines()
    optional = [i for i, line in enumerate(lines) if (key := commented_key(line)) and line.strip() != f"# {key}:"]
    assert len(optional) >= 20
    for i in optional:
        assert mistakes([uncommented(line) if i == k else line for k, line in enumerate(lines)], tmp_path) == []


def test_full_yaml_works_with_any_commented_block_uncommented(tmp_path: Path) -> None:
    lines = FULL.splitlines()
    found = dict(blocks(lines))
    assert [lines[start].strip() for start in found] == [
        "# tls:", "# tls:", "# jwt:", "# tenants:", "# kv_events:", "# discovery:",
    ]  # fmt: skip
    for start, end in found.items():
        text = [uncommented(line) if start <= k < end else line for k, line in enumerate(lines)]
        if "jwt" in lines[start]:
            text.append("tenants: [{name: t}]")
        assert mistakes(text, tmp_path) == []
        inner = [k for k in range(start + 1, end) if commented_key(text[k])]
        assert inner, "a block has optional knobs too"
        for i in inner:
            assert mistakes([uncommented(line) if i == k else line for k, line in enumerate(text)], tmp_path) == []


def commented_key(line: str) -> str | None:
    match = re.fullmatch(r" *# ([a-z_0-9]+):(?: \S.*)?", line)
    return match[1] if match and match[1] in KNOBS and " memory: " not in line else None


def uncommented(line: str) -> str:
    return line.replace("# ", "", 1)


def blocks(lines: list[str]) -> Iterator[tuple[int, int]]:
    """(first line, line after the last) of what is commented out as a whole."""
    for start, line in enumerate(lines):
        key = commented_key(line)
        if key is not None and line.strip() == f"# {key}:":
            end = start + 1
            while end < len(lines) and lines[end].startswith(line[: line.index("#")] + "#  "):
                end += 1
            yield start, end


def mistakes(lines: list[str], base: Path) -> list[str]:
    try:
        loads("\n".join(lines), base=base, environ=ENVIRON)
    except ConfigErrors as error:
        # files of the examples do not exist, and some knobs do not go with the rest of the example entry
        expected = "no such file|has no effect|is kept for|are both given|its folder does not exist|: needs "
        return [str(problem) for problem in error.problems if not re.search(expected, str(problem))]
    return []


@pytest.mark.parametrize(("name", "backends"), [("minimal.yaml", 2), ("tenants.yaml", 0)])
def test_the_other_examples(name: str, backends: int) -> None:
    config = load(CONFIGS / name, ENVIRON)
    assert len(config.backends) == backends
    assert config.warnings == ()

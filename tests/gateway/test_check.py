"""`warmroute check` and `warmroute schema`: exit codes and what is printed."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

from click.testing import CliRunner

from gateway.check import check
from gateway.cli import cli

if TYPE_CHECKING:
    from pathlib import Path

GOOD = "backends: [{name: a, url: 'http://h:1'}]\n"
BAD = "listen: {port: x}\nbackends: [{name: a}]\nlimts: {}\n"


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def checked(path: Path, against: Path | None = None) -> tuple[int, list[str]]:
    out = io.StringIO()
    code = check(path, {}, out, against=against)
    return code, out.getvalue().splitlines()


def checked_as_data(path: Path, against: Path | None = None) -> tuple[int, dict[str, Any]]:
    out = io.StringIO()
    code = check(path, {}, out, against=against, as_json=True)
    data: dict[str, Any] = json.loads(out.getvalue())
    return code, data


def test_a_good_file_prints_a_summary_and_its_warnings(tmp_path: Path) -> None:
    path = written(tmp_path, "w.yaml", "listen: {keep_alive_s: 600}\n" + GOOD)
    code, (warning, summary) = checked(path)
    assert code == 0
    assert warning.startswith(f"warning: {path}:1:24: listen.keep_alive_s: ")
    assert summary.startswith(f"{path}: ok, 1 backend, config id ")


def test_sources_of_backends_are_in_the_summary(tmp_path: Path) -> None:
    path = written(tmp_path, "w.yaml", "discovery: [{name: d, kind: dns, host: h, port: 1}]")
    assert checked(path)[1][-1].startswith(f"{path}: ok, 0 backends and 1 source of more, config id ")


def test_a_bad_file_prints_all_problems_by_place(tmp_path: Path) -> None:
    path = written(tmp_path, "w.yaml", BAD)
    code, lines = checked(path)
    assert code == 2
    assert [line.removeprefix(f"{path}:").split(": ")[0] for line in lines[:3]] == ["1:16", "2:12", "3:1"]
    assert lines[3] == f"{path}: 3 problems"


def test_a_diff_tells_what_needs_a_restart(tmp_path: Path) -> None:
    old = written(tmp_path, "old.yaml", GOOD)
    new = written(tmp_path, "new.yaml", GOOD + "listen: {port: 9}\nlimits: {max_attempts: 1}\n")
    code, lines = checked(new, old)
    assert code == 0
    assert lines[:2] == ["listen.port: 8000 -> 9 (needs a restart)", "limits.max_attempts: 3 -> 1"]
    assert lines[2].startswith(f"{new}: ok, ")
    assert lines[3] == f"{new}: 2 changes from {old}, 1 of them only by a restart"
    assert checked(old, old)[1][-1] == f"{old}: 0 changes from {old}"


def test_a_diff_against_a_bad_file_is_no_success(tmp_path: Path) -> None:
    old, new = written(tmp_path, "old.yaml", BAD), written(tmp_path, "new.yaml", GOOD)
    code, lines = checked(new, old)
    assert code == 2
    assert lines[-1] == f"{old}: 3 problems"
    code, lines = checked(old, new)
    assert code == 2
    assert lines[-1] == f"{old}: 3 problems"


def test_as_data(tmp_path: Path) -> None:
    path = written(tmp_path, "w.yaml", "listen: {keep_alive_s: 600}\n" + GOOD)
    code, data = checked_as_data(path)
    assert code == 0
    assert data["ok"] is True
    assert data["problems"] == []
    assert [(warning["line"], warning["column"], warning["path"]) for warning in data["warnings"]] == [
        (1, 24, "listen.keep_alive_s")
    ]
    assert data["backends"] == ["a"]
    assert len(data["id"]) == 12
    assert "changes" not in data


def test_problems_as_data(tmp_path: Path) -> None:
    code, data = checked_as_data(written(tmp_path, "w.yaml", BAD))
    assert code == 2
    assert data["ok"] is False
    assert data["id"] is None
    assert [problem["path"] for problem in data["problems"]] == ["listen.port", "backends[0].url", "limts"]
    assert data["problems"][2]["hint"] == "did you mean limits?"


def test_a_diff_as_data(tmp_path: Path) -> None:
    old = written(tmp_path, "old.yaml", GOOD)
    new = written(tmp_path, "new.yaml", GOOD + "listen: {port: 9}\n")
    code, data = checked_as_data(new, old)
    assert code == 0
    assert data["needs_restart"] is True
    assert data["changes"] == [
        {"path": "listen.port", "before": "8000", "after": "9", "needs_restart": True, "note": ""}
    ]
    written(tmp_path, "old.yaml", BAD)
    code, data = checked_as_data(new, old)
    assert code == 2
    assert data["changes"] is None


def test_on_the_command_line(tmp_path: Path) -> None:
    old, new = written(tmp_path, "old.yaml", GOOD), written(tmp_path, "new.yaml", GOOD + "listen: {port: 9}\n")
    result = CliRunner().invoke(cli, ["check", str(new), "--diff", str(old), "--json"])
    assert result.exit_code == 0
    assert json.loads(result.stdout)["needs_restart"] is True
    assert CliRunner().invoke(cli, ["check", str(written(tmp_path, "bad.yaml", BAD))]).exit_code == 2
    assert "2 for a bad one" in CliRunner().invoke(cli, ["check", "--help"]).stdout.replace("\n", " ")


def test_schema_prints_the_schema_first_line_first() -> None:
    result = CliRunner().invoke(cli, ["schema"])
    assert result.exit_code == 0
    schema = json.loads(result.stdout)
    assert next(iter(schema)) == "$schema"
    assert schema["additionalProperties"] is False
    assert set(schema["properties"]) >= {"listen", "backends", "tenants", "discovery"}

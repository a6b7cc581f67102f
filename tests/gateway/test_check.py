"""`warmroute check`: exit codes and what is printed."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from gateway.check import check

if TYPE_CHECKING:
    from pathlib import Path


def test_a_good_file_prints_a_summary_and_its_warnings(tmp_path: Path) -> None:
    path = tmp_path / "w.yaml"
    path.write_text("listen: {keep_alive_s: 600}\nbackends: [{name: a, url: 'http://h:1'}]\n")
    out = io.StringIO()
    assert check(path, {}, out) == 0
    warning, summary = out.getvalue().splitlines()
    assert warning.startswith(f"warning: {path}:1:24: listen.keep_alive_s: ")
    assert summary.startswith(f"{path}: ok, 1 backend, config id ")


def test_a_bad_file_prints_all_problems_by_place(tmp_path: Path) -> None:
    path = tmp_path / "w.yaml"
    path.write_text("listen: {port: x}\nbackends: [{name: a}]\nlimts: {}\n")
    out = io.StringIO()
    assert check(path, {}, out) == 2
    lines = out.getvalue().splitlines()
    assert [line.removeprefix(f"{path}:").split(": ")[0] for line in lines[:3]] == ["1:16", "2:12", "3:1"]
    assert lines[3] == f"{path}: 3 problems"

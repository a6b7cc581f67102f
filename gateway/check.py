"""`warmroute check`: is this config file good, and what would it change? Prints every problem with its place.

Exit codes: 0 for a good config, whatever it would change; 2 when it, or the one it is compared with, is bad.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, TextIO

from gateway.config import ConfigErrors, load
from gateway.config.diff import changes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from gateway.config import Config, Problem
    from gateway.config.diff import Change

GOOD: Final = 0
BAD: Final = 2


@dataclass(frozen=True, slots=True)
class Report:
    """What was found. `config` is None for a bad file; `changes` is None where nothing was compared."""

    path: Path
    against: Path | None
    config: Config | None
    problems: tuple[Problem, ...]
    """Of both files."""
    changes: tuple[Change, ...] | None

    @property
    def exit_code(self) -> int:
        return BAD if self.problems else GOOD


def check(
    path: Path, environ: Mapping[str, str], out: TextIO, *, against: Path | None = None, as_json: bool = False
) -> int:
    """Writes the report and gives the exit code. `against`: the config that runs now; changes are from it."""
    report = examine(path, environ, against)
    if as_json:
        out.write(json.dumps(_as_data(report), indent=2) + "\n")
    else:
        out.writelines(f"{line}\n" for line in _lines(report))
    return report.exit_code


def examine(path: Path, environ: Mapping[str, str], against: Path | None) -> Report:
    config, problems = _load(path, environ)
    if against is None:
        return Report(path, against, config, problems, None)
    before, former_problems = _load(against, environ)
    changed = changes(before, config) if before is not None and config is not None else None
    return Report(path, against, config, problems + former_problems, changed)


def _load(path: Path, environ: Mapping[str, str]) -> tuple[Config | None, tuple[Problem, ...]]:
    try:
        return load(path, environ), ()
    except ConfigErrors as error:
        return None, error.problems


def _lines(report: Report) -> Iterator[str]:
    yield from map(str, report.problems)
    if report.problems:
        files = dict.fromkeys(problem.file for problem in report.problems)
        for name in files:
            yield f"{name}: {_count(sum(problem.file == name for problem in report.problems), 'problem')}"
        return
    config = report.config
    assert config is not None
    yield from (f"warning: {warning}" for warning in config.warnings)
    yield from map(str, report.changes or ())
    fleet = _count(len(config.backends), "backend")
    if config.discovery:
        fleet += f" and {_count(len(config.discovery), 'source')} of more"
    yield f"{report.path}: ok, {fleet}, config id {config.id}"
    if report.changes is not None:
        restarts = sum(change.needs_restart for change in report.changes)
        effect = f", {restarts} of them only by a restart" if restarts else ""
        yield f"{report.path}: {_count(len(report.changes), 'change')} from {report.against}{effect}"


def _as_data(report: Report) -> dict[str, Any]:
    config = report.config
    data: dict[str, Any] = {
        "file": str(report.path),
        "ok": not report.problems,
        "problems": [asdict(problem) for problem in report.problems],
        "warnings": [asdict(warning) for warning in config.warnings] if config is not None else [],
        "id": config.id if config is not None else None,
        "backends": [backend.name for backend in config.backends] if config is not None else [],
        "discovery": [source.name for source in config.discovery] if config is not None else [],
    }
    if report.against is not None:
        changed = report.changes
        data |= {
            "against": str(report.against),
            "changes": None if changed is None else [asdict(change) for change in changed],
            "needs_restart": None if changed is None else any(change.needs_restart for change in changed),
        }
    return data


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"

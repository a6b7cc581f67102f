"""`warmroute check`: is this config file good? Prints every problem with its place."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

from gateway.config import ConfigErrors, load

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def check(path: Path, environ: Mapping[str, str], out: TextIO) -> int:
    """Exit code: 0 for a good config (warnings and a summary are printed), 2 for a bad one (its problems, by place)."""
    try:
        config = load(path, environ)
    except ConfigErrors as error:
        for problem in error.problems:
            out.write(f"{problem}\n")
        count = len(error.problems)
        out.write(f"{path}: {count} {'problem' if count == 1 else 'problems'}\n")
        return 2
    for warning in config.warnings:
        out.write(f"warning: {warning}\n")
    backends = len(config.backends)
    out.write(f"{path}: ok, {backends} {'backend' if backends == 1 else 'backends'}, config id {config.id}\n")
    return 0

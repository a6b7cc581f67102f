"""What is wrong with a config, each with its place. Texts never hold values: a value may be a misplaced secret."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from vocabulary.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

Location: TypeAlias = tuple[str | int, ...]
"""Keys and list positions from the root: `("backends", 2, "url")`."""


def dotted(location: Location) -> str:
    """`("backends", 2, "url")` -> `backends[2].url`."""
    text = ""
    for part in location:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake, or one warning, at a place of the file (line and column count from 1)."""

    file: str
    line: int
    column: int
    path: str
    """The knob: `backends[2].url`; empty for the file as a whole."""
    message: str
    hint: str = ""

    def __str__(self) -> str:
        knob = f"{self.path}: " if self.path else ""
        hint = f" ({self.hint})" if self.hint else ""
        return f"{self.file}:{self.line}:{self.column}: {knob}{self.message}{hint}"


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem whose place in the text is not looked up yet."""

    location: Location
    message: str
    hint: str = ""
    on_key: bool = False
    """Points at the key instead of its value."""
    warning: bool = False


def by_place(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    return tuple(sorted(problems, key=lambda p: (p.line, p.column, p.path, p.message)))


class ConfigErrors(ConfigError):
    """All problems of one config, sorted by place."""

    def __init__(self, problems: Iterable[Problem], files: Iterable[Path] = ()) -> None:
        """`files`: those that the config names, as far as it could be read. Once they are there it may be good."""
        self.problems = by_place(problems)
        self.files = tuple(files)
        super().__init__("\n".join(map(str, self.problems)))

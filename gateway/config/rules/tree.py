"""Reading the raw tree: whatever has not the right shape is skipped, the field itself reports it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from gateway.config.problems import Finding, Location

Tree: TypeAlias = Mapping[str, Any]
Rule: TypeAlias = Callable[[Tree], Iterator[Finding]]


def section(tree: Tree, name: str) -> Tree:
    value = tree.get(name)
    return value if isinstance(value, dict) else {}


def entries(tree: Tree, name: str) -> Iterator[tuple[Location, Tree]]:
    value = tree.get(name)
    for i, entry in enumerate(value if isinstance(value, tuple) else ()):
        if isinstance(entry, dict):
            yield (name, i), entry


def texts(value: Any) -> Iterator[tuple[int, str]]:
    for i, item in enumerate(value if isinstance(value, tuple) else ()):
        if isinstance(item, str):
            yield i, item


def number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def given(entry: Tree, key: str) -> bool:
    return entry.get(key) is not None


def one_of_two(entry: Tree, location: Location, first: str, second: str) -> Iterator[Finding]:
    if given(entry, first) and given(entry, second):
        yield Finding((*location, second), f"{first} and {second} are both given", "keep one", on_key=True)


def unique_names(tree: Tree, section_name: str) -> Iterator[Finding]:
    first: dict[str, int] = {}
    for location, entry in entries(tree, section_name):
        name = entry.get("name")
        if isinstance(name, str):
            if name in first:
                yield Finding((*location, "name"), "duplicate name", f"also {section_name}[{first[name]}]")
            first.setdefault(name, int(location[1]))

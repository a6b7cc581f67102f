"""Reads the models' own structure: which keys exist where. Hints and full.yaml are made from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from gateway.config.fields import Section
from gateway.config.secrets import Secrecy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic.fields import FieldInfo

    from gateway.config.problems import Location


def section_of(annotation: object) -> type[Section] | None:
    """The section inside an annotation: `tuple[Backend, ...]` -> Backend; None for plain values."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next((found for inner in get_args(annotation) if (found := section_of(inner))), None)


def is_list(annotation: object) -> bool:
    return getattr(annotation, "__origin__", None) is tuple


def secrecy(info: FieldInfo) -> Secrecy | None:
    """None: the value may be shown."""
    return next((mark for mark in info.metadata if isinstance(mark, Secrecy)), None)


def interpolated(section: type[Section]) -> Iterator[str]:
    """Keys, anywhere below, whose values come from the environment."""
    for key, info in section.model_fields.items():
        below = section_of(info.annotation)
        mark = secrecy(info)
        if mark is not None and mark.source == "environment":
            yield key
        if below is not None:
            yield from interpolated(below)


def section_at(root: type[Section], location: Location) -> type[Section] | None:
    """The section that a location leads to; None where the schema has none."""
    section: type[Section] | None = root
    for part in location:
        if section is None:
            return None
        if isinstance(part, str):
            info = section.model_fields.get(part)
            section = None if info is None else section_of(info.annotation)
    return section


def knobs(section: type[Section], prefix: str = "") -> Iterator[tuple[str, str]]:
    """(key, dotted path) of everything below: `("url", "backends[].url")`."""
    for key, info in section.model_fields.items():
        path = f"{prefix}.{key}" if prefix else key
        yield key, path
        below = section_of(info.annotation)
        if below is not None:
            yield from knobs(below, f"{path}[]" if is_list(info.annotation) else path)

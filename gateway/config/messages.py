"""pydantic's errors in an operator's words, with did-you-mean.

Values are never repeated: one may be a misplaced secret.
"""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Any, Final

from gateway.config.fields import FAULT, Section
from gateway.config.problems import Finding
from gateway.config.schema import knobs, section_at

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic_core import ErrorDetails

    from gateway.config.problems import Location

_WANTED: Final[Mapping[str, str]] = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "literal_error": "text",
    "tuple_type": "a list",
    "model_type": "a mapping of keys",
    "model_attributes_type": "a mapping of keys",
    "dict_type": "a mapping of keys",
}
_BOUNDS: Final[Mapping[str, tuple[str, str]]] = {
    "greater_than": ("must be more than", "gt"),
    "greater_than_equal": ("must be at least", "ge"),
    "less_than": ("must be less than", "lt"),
    "less_than_equal": ("must be at most", "le"),
}


def explain(error: ErrorDetails, root: type[Section]) -> Finding:
    kind, location, context = error["type"], error["loc"], error.get("ctx", {})
    if kind == FAULT:
        return Finding(location, str(context["message"]), str(context["hint"]))
    if kind == "extra_forbidden":
        return Finding(location, "unknown key", unknown_key_hint(location, root), on_key=True)
    if kind == "missing":
        return Finding(location, "missing: this key has no default")
    if kind in _BOUNDS:
        phrase, bound = _BOUNDS[kind]
        return Finding(location, f"{phrase} {_number(context[bound])}")
    if kind == "too_short":
        return Finding(location, "must not be empty", "remove the key if there is nothing to list")
    if kind == "finite_number":
        return Finding(location, "must be a finite number")
    if kind == "literal_error" and isinstance(error["input"], str):
        names = re.findall(r"'([^']*)'", str(context.get("expected", "")))
        near = difflib.get_close_matches(error["input"].lower(), names, 1)
        return Finding(location, f"must be one of: {', '.join(names)}", f"did you mean {near[0]}?" if near else "")
    if kind in _WANTED:
        value = error["input"]
        return Finding(location, f"expected {_WANTED[kind]}, got {_kind_of(value)}", _type_hint(kind, value))
    return Finding(location, error["msg"])


def _number(bound: float) -> str:
    return str(bound) if isinstance(bound, int) else f"{bound:g}"


def _kind_of(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int):
        return "a whole number"
    if isinstance(value, float):
        return "a number with a fraction"
    if isinstance(value, str):
        return "text"
    return "a mapping" if isinstance(value, dict) else "a list"


def _type_hint(kind: str, value: Any) -> str:
    if value is None:
        return "remove the key to keep its default"
    if kind in {"int_type", "float_type"} and isinstance(value, str):
        if re.fullmatch(r"[-+]?[0-9_]+(\.[0-9]+)?", value):
            return "write it without quotes"
        if re.fullmatch(r"[0-9.]+ *(ms|[smhd]|[kKmMgG]i?[bB]?)", value):
            return "a plain number: the unit stands in the key"
    if kind == "bool_type" and isinstance(value, str) and value.lower() in {"yes", "no", "on", "off", "true", "false"}:
        return "write true or false, in lower case and without quotes"
    if kind == "tuple_type":
        return "put it behind a dash, or in [ ]"
    if kind == "string_type" and isinstance(value, int | float):
        return "put it in quotes"
    return ""


def unknown_key_hint(location: Location, root: type[Section]) -> str:
    """The same name elsewhere, a similar one here, a similar one elsewhere, else what there is."""
    key = str(location[-1])
    here = section_at(root, location[:-1])
    siblings = list(here.model_fields) if here is not None else []
    paths: dict[str, list[str]] = {}
    for name, path in knobs(root):
        paths.setdefault(name, []).append(path)
    if key in paths:
        return f"did you mean {' or '.join(paths[key][:3])}?"
    if near := difflib.get_close_matches(key, siblings, 1, 0.75):
        return f"did you mean {near[0]}?"
    if near := difflib.get_close_matches(key, paths, 1, 0.8):
        return f"did you mean {' or '.join(paths[near[0]][:3])}?"
    return f"known here: {', '.join(siblings)}" if siblings else ""

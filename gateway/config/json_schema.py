"""The JSON Schema (2020-12) of the config as operators write it: for editors, and for checks in a pipeline.

It knows single values; what `warmroute check` says beyond that (rules across knobs, files, environment) it cannot.
"""

from __future__ import annotations

from typing import Any, Final

from gateway.config.root import Config

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_DESCRIPTION: Final = "Keys and single values. `warmroute check` knows all rules, and reads the files that are named."
_OURS: Final = ("commented", "shown")
"""Marks for full.yaml that pydantic copies."""


def json_schema() -> dict[str, Any]:
    schema: dict[str, Any] = _plain(Config.model_json_schema())
    properties = schema["properties"]
    for key, value in properties.items():
        description = value.pop("description", None)
        # a section with nothing in it has its defaults
        properties[key] = {"anyOf": [value, {"type": "null"}]} | ({"description": description} if description else {})
    return {"$schema": _DIALECT, "title": "Config of warmroute"} | {**schema, "description": _DESCRIPTION}


def _plain(value: Any, *, named: bool = False) -> Any:
    """Without titles, which repeat the keys, and defaults that are whole sections. `named`: the keys are the config's,
    not the schema's.
    """
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    if named:
        return {key: _plain(inner) for key, inner in value.items()}
    kept = {key: inner for key, inner in value.items() if key not in {"title", *_OURS}}
    if isinstance(kept.get("default"), dict):
        del kept["default"]
    return {key: _plain(inner, named=key in {"properties", "$defs"}) for key, inner in kept.items()}

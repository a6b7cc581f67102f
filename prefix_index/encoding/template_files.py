"""The chat templates of a model, from the files that `transformers` has them in (5.24, `tokenization_utils_base.py`).

Beside a `tokenizer.json`: `chat_template.jinja` and `additional_chat_templates/*.jinja`, else `chat_template` of
`tokenizer_config.json`, a text or a list of {name, template}; special tokens from the latter and from
`special_tokens_map.json`. Invariant: nothing but these files is read.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_CONFIG: Final = "tokenizer_config.json"
_TOKENS_MAP: Final = "special_tokens_map.json"
_TEMPLATE: Final = "chat_template.jinja"
_OLD_TEMPLATE: Final = "chat_template.json"
_TOOL_TEMPLATE: Final = "additional_chat_templates/tool_use.jinja"
_DEFAULT: Final = "default"
_TOOL_USE: Final = "tool_use"
_SUFFIX: Final = "_token"


@dataclass(frozen=True, slots=True)
class TemplateSources:
    """None: the model has no such template."""

    default: str | None
    tool_use: str | None = None
    """For requests with tools, where it is another one."""
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    """`bos_token` and the like, as templates name them."""


def beside(tokenizer: Path) -> tuple[Path, ...]:
    """The files, there or not, that `template_sources` may read for this tokenizer."""
    names = (_CONFIG, _TOKENS_MAP, _TEMPLATE, _OLD_TEMPLATE, _TOOL_TEMPLATE)
    return tuple(tokenizer.parent / name for name in names)


def template_sources(tokenizer: Path, chat_template: Path | None = None) -> TemplateSources:
    """`chat_template`: Jinja, or a JSON file with that member; then nothing else is looked for. Raises OSError, and
    ValueError where a file is not what it should be."""
    folder = tokenizer.parent
    config = _object(folder / _CONFIG)
    tokens = {**_special_tokens(_object(folder / _TOKENS_MAP)), **_special_tokens(config)}
    if chat_template is not None:
        if chat_template.suffix != ".json":
            return TemplateSources(chat_template.read_text("utf-8"), None, tokens)
        given = _from_json(_object(chat_template), chat_template.name)
        if given.default is None:
            raise ValueError(f"{chat_template.name} has no chat_template")
        return TemplateSources(given.default, given.tool_use, tokens)
    single = _text(folder / _TEMPLATE)
    if single is not None:
        return TemplateSources(single, _text(folder / _TOOL_TEMPLATE), tokens)
    found = _from_json(config, _CONFIG)
    if found.default is None:
        found = _from_json(_object(folder / _OLD_TEMPLATE), _OLD_TEMPLATE)
    return TemplateSources(found.default, found.tool_use, tokens)


def _from_json(settings: dict[str, Any], name: str) -> TemplateSources:
    given = settings.get("chat_template")
    if given is None or isinstance(given, str):
        return TemplateSources(given)
    if not isinstance(given, list):
        raise ValueError(f"chat_template of {name} is neither a text nor a list")
    named = {entry.get("name"): entry.get("template") for entry in given if isinstance(entry, dict)}
    default, tool_use = named.get(_DEFAULT), named.get(_TOOL_USE)
    if not isinstance(default, str) or not isinstance(tool_use, str | None):
        raise ValueError(f"chat_template of {name} has no default template")
    return TemplateSources(default, tool_use)


def _special_tokens(settings: dict[str, Any]) -> dict[str, str]:
    tokens = {}
    for name, value in settings.items():
        if name.endswith(_SUFFIX):
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                tokens[name] = text
    return tokens


def _object(path: Path) -> dict[str, Any]:
    text = _text(path)
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(f"{path.name} is not JSON") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path.name} is not a JSON object")
    return value


def _text(path: Path) -> str | None:
    try:
        return path.read_text("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None

"""configs/full.yaml, written from the models: every knob, its default and what it is for.

python -m gateway.config.full            prints it
python -m gateway.config.full FILE       writes it
"""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import PydanticUndefined

from gateway.config.fields import COMMENTED, SHOWN
from gateway.config.root import Config
from gateway.config.schema import is_list, section_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pydantic.fields import FieldInfo

    from gateway.config.fields import Section

_WIDTH: Final = 100
_HEAD: Final = """\
# Every knob of warmroute with its default. Written by `python -m gateway.config.full` from the models.
# A config needs none of it but backends. Lines that start with `# key:` show optional knobs that are unset; where
# nothing follows the colon, the lines below belong to it and lose their first # too.
# Secrets are read from the environment (${NAME}) or from files; relative files are taken from this file's folder.
"""


def render() -> str:
    lines = [_HEAD.rstrip()]
    for key, info in Config.model_fields.items():
        section = section_of(info.annotation)
        if section is not None:
            lines += ["", *_comment(info.description or section.__doc__ or "", "")]
            body = _entry(section) if is_list(info.annotation) else _keys(section, "  ")
            lines += _block(key, body, "", as_comment=info.json_schema_extra == COMMENTED)
    return "\n".join(lines) + "\n"


def _block(key: str, body: Iterable[str], indent: str, *, as_comment: bool) -> Iterator[str]:
    """A key and the lines that stand below it, at the same depth whether it is a comment or not."""
    for line in (f"{indent}{key}:", *body):
        yield f"{indent}# {line[len(indent) :]}" if as_comment else line


def _entry(section: type[Section]) -> Iterator[str]:
    """One example entry of a list: the dash goes before its first key."""
    first = True
    for line in _keys(section, "    "):
        comment = line.lstrip().startswith("#")
        yield f"  {'' if comment else '- '}{line[4:]}" if first else line
        first = first and comment


def _keys(section: type[Section], indent: str) -> Iterator[str]:
    for key, info in section.model_fields.items():
        below = section_of(info.annotation)
        yield from _comment(info.description or "", indent)
        if below is not None:
            yield from _block(key, _keys(below, f"{indent}  "), indent, as_comment=info.default is None)
        else:
            value, optional = _value(info)
            yield f"{indent}{'# ' if optional else ''}{key}: {_scalar(value)}"


def _value(info: FieldInfo) -> tuple[Any, bool]:
    """(what to show, whether only as a comment)."""
    if info.default is PydanticUndefined or info.json_schema_extra == SHOWN:
        return (info.examples or [""])[0], False
    if info.default is None or (info.default == () and info.examples):
        return (info.examples or [""])[0], True
    return info.default, info.json_schema_extra == COMMENTED


def _scalar(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_item, value))}]"
    return str(value)


def _item(value: Any) -> str:
    text = _scalar(value)
    return text if re.fullmatch(r"[\w./*-]+", text) else f'"{text}"'


def _comment(text: str, indent: str) -> list[str]:
    return [f"{indent}# {line}" for line in textwrap.wrap(text, _WIDTH - len(indent))]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(render(), encoding="utf-8")
    else:
        sys.stdout.write(render())

"""The text of a list of backends -> endpoints, or an error that names the lines. Pure.

Reads composed YAML nodes, which know their lines, and JSON as the YAML that it is. No anchors, no tags, no unknown
keys: what writes such a file is a program, and a program's mistake is not to be guessed around.
"""

from __future__ import annotations

import re
from typing import Final

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from backends.addresses import AddressFault, address, base_url
from backends.discovery.protocol import Found, InvalidList

MAX_BYTES: Final = 262_144
"""Some 3,000 entries, which take a second to read."""
_KEYS: Final = ("name", "url", "models")
_NAME: Final = re.compile(r"[a-z0-9_.-]{1,64}")
_MODEL: Final = re.compile(r"[!-~]{1,256}")
_TEXT: Final = "tag:yaml.org,2002:str"
_SHOWN: Final = 5
"""Mistakes that one error tells."""


def read_list(content: bytes, file: str) -> tuple[Found, ...]:
    """`file` is how errors name it. Raises InvalidList; an empty list is one, an empty file is none."""
    if len(content) > MAX_BYTES:
        raise InvalidList(f"{file}:1: larger than {MAX_BYTES:,} bytes")
    root = _compose(content, file)
    if not isinstance(root, SequenceNode):
        raise InvalidList(f"{file}:1: must be a list of {{name, url, models}}")
    reader = _Reader(file)
    found = [one for node in root.value if (one := reader.entry(node)) is not None]
    if reader.mistakes:
        more = len(reader.mistakes) - _SHOWN
        raise InvalidList("; ".join(reader.mistakes[:_SHOWN]) + (f"; and {more} more" if more > 0 else ""))
    return tuple(found)


def _compose(content: bytes, file: str) -> Node | None:
    try:
        root: Node | None = YAML(typ="safe", pure=True).compose(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InvalidList(f"{file}:{line}: not UTF-8") from None
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise InvalidList(f"{file}:{mark.line + 1 if mark is not None else 1}: not valid YAML or JSON") from None
    except (YAMLError, RecursionError):
        raise InvalidList(f"{file}:1: not valid YAML or JSON") from None
    return root


class _Reader:
    """Collects the mistakes of all entries: one look at the log is enough to mend the file."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._lines: dict[str, int] = {}
        """Line of each name."""
        self._urls: dict[str, int] = {}
        self.mistakes: list[str] = []

    def entry(self, node: Node) -> Found | None:
        if not isinstance(node, MappingNode):
            self._mistake(node, "must be {name, url, models}")
            return None
        fields = self._fields(node)
        name = self._text(fields.get("name"), node, "name")
        url = self._text(fields.get("url"), node, "url")
        models = self._models(fields["models"]) if "models" in fields else ()
        if name is not None and not _NAME.fullmatch(name):
            self._mistake(fields["name"], "name: must be 1 to 64 of a-z 0-9 _ . -")
        if name is not None:
            self._once(self._lines, name, fields["name"], "name")
        base = self._base(url, fields["url"]) if url is not None else None
        if name is None or base is None:
            return None
        self._once(self._urls, str(address(base)), fields["url"], "url")
        return Found(name, address(base), None, models)

    def _fields(self, node: MappingNode) -> dict[str, Node]:
        fields: dict[str, Node] = {}
        for key_node, value in node.value:
            key = str(key_node.value) if isinstance(key_node, ScalarNode) else ""
            if key not in _KEYS:
                self._mistake(key_node, f"unknown key: there are {', '.join(_KEYS)}")
            elif key in fields:
                self._mistake(key_node, f"{key}: given twice")
            else:
                fields[key] = value
        return fields

    def _text(self, node: Node | None, entry: Node, key: str) -> str | None:
        if node is None:
            self._mistake(entry, f"{key} is missing")
            return None
        if not isinstance(node, ScalarNode) or str(node.tag) != _TEXT:
            self._mistake(node, f"{key}: must be text")
            return None
        return str(node.value)

    def _models(self, node: Node) -> tuple[str, ...]:
        items = node.value if isinstance(node, SequenceNode) else []
        texts = [self._text(item, node, "models") for item in items]
        names = tuple(text for text in texts if text is not None)
        if not items:
            self._mistake(node, "models: must be a list of names, or left out")
        elif not all(_MODEL.fullmatch(name) for name in names):
            self._mistake(node, "models: names are 1 to 256 printable ASCII characters without spaces")
        return names

    def _base(self, url: str, node: Node) -> str | None:
        try:
            return base_url(url)
        except AddressFault as fault:
            self._mistake(node, f"url: {fault.message}")
            return None

    def _once(self, seen: dict[str, int], value: str, node: Node, key: str) -> None:
        if value in seen:
            self._mistake(node, f"{key}: the same as in line {seen[value]}")
        seen.setdefault(value, node.start_mark.line + 1)

    def _mistake(self, node: Node, text: str) -> None:
        self.mistakes.append(f"{self._file}:{node.start_mark.line + 1}: {text}")

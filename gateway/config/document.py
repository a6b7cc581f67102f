"""YAML text -> plain data plus the line and column of every key and value.

Reads the composed nodes instead of loaded objects: only they still know duplicate keys and where each value stood.
Sequences become tuples, mappings dicts with text keys. Nothing is executed and custom tags are refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from gateway.config.problems import Finding, Problem, dotted

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.config.problems import Location

_TAG: Final = "tag:yaml.org,2002:"
_MAX_NODES: Final = 100_000
"""Aliases multiply nodes: far above any real config, far below what hurts."""
_MAX_DEPTH: Final = 32


@dataclass(slots=True)
class Document:
    """`data` is whatever could be read; `problems` is what could not."""

    name: str
    data: Any = None
    keys: dict[Location, tuple[int, int]] = field(default_factory=dict)
    values: dict[Location, tuple[int, int]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def problem(self, finding: Finding) -> Problem:
        """The finding at its place, or at that of the nearest thing around it that stands in the text."""
        line, column = self._place(finding)
        return Problem(self.name, line, column, dotted(finding.location), finding.message, finding.hint)

    def _place(self, finding: Finding) -> tuple[int, int]:
        location = finding.location
        if finding.on_key and location in self.keys:
            return self.keys[location]
        while location not in self.values and location:
            location = location[:-1]
        return self.values.get(location, (1, 1))


def parse(text: str, name: str) -> Document:
    document = Document(name)
    yaml = YAML(typ="safe", pure=True)
    yaml.allow_duplicate_keys = True  # reported by the walk, all of them and with both places
    try:
        root = yaml.compose(text)
        if root is not None:
            document.data = _Walk(document, yaml.constructor.construct_object).build(root, (), 0)
    except _Overflow as error:
        message = "nested too deeply, or aliases that multiply or refer to themselves"
        document.problems.append(document.problem(Finding(error.args, message, on_key=True)))
    except ReaderError as error:
        head = text[: error.position]
        line = head.count("\n") + 1
        document.problems.append(
            Problem(name, line, len(head) - head.rfind("\n"), "", "a control character that YAML does not allow")
        )
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line, mark.column) if mark is not None else (0, 0)
        around = "".join(text.splitlines()[line : line + 1])
        hint = 'inside { } and [ ] quotes are needed: "${NAME}"' if "${" in around else ""
        document.problems.append(Problem(name, line + 1, column + 1, "", f"not valid YAML: {_reason(error)}", hint))
    except (YAMLError, RecursionError) as error:
        document.problems.append(Problem(name, 1, 1, "", f"not valid YAML: {type(error).__name__}"))
    return document


def _reason(error: MarkedYAMLError) -> str:
    return ", ".join(part for part in (error.context, error.problem) if part).replace("\n", " ")


class _Overflow(Exception):
    """Too much to read; the argument is the key at the root below which it happened."""


class _Walk:
    """One pass over the composed nodes. An aliased node is visited at each use, under the location of that use."""

    def __init__(self, document: Document, construct: Callable[[Node], Any]) -> None:
        self._document = document
        self._construct = construct
        self._left = _MAX_NODES

    def build(self, node: Node, location: Location, depth: int) -> Any:
        self._left -= 1
        self._document.values[location] = (node.start_mark.line + 1, node.start_mark.column + 1)
        if self._left < 0 or depth > _MAX_DEPTH:
            raise _Overflow(location[0])
        if isinstance(node, MappingNode):
            return self._mapping(node, location, depth)
        if isinstance(node, SequenceNode):
            return tuple(self.build(item, (*location, i), depth + 1) for i, item in enumerate(node.value))
        return self._scalar(node, location)

    def _mapping(self, node: MappingNode, location: Location, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        merged: list[Node] = []
        for key_node, value_node in node.value:
            if key_node.tag == f"{_TAG}merge":
                merged.extend(value_node.value if isinstance(value_node, SequenceNode) else [value_node])
                continue
            place = (key_node.start_mark.line + 1, key_node.start_mark.column + 1)
            if not isinstance(key_node, ScalarNode):
                self._problem(place, location, "a key must be text")
                continue
            key = str(key_node.value)
            below = (*location, key)
            if key in found:
                first = self._document.keys[below]
                self._problem(place, below, "duplicate key", f"first given in line {first[0]}")
                continue
            self._document.keys[below] = place
            found[key] = self.build(value_node, below, depth + 1)
        for source in merged:
            self._merge(source, found, location, depth)
        return found

    def _merge(self, source: Node, found: dict[str, Any], location: Location, depth: int) -> None:
        """`<<: *defaults`: keys of `source` that the mapping does not have itself."""
        if not isinstance(source, MappingNode):
            self._report(location, "<< takes a mapping, or a list of mappings")
            return
        for key_node, value_node in source.value:
            key = str(key_node.value)
            if isinstance(key_node, ScalarNode) and key_node.tag != f"{_TAG}merge" and key not in found:
                self._document.keys[(*location, key)] = (key_node.start_mark.line + 1, key_node.start_mark.column + 1)
                found[key] = self.build(value_node, (*location, key), depth + 1)

    def _scalar(self, node: Node, location: Location) -> Any:
        tag = str(node.tag)
        if tag in {f"{_TAG}str", f"{_TAG}timestamp"}:  # a date is text here: no knob takes one
            return str(node.value)
        if tag in {f"{_TAG}{kind}" for kind in ("int", "float", "bool", "null")}:
            try:
                return self._construct(node)
            except (YAMLError, ValueError):
                self._report(location, "not a readable number")
                return None
        self._report(location, "tags are not used here", "remove the word that starts with !")
        return None

    def _report(self, location: Location, message: str, hint: str = "") -> None:
        self._document.problems.append(self._document.problem(Finding(location, message, hint)))

    def _problem(self, place: tuple[int, int], location: Location, message: str, hint: str = "") -> None:
        self._document.problems.append(Problem(self._document.name, *place, dotted(location), message, hint))

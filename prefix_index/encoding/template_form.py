"""What a chat template expects, told from its source as vLLM tells it (0.32.0, `renderers/hf.py`): whether content
comes as a list of parts or as text.

Invariant: total for whatever Jinja can parse; what cannot be told is text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeGuard

from jinja2 import nodes

if TYPE_CHECKING:
    from collections.abc import Iterator

_CONTENT = "content"


def iterates_content(tree: nodes.Template) -> bool:
    """The template loops over the content of a message: directly, in a macro that gets it, or by that name."""
    try:
        messages = _loop_names(tree, _aliases(tree, "messages"))
        return any(_is_over_content(loop, messages, bound) for loop, bound in _loops(tree, messages))
    except _Untold:
        return False


class _Untold(Exception):
    """A target that is no plain name."""


def _loops(tree: nodes.Template, messages: set[str]) -> Iterator[tuple[nodes.For, set[str] | None]]:
    """All loops; with the macro's parameters that are a message's content, None outside of macros."""
    inside: dict[int, set[str]] = {}
    for macro in tree.find_all(nodes.Macro):
        bound = _content_parameters(tree, macro, messages)
        for loop in macro.find_all(nodes.For):
            if bound or id(loop) not in inside:
                inside[id(loop)] = bound
    for loop in tree.find_all(nodes.For):
        yield loop, inside.get(id(loop))


def _is_over_content(loop: nodes.For, messages: set[str], bound: set[str] | None) -> bool:
    if any(_reads(loop.iter, name, _CONTENT) for name in messages):
        found = True
    else:
        names = {_CONTENT} if bound is None else bound
        found = isinstance(loop.iter, nodes.Name) and loop.iter.name in names
    if found:
        _name(loop.target)
    return found


def _content_parameters(tree: nodes.Template, macro: nodes.Macro, messages: set[str]) -> set[str]:
    names = [argument.name for argument in macro.args]
    bound: set[str] = set()
    for call in tree.find_all(nodes.Call):
        if not (isinstance(call.node, nodes.Name) and call.node.name == macro.name):
            continue
        given = [*zip(names, call.args, strict=False)]
        given += [(keyword.key, keyword.value) for keyword in call.kwargs if keyword.key in names]
        bound |= {name for name, value in given if any(_reads(value, message, _CONTENT) for message in messages)}
    return bound


def _aliases(tree: nodes.Template, name: str) -> set[str]:
    """The variable, and those that are assigned from it or a slice of it."""
    found, todo = {name}, [name]
    while todo:
        source = todo.pop()
        for assign in tree.find_all(nodes.Assign):
            if _reads(assign.node, source) and (target := _name(assign.target)) not in found:
                found.add(target)
                todo.append(target)
    return found


def _loop_names(tree: nodes.Template, lists: set[str]) -> set[str]:
    return {_name(loop.target) for loop in tree.find_all(nodes.For) if any(_reads(loop.iter, name) for name in lists)}


def _name(target: nodes.Node) -> str:
    if not isinstance(target, nodes.Name):
        raise _Untold
    return target.name


def _is_member(node: nodes.Node | None, member: str) -> TypeGuard[nodes.Getattr | nodes.Getitem]:
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == member
    return isinstance(node, nodes.Getattr) and node.attr == member


def _reads(node: nodes.Node | None, name: str, member: str | None = None) -> bool:
    """It is that variable, or that member of it; through filters, tests and slices."""
    while isinstance(node, nodes.Filter | nodes.Test) or (
        isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
    ):
        node = node.node
    if member is not None:
        if not _is_member(node, member):
            return False
        node = node.node
    return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name

"""Chat templates as Hugging Face `transformers` runs them (5.24, `utils/chat_template_utils.py`), within limits.

The template comes from the operator, the messages from a client. Invariant: rendering ends in text or in None; time
is checked while output comes and output is bounded by the size of the input.
"""

from __future__ import annotations

import json
import time
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import jinja2
import jinja2.ext
import jinja2.sandbox
from jinja2 import nodes

from prefix_index.encoding.template_form import iterates_content

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from jinja2.parser import Parser

_OUTPUT_PER_INPUT: Final = 8
_OUTPUT_SPARE_CHARS: Final = 64 * 1024
_OUTPUT_MOST_CHARS: Final = 32 * 1024 * 1024
_PIECES_AT_ONCE: Final = 8
_OPEN_END: Final = "WARMROUTE_OPEN_END "
"""Stands where a message goes on that is to be continued. The space tells whether the template trims."""


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}` marks what a model wrote, for training: here its body is rendered as it is. What is set in it
    ends with it."""

    tags = {"generation"}  # noqa: RUF012 - the name and type are Jinja's

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class ChatTemplate:
    """`special_tokens`: names such as `bos_token` and their text. Raises ValueError for a template that does not
    compile.

    `monotonic_s` and `now` are the clocks for the time limit and for `strftime_now`.
    """

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str] | None = None,
        *,
        time_limit_s: float = 2.0,
        monotonic_s: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda form: now().strftime(form)
        try:
            self._template = environment.from_string(source)
            self.wants_parts = iterates_content(environment.parse(source))
        except jinja2.TemplateError as error:
            raise ValueError(f"the chat template does not compile: {error}") from error
        self._special_tokens = dict(special_tokens or {})
        self._time_limit_s = time_limit_s
        self._monotonic_s = monotonic_s
        self.knows_developer = '"developer"' in source or "'developer'" in source

    wants_parts: bool
    """Whether it loops over the parts of a content; otherwise it gets text."""
    knows_developer: bool
    """Whether it has that role."""

    def render(
        self,
        messages: list[dict[str, Any]],
        tools: list[Any] | None,
        arguments: Mapping[str, Any],
        input_bytes: int,
    ) -> str | None:
        """The prompt text; None where the template refuses the messages, fails, or passes a limit.

        `arguments` go before the special tokens of the same name; `continue_final_message` leaves the last message
        open. `input_bytes`: size of the request, which the output is measured against.
        """
        if not arguments.get("continue_final_message"):
            return self._render(messages, tools, arguments, input_bytes)
        if arguments.get("add_generation_prompt", True) or (opened := _opened(messages[-1])) is None:
            return None
        text = self._render([*messages[:-1], opened], tools, arguments, input_bytes)
        return None if text is None else _up_to_open_end(text)

    def _render(
        self,
        messages: list[dict[str, Any]],
        tools: list[Any] | None,
        arguments: Mapping[str, Any],
        input_bytes: int,
    ) -> str | None:
        most = min(_OUTPUT_PER_INPUT * input_bytes + _OUTPUT_SPARE_CHARS, _OUTPUT_MOST_CHARS)
        values = {"documents": None, "add_generation_prompt": True, **self._special_tokens, **arguments}
        deadline = self._monotonic_s() + self._time_limit_s
        pieces: list[str] = []
        size = 0
        try:
            stream = self._template.generate(values | {"messages": messages, "tools": tools})
            while batch := list(islice(stream, _PIECES_AT_ONCE)):
                pieces.append("".join(batch))
                size += len(pieces[-1])
                if size > most or self._monotonic_s() > deadline:
                    return None
        except Exception:  # foreign code on a client's data: whatever it raises, this prompt has no text
            return None
        return "".join(pieces)


def _opened(message: dict[str, Any]) -> dict[str, Any] | None:
    """With a mark behind its text; None where it has none."""
    content = message.get("content")
    if isinstance(content, str):
        return {**message, "content": content + _OPEN_END}
    if not isinstance(content, list) or not content:
        return None
    *before, last = content
    return {**message, "content": [*before, {**last, "text": last["text"] + _OPEN_END}]}


def _up_to_open_end(text: str) -> str | None:
    """What the template writes behind the open message is left out."""
    at = text.rfind(_OPEN_END.strip())
    if at < 0:
        return None
    return text[:at] if text.startswith(_OPEN_END, at) else text[:at].rstrip()


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)

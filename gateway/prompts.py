"""What of a request body is the prompt, per API, as the one form that encoders take: messages, or a completion's
prompt.

Invariant: the JSON text is spliced, not written anew, so that a turn that repeats the one before byte for byte still
does so here, and its encoding goes on where the last one ended.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

from prefix_index.encoding.protocol import Prompt

if TYPE_CHECKING:
    from gateway.body import Body

_CACHE_MARK: Final = b'"cache_control"'
_CACHE_VALUE: Final = re.compile(rb"\s*:\s*(?:\{[^{}]*\}|null)\s*")
"""Only ever a key: inside a string its quotes would be escaped."""

_BILLING: Final = "x-anthropic-billing-header"
_SPACE: Final = b" \t\r\n"
_NOTHING: Final = frozenset({b"", b"null"})


class _Part(msgspec.Struct):
    text: str


_PARTS: Final = msgspec.json.Decoder(list[_Part])


def chat_prompt(body: Body) -> Prompt:
    messages, tools, arguments = body.messages, body.tools, body.chat_template_kwargs
    return Prompt(
        bytes(messages) if messages else None,
        None,
        bytes(tools) if tools else None,
        bytes(arguments) if arguments else None,
    )


def completions_prompt(body: Body) -> Prompt:
    return Prompt(messages=None, prompt=bytes(body.prompt) if body.prompt else None)


def messages_prompt(body: Body) -> Prompt:
    """Anthropic's: `system` as a first message of that role, as engines have it."""
    messages = _without_cache_marks(bytes(body.messages))
    return _with_system(_one_text(bytes(body.system)), messages, body)


def responses_prompt(body: Body) -> Prompt | None:
    """`instructions` as a first message, then `input`. None where most of the prompt is what an engine remembers."""
    if body.previous_response_id is not None or body.conversation is not None:
        return None
    given = bytes(body.input)
    if given.startswith(b'"'):
        given = b'[{"role":"user","content":%b}]' % given
    return _with_system(bytes(body.instructions), given, body)


def _with_system(system: bytes, messages: bytes, body: Body) -> Prompt:
    if system not in _NOTHING and messages.startswith(b"["):
        rest = messages[1:].lstrip(_SPACE) if messages[1:2] in _SPACE else messages[1:]
        comma = b"" if rest.startswith(b"]") else b","
        messages = b'[{"role":"system","content":%b}%b%b' % (system, comma, rest)
    return Prompt(
        messages=messages or None,
        prompt=None,
        tools=bytes(body.tools) if body.tools else None,
        template_arguments=bytes(body.chat_template_kwargs) if body.chat_template_kwargs else None,
    )


def _without_cache_marks(raw: bytes) -> bytes:
    """The marks wander to the newest message with each turn, and no engine shows them to its model."""
    kept: list[bytes] = []
    at, found = 0, -1
    while (found := raw.find(_CACHE_MARK, found + 1)) >= 0:
        value = _CACHE_VALUE.match(raw, found + len(_CACHE_MARK))
        if value is None:
            continue
        before = raw[at:found].rstrip(_SPACE)
        at = value.end()
        if before.endswith(b","):
            before = before[:-1]
        elif raw[at : at + 1] == b",":
            at += 1
        kept.append(before)
    return b"".join((*kept, raw[at:])) if kept else raw


def _one_text(system: bytes) -> bytes:
    """`system` as engines put it together: the texts of its parts, without Claude Code's attribution, which is new with
    every request (engines drop it, else no prefix would ever be found again)."""
    if not system.startswith(b"["):
        return system
    try:
        texts = [part.text for part in _PARTS.decode(system)]
        return msgspec.json.encode("".join(text for text in texts if not text.startswith(_BILLING)))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return system

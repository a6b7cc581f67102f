"""What of a request body is the prompt, per API, as the one form that encoders take: messages, or a completion's
prompt.

Invariant: the JSON text is spliced, not written anew, so that a turn that repeats the one before byte for byte still
does so here, and its encoding goes on where the last one ended.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from prefix_index.encoding.json_text import dump, load
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
        _with_settings(body, body.reasoning_effort) if _has_settings(body) else bytes(arguments) if arguments else None,
    )


def _has_settings(body: Body) -> bool:
    """Fields of the body that a chat template sees like its arguments."""
    return (
        body.reasoning_effort is not None
        or body.add_generation_prompt is not None
        or body.continue_final_message is not None
        or body.documents is not None
    )


def _with_settings(body: Body, effort: Any) -> bytes:
    """The template's arguments as vLLM merges them (0.32.0, `entrypoints/openai/chat_completion/protocol.py`): the
    fields go before what the client wrote among the arguments, but for `enable_thinking`, which follows the effort."""
    given = load(bytes(body.chat_template_kwargs)) if body.chat_template_kwargs else None
    arguments = given if isinstance(given, dict) else {}
    fields = {
        "reasoning_effort": effort,
        "add_generation_prompt": body.add_generation_prompt,
        "continue_final_message": body.continue_final_message,
        "documents": body.documents,
    }
    merged = arguments | {name: value for name, value in fields.items() if value is not None and value != "auto"}
    if effort is not None and "enable_thinking" not in arguments:
        merged["enable_thinking"] = effort != "none"
    return dump(merged)


def completions_prompt(body: Body) -> Prompt:
    return Prompt(messages=None, prompt=bytes(body.prompt) if body.prompt else None)


def messages_prompt(body: Body) -> Prompt:
    """Anthropic's: `system` as a first message of that role, as engines have it."""
    messages = _without_cache_marks(bytes(body.messages))
    return _with_system(_one_text(bytes(body.system)), messages, body, _effort_of_messages(body))


def responses_prompt(body: Body) -> Prompt | None:
    """`instructions` as a first message, then `input`. None where most of the prompt is what an engine remembers."""
    if body.previous_response_id is not None or body.conversation is not None:
        return None
    given = bytes(body.input)
    if given.startswith(b'"'):
        given = b'[{"role":"user","content":%b}]' % given
    return _with_system(bytes(body.instructions), given, body, _member(body.reasoning, "effort"))


def _effort_of_messages(body: Body) -> Any:
    """As vLLM has it (0.32.0, `entrypoints/anthropic/serving.py`)."""
    return "none" if _member(body.thinking, "type") == "disabled" else _member(body.output_config, "effort")


def _member(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _with_system(system: bytes, messages: bytes, body: Body, effort: Any) -> Prompt:
    if system not in _NOTHING and messages.startswith(b"["):
        rest = messages[1:].lstrip(_SPACE) if messages[1:2] in _SPACE else messages[1:]
        comma = b"" if rest.startswith(b"]") else b","
        messages = b'[{"role":"system","content":%b}%b%b' % (system, comma, rest)
    arguments = bytes(body.chat_template_kwargs) if effort is None else _with_settings(body, effort)
    return Prompt(
        messages=messages or None,
        prompt=None,
        tools=bytes(body.tools) if body.tools else None,
        template_arguments=arguments or None,
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

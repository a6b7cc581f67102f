"""Anthropic's Messages API: bodies as chat, answers in its shape. Sources: its reference, and vLLM's server of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from backends.engine.errors import ApiError
from backends.engine.rendering import END, in_chunk, split_at_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from backends.engine.rendering import Usage

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens"}
_KINDS = {400: "invalid_request_error", 404: "not_found_error", 413: "request_too_large", 503: "overloaded_error"}


def as_chat(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The messages, `system` first. ApiError for what is none."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(message, dict) for message in messages):
        raise ApiError(400, "messages must be a non-empty list of objects", param="messages")
    system = body.get("system")
    if isinstance(system, list):
        texts = [part.get("text") for part in system if isinstance(part, dict)]
        # attribution with a nonce: no prefix would ever be found again
        system = "".join(
            text for text in texts if isinstance(text, str) and not text.startswith("x-anthropic-billing-header")
        )
    first = [{"role": "system", "content": system}] if isinstance(system, str) and system else []
    return first + [converted for message in messages for converted in _converted(message)]


def _converted(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message.get("content")
    if not isinstance(content, list):
        return [message]
    results: list[dict[str, Any]] = []
    parts: list[Any] = []
    calls: list[dict[str, Any]] = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "tool_result":
            results.append(
                {"role": "tool", "tool_call_id": part.get("tool_use_id"), "content": part.get("content") or ""}
            )
        elif kind == "tool_use":
            function = {"name": part.get("name"), "arguments": json.dumps(part.get("input") or {})}
            calls.append({"id": part.get("id"), "type": "function", "function": function})
        else:
            parts.append(part)
    if not parts and not calls:
        return results
    own = {"role": message.get("role", ""), "content": parts}
    return [*results, {**own, "tool_calls": calls} if calls else own]


def error_body(error: ApiError) -> dict[str, object]:
    kind = _KINDS.get(error.status) or ("invalid_request_error" if error.status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": error.message}}


def _usage(usage: Usage) -> dict[str, int]:
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }


def _event(kind: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), msgspec.json.encode({"type": kind, **fields}))


class MessageFormat:
    """One answer, which is also its only stream."""

    def __init__(self, response_id: str, model: str) -> None:
        self._fields = {"id": response_id, "type": "message", "role": "assistant", "model": model}
        self._reason = ""
        delta = {"type": "text_delta", "text": "@"}
        self._before, self._after = split_at_text(_event("content_block_delta", index=0, delta=delta))

    def stream(self, index: int, finish_reason: str) -> MessageFormat:
        self._reason = _STOP_REASONS[finish_reason]
        return self

    def opening(self, usage: Usage) -> bytes:
        started: dict[str, Any] = {
            **self._fields,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(usage),
        }
        block = _event("content_block_start", index=0, content_block={"type": "text", "text": ""})
        return in_chunk(_event("message_start", message=started) + block + _event("ping"))

    def chunk(self, text: bytes) -> bytes:
        return in_chunk(self._before + text + self._after)

    def first(self, text: bytes, usage: Usage) -> bytes:
        return self.opening(usage) + self.chunk(text)

    def last(self, text: bytes) -> bytes:
        return self.chunk(text) + in_chunk(_event("content_block_stop", index=0))

    def end(self, usage: Usage, *, include_usage: bool) -> bytes:
        delta = {"stop_reason": self._reason, "stop_sequence": None}
        last = _event("message_delta", delta=delta, usage={"output_tokens": usage.completion_tokens})
        return in_chunk(last + _event("message_stop")) + END

    def whole(self, texts: Iterable[tuple[bytes, str]], usage: Usage) -> bytes:
        text, finish_reason = next(iter(texts))
        stop = {"stop_reason": _STOP_REASONS[finish_reason], "stop_sequence": None}
        content = [{"type": "text", "text": text.decode()}]
        return msgspec.json.encode({**self._fields, "content": content, **stop, "usage": _usage(usage)})

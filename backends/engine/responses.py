"""OpenAI's Responses API: bodies as chat, answers in its shape. Nothing is stored, so no answer can be gone on with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from backends.engine.errors import ApiError
from backends.engine.rendering import END, in_chunk, split_at_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from backends.engine.rendering import Usage

_STATUS = {"stop": "completed", "length": "incomplete"}


def as_chat(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """`instructions`, then the input. ApiError for what is none."""
    if body.get("previous_response_id") is not None:
        raise ApiError(404, "this engine keeps no responses", "NotFoundError", param="previous_response_id")
    given = body.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not isinstance(items, list) or not items or not all(isinstance(item, dict) for item in items):
        raise ApiError(400, "input must be a string or a non-empty list of objects", param="input")
    instructions = body.get("instructions")
    first = [{"role": "system", "content": instructions}] if isinstance(instructions, str) and instructions else []
    return first + [_message(item) for item in items]


def _message(item: dict[str, Any]) -> dict[str, Any]:
    if item.get("type") == "function_call_output":
        return {"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")}
    if item.get("type") == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        calls = [{"id": item.get("call_id"), "type": "function", "function": function}]
        return {"role": "assistant", "content": None, "tool_calls": calls}
    return item


class ResponseFormat:
    """One answer, which is also its only stream."""

    def __init__(self, response_id: str, model: str, created: int) -> None:
        self._id = response_id
        self._item_id = f"msg_{response_id}"
        self._fields: dict[str, Any] = {"id": response_id, "object": "response", "created_at": created, "model": model}
        self._reason = ""
        self._texts: list[bytes] = []
        self._events = 0
        delta = {**self._place, "delta": "@", "logprobs": []}
        self._before, self._after = split_at_text(msgspec.json.encode(delta)[:-1])

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self._item_id, "output_index": 0, "content_index": 0}

    def stream(self, index: int, finish_reason: str) -> ResponseFormat:
        self._reason = finish_reason
        return self

    def opening(self, usage: Usage) -> bytes:
        begun = self._response("in_progress", [], None)
        item = {"type": "message", "id": self._item_id, "status": "in_progress", "role": "assistant", "content": []}
        return in_chunk(
            self._event("response.created", response=begun)
            + self._event("response.in_progress", response=begun)
            + self._event("response.output_item.added", output_index=0, item=item)
            + self._event("response.content_part.added", **self._place, part=_part(b""))
        )

    def chunk(self, text: bytes) -> bytes:
        self._texts.append(text)
        self._events += 1
        kind = b"response.output_text.delta"
        head = b'event: %b\ndata: {"type":"%b","sequence_number":%d,' % (kind, kind, self._events - 1)
        return in_chunk(head + self._before[1:] + text + self._after + b"}\n\n")

    def first(self, text: bytes, usage: Usage) -> bytes:
        return self.opening(usage) + self.chunk(text)

    def last(self, text: bytes) -> bytes:
        return self.chunk(text)

    def end(self, usage: Usage, *, include_usage: bool) -> bytes:
        text, status = b"".join(self._texts), _STATUS[self._reason]
        item = self._item(text, status)
        return (
            in_chunk(
                self._event("response.output_text.done", **self._place, text=text.decode(), logprobs=[])
                + self._event("response.content_part.done", **self._place, part=_part(text))
                + self._event("response.output_item.done", output_index=0, item=item)
                + self._event(f"response.{status}", response=self._response(status, [item], usage))
            )
            + END
        )

    def whole(self, texts: Iterable[tuple[bytes, str]], usage: Usage) -> bytes:
        text, finish_reason = next(iter(texts))
        status = _STATUS[finish_reason]
        return msgspec.json.encode(self._response(status, [self._item(text, status)], usage))

    def _item(self, text: bytes, status: str) -> dict[str, Any]:
        return {
            "type": "message",
            "id": self._item_id,
            "status": status,
            "role": "assistant",
            "content": [_part(text)],
        }

    def _response(self, status: str, output: list[dict[str, Any]], usage: Usage | None) -> dict[str, Any]:
        return {
            **self._fields,
            "error": None,
            "instructions": None,
            "metadata": {},
            "parallel_tool_calls": True,
            "temperature": 1.0,
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "output": output,
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0,
            "usage": None if usage is None else _usage(usage),
        }

    def _event(self, kind: str, **fields: Any) -> bytes:
        event = {"type": kind, "sequence_number": self._events, **fields}
        self._events += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), msgspec.json.encode(event))


def _part(text: bytes) -> dict[str, Any]:
    return {"type": "output_text", "text": text.decode(), "annotations": [], "logprobs": []}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }

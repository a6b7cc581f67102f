"""Anthropic's Messages API. Sources: its API reference (errors, streaming), and vLLM's and SGLang's servers of it."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

import msgspec

from gateway.observe import JsonObserver, Observer, StreamObserver, Usage, choose_observer, data_lines

if TYPE_CHECKING:
    from backends.transport import ResponseHead
    from vocabulary.errors import RequestFailed

_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_STOP: Final = re.compile(rb'^(?:event: ?message_stop|data: ?\{"type": ?"message_stop")', re.MULTILINE)


class _Counts(msgspec.Struct):
    input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    output_tokens: int | None = None

    @property
    def prompt_tokens(self) -> int:
        """`input_tokens` are only those that the cache had nothing to do with."""
        read, created = self.cache_read_input_tokens or 0, self.cache_creation_input_tokens or 0
        return (self.input_tokens or 0) + read + created


class _Message(msgspec.Struct):
    usage: _Counts | None = None


class _Event(msgspec.Struct):
    message: _Message | None = None
    usage: _Counts | None = None


_EVENT: Final = msgspec.json.Decoder(_Event)


def _counts(text: bytes) -> _Counts | None:
    try:
        event = _EVENT.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return event.usage or (event.message.usage if event.message is not None else None)


def _updated(usage: Usage | None, counts: _Counts) -> Usage:
    """Counts of a stream are cumulative, but its events tell only some of them, and some engines tell zeros first."""
    prompt, completion, cached = usage or Usage()
    if counts.prompt_tokens:
        prompt = counts.prompt_tokens
        if counts.cache_read_input_tokens is not None:
            cached = counts.cache_read_input_tokens
    if counts.output_tokens is not None:
        completion = counts.output_tokens
    return Usage(prompt, completion, cached)


def _read_message(text: bytes) -> tuple[Usage | None, str | None]:
    counts = _counts(text)
    return (None if counts is None else _updated(None, counts)), None


class MessageStream(StreamObserver):
    """Named events from `message_start`, which has the prompt's usage, to `message_stop`."""

    __slots__ = ()

    def _read(self, data: bytes) -> None:
        self.chunks += data.count(b'"content_block_delta"')
        if b"message_stop" in data and _STOP.search(data):
            self.done = True
        if b'"usage"' in data:
            for line in data_lines(data, b'"usage"'):
                counts = _counts(line)
                if counts is not None:
                    self.usage = _updated(self.usage, counts)


class Anthropic:
    break_off = b"\nevent: ping\n\n"
    """Makes a ping of it, which clients pass over: they would fail to parse its half of a JSON text."""

    def error_body(self, error: RequestFailed, request_id: bytes = b"") -> bytes:
        body = {**_error(error), "request_id": request_id.decode("latin-1") or None}
        return json.dumps(body).encode()

    def error_event(self, error: RequestFailed) -> bytes:
        return b"event: error\ndata: " + json.dumps(_error(error)).encode() + b"\n\n"

    def observer(self, head: ResponseHead) -> Observer:
        return choose_observer(head, MessageStream, lambda: JsonObserver(_read_message))


def _error(error: RequestFailed) -> dict[str, object]:
    kind = _TYPES.get(error.status) or ("invalid_request_error" if error.status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": str(error), "code": error.code, "param": error.param}}

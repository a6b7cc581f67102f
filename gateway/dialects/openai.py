"""OpenAI's chat and completions, and what has no shape of its own."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

import msgspec

from gateway.observe import JsonObserver, Observer, StreamObserver, Usage, choose_observer, data_lines

if TYPE_CHECKING:
    from backends.transport import ResponseHead
    from vocabulary.errors import RequestFailed

_USAGE: Final = re.compile(rb'"usage"\s*:\s*\{')
_DONE: Final = re.compile(rb"(?:\A|[\r\n])data: ?\[DONE\]")
_SHORT_BYTES: Final = 1 << 20


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Timings(msgspec.Struct):
    """llama.cpp's, in every answer and in the last chunk of a stream (tools/server, server-task.cpp)."""

    cache_n: int
    prompt_n: int
    """Those that were not cached."""
    predicted_n: int | None = None


class _HasUsage(msgspec.Struct):
    usage: _Usage | None = None


class _HasTimings(msgspec.Struct):
    timings: _Timings


_DECODER: Final = msgspec.json.Decoder(_HasUsage)
_TIMINGS: Final = msgspec.json.Decoder(_HasTimings)


def _usage(text: bytes) -> Usage | None:
    try:
        usage = _DECODER.decode(text).usage
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    if usage is None:
        return _timings(text)
    details = usage.prompt_tokens_details
    if details is None and (told := _timings(text)) is not None:
        return Usage(usage.prompt_tokens, usage.completion_tokens, told.cached_tokens)
    return Usage(usage.prompt_tokens, usage.completion_tokens, details.cached_tokens if details else None)


def _timings(text: bytes) -> Usage | None:
    """The same of an engine that tells it there, asked for usage or not."""
    if b'"timings"' not in text:
        return None
    try:
        timings = _TIMINGS.decode(text).timings
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return Usage(timings.cache_n + timings.prompt_n, timings.predicted_n, timings.cache_n)


def read_answer(text: bytes) -> tuple[Usage | None, str | None]:
    """Usage of a whole answer; nobody asks for one by its id."""
    return _usage(text), None


def _document() -> JsonObserver:
    return JsonObserver(read_answer)


class ChatStream(StreamObserver):
    """Chunks, then `[DONE]`."""

    __slots__ = ()

    def _read(self, data: bytes) -> None:
        self.chunks += data.count(b"data:")
        if b"[DONE]" in data and _DONE.search(data):
            self.done = True
            self.chunks -= 1
        if b'"usage"' in data and _USAGE.search(data):
            for line in data_lines(data, b'"usage"'):
                self.usage = _usage(line) or self.usage
        elif b'"timings"' in data:
            for line in data_lines(data, b'"timings"'):
                self.usage = _timings(line) or self.usage


class OtherStream(ChatStream):
    """Events of which nobody promised a `[DONE]`."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__()
        self.done = True


def error_fields(error: RequestFailed) -> dict[str, str | None]:
    return {"message": str(error), "type": error.kind, "param": error.param, "code": error.code}


class OpenAI:
    break_off = b"\n\n"

    def error_body(self, error: RequestFailed, request_id: bytes = b"") -> bytes:
        return json.dumps({"error": error_fields(error)}).encode()

    def error_event(self, error: RequestFailed) -> bytes:
        fields = {"message": str(error), "type": error.kind, "code": error.code}
        return b"data: " + json.dumps({"error": fields}).encode() + b"\n\n"

    def observer(self, head: ResponseHead) -> Observer:
        return choose_observer(head, ChatStream, _document)


class Other(OpenAI):
    """Embeddings, audio and the like: OpenAI's errors, streams without a common end, documents that may be long."""

    def observer(self, head: ResponseHead) -> Observer:
        return choose_observer(head, OtherStream, lambda: JsonObserver(read_answer, _SHORT_BYTES))

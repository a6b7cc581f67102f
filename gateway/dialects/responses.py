"""OpenAI's Responses API: errors as in chat, but streams of named events, and other names in usage."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import msgspec

from gateway.dialects.openai import OpenAI, error_fields
from gateway.observe import JsonObserver, Observer, StreamObserver, Usage, choose_observer, data_lines

if TYPE_CHECKING:
    from backends.transport import ResponseHead
    from vocabulary.errors import RequestFailed

_LAST: Final = frozenset({"response.completed", "response.incomplete", "response.failed"})


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    input_tokens: int = 0
    output_tokens: int | None = None
    input_tokens_details: _Details | None = None


class _Answer(msgspec.Struct):
    id: str | None = None
    usage: _Usage | None = None


class _Event(msgspec.Struct):
    type: str = ""
    response: _Answer | None = None


_ANSWER: Final = msgspec.json.Decoder(_Answer)
_EVENT: Final = msgspec.json.Decoder(_Event)


def _usage(answer: _Answer) -> Usage | None:
    usage = answer.usage
    if usage is None:
        return None
    details = usage.input_tokens_details
    return Usage(usage.input_tokens, usage.output_tokens, details.cached_tokens if details else None)


def _read_answer(text: bytes) -> tuple[Usage | None, str | None]:
    try:
        answer = _ANSWER.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None, None
    return _usage(answer), answer.id


class ResponseStream(StreamObserver):
    """From `response.created` to one of three ends; these and few others hold the response itself."""

    __slots__ = ("answer_id",)

    def __init__(self) -> None:
        super().__init__()
        self.answer_id = None

    def _read(self, data: bytes) -> None:
        self.chunks += data.count(b'.delta"')
        if b'"response"' not in data:
            return
        for line in data_lines(data, b'"response"'):
            try:
                event = _EVENT.decode(line)
            except (msgspec.MsgspecError, ValueError, RecursionError):
                continue
            if event.response is not None:
                self.answer_id = event.response.id or self.answer_id
                self.usage = _usage(event.response) or self.usage
                self.done = self.done or event.type in _LAST


class Responses(OpenAI):
    def error_event(self, error: RequestFailed) -> bytes:
        """By the reference an event of type `error`; `error` inside is what OpenAI's clients raise on."""
        fields = error_fields(error)
        event = {**fields, "type": "error", "sequence_number": 0, "error": fields}
        return b"event: error\ndata: " + json.dumps(event).encode() + b"\n\n"

    def observer(self, head: ResponseHead) -> Observer:
        return choose_observer(head, ResponseStream, lambda: JsonObserver(_read_answer))

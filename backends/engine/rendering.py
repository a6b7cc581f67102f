"""Response bytes in vLLM's shape. What does not change within a stream is rendered once, so a token costs one
formatting.
"""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

_encode = msgspec.json.encode

END: Final = b"0\r\n\r\n"
"""Of a chunked body."""

_DONE: Final = b"e\r\ndata: [DONE]\n\n\r\n" + END


class Stream(Protocol):
    """How one choice is streamed: HTTP chunks of one or more events. Texts need no JSON escape."""

    def opening(self, usage: Usage) -> bytes:
        """What precedes the first text."""
        ...

    def chunk(self, text: bytes) -> bytes: ...

    def first(self, text: bytes, usage: Usage) -> bytes:
        """The opening and a chunk."""
        ...

    def last(self, text: bytes) -> bytes: ...


class Format(Protocol):
    """How one answer is written."""

    def stream(self, index: int, finish_reason: str) -> Stream: ...

    def end(self, usage: Usage, *, include_usage: bool) -> bytes:
        """The last events of a stream and the end of its body."""
        ...

    def whole(self, texts: Iterable[tuple[bytes, str]], usage: Usage) -> bytes:
        """A JSON answer; `texts`: (text, finish reason) per choice."""
        ...


@dataclass(frozen=True, slots=True)
class Head:
    """What all pieces of one response share."""

    response_id: str
    model: str
    created: int
    chat: bool

    def fields(self, *, stream: bool) -> dict[str, Any]:
        kind = ("chat.completion.chunk" if stream else "chat.completion") if self.chat else "text_completion"
        return {"id": self.response_id, "object": kind, "created": self.created, "model": self.model}


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int

    def fields(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "completion_tokens": self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


class StreamTemplate:
    """The chunks of one choice: all but the text is fixed."""

    __slots__ = ("_after", "_before", "_first", "_fixed", "_last", "_last_fixed")

    def __init__(self, head: Head, index: int, finish_reason: str) -> None:
        before, after = _split(head, index, None)
        _, last = _split(head, index, finish_reason)
        self._before = b"\r\n" + before
        self._after = after + b"\r\n"
        self._last = last + b"\r\n"
        self._fixed = len(before) + len(after)
        self._last_fixed = len(before) + len(last)
        self._first = sse({**head.fields(stream=True), "choices": [_role_choice(index)]}) if head.chat else b""

    def chunk(self, text: bytes) -> bytes:
        """One HTTP chunk with one event; `text` needs no JSON escape."""
        return b"%x%b%b%b" % (self._fixed + len(text), self._before, text, self._after)

    def first(self, text: bytes, usage: Usage) -> bytes:
        """The same with what precedes the first text: in chats, the role."""
        return self._first + self.chunk(text)

    def last(self, text: bytes) -> bytes:
        """The same with the finish reason."""
        return b"%x%b%b%b" % (self._last_fixed + len(text), self._before, text, self._last)

    def opening(self, usage: Usage) -> bytes:
        """The role alone: for a reply of one token, whose first text is in the last chunk."""
        return self._first


class OpenAIFormat:
    """Chat and completions."""

    def __init__(self, head: Head) -> None:
        self._head = head

    def stream(self, index: int, finish_reason: str) -> StreamTemplate:
        return StreamTemplate(self._head, index, finish_reason)

    def end(self, usage: Usage, *, include_usage: bool) -> bytes:
        return (_usage_event(self._head, usage) if include_usage else b"") + _DONE

    def whole(self, texts: Iterable[tuple[bytes, str]], usage: Usage) -> bytes:
        return _completion(self._head, texts, usage)


def _split(head: Head, index: int, finish_reason: str | None) -> tuple[bytes, bytes]:
    """An event around its text."""
    mark = "@"
    text: dict[str, Any] = {"delta": {"content": mark}} if head.chat else {"text": mark}
    choice = {"index": index, **text, "logprobs": None, "finish_reason": finish_reason}
    if finish_reason:
        choice["stop_reason"] = None
    before, after = split_at_text(_encode({"choices": [choice]}))
    fields = _encode(head.fields(stream=True))[:-1]
    return b"data: " + fields + b"," + before[1:], after + b"\n\n"


def split_at_text(event: bytes) -> tuple[bytes, bytes]:
    """An event around its text, which is `@`."""
    before, _, after = event.partition(b'"@"')
    return before + b'"', b'"' + after


def _role_choice(index: int) -> dict[str, Any]:
    return {"index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}


def in_chunk(data: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def sse(event: dict[str, Any]) -> bytes:
    """One event as one HTTP chunk."""
    return in_chunk(b"data: " + _encode(event) + b"\n\n")


def _usage_event(head: Head, usage: Usage) -> bytes:
    return sse({**head.fields(stream=True), "choices": [], "usage": usage.fields()})


def _completion(head: Head, texts: Iterable[tuple[bytes, str]], usage: Usage) -> bytes:
    """A whole JSON answer; `texts`: (text, finish reason) per choice."""
    choices: list[dict[str, Any]] = []
    for index, (text, finish_reason) in enumerate(texts):
        decoded = text.decode()
        content: dict[str, Any] = (
            {"message": {"role": "assistant", "content": decoded}} if head.chat else {"text": decoded}
        )
        choices.append(
            {"index": index, **content, "logprobs": None, "finish_reason": finish_reason, "stop_reason": None}
        )
    return _encode({**head.fields(stream=False), "choices": choices, "usage": usage.fields()})


def response_head(status: int, headers: Iterable[tuple[str, str]], *, keep_alive: bool) -> bytes:
    """Status line and headers, to the empty line."""
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    lines = [f"HTTP/1.1 {status} {phrase}", *(f"{name}: {value}" for name, value in headers)]
    if not keep_alive:
        lines.append("connection: close")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

"""Watches response bytes go by for usage figures and the end mark. Never holds a byte back, never changes one.

Events may be cut anywhere by the network, also inside a UTF-8 character (O17, O18): an unfinished event waits here,
while its bytes have long gone to the client.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

if TYPE_CHECKING:
    from backends.transport import ResponseHead

_USAGE: Final = re.compile(rb'"usage"\s*:\s*\{')
_DONE: Final = re.compile(rb"^data: ?\[DONE\]", re.MULTILINE)
_MAX_CARRY_BYTES: Final = 1 << 20
_MAX_JSON_BYTES: Final = 8 << 20


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    """What the engine says a request took. `cached_tokens` is None where it does not report them."""

    prompt_tokens: int = 0
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None

    @property
    def cached_tokens(self) -> int | None:
        return self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details else None


class _HasUsage(msgspec.Struct):
    usage: Usage | None = None


_DECODER: Final = msgspec.json.Decoder(_HasUsage)


def _decode_usage(text: bytes) -> Usage | None:
    try:
        return _DECODER.decode(text).usage
    except (msgspec.MsgspecError, RecursionError):
        return None


class Observer(Protocol):
    @property
    def usage(self) -> Usage | None: ...

    @property
    def chunks(self) -> int:
        """Events with a payload: about the number of tokens, where no usage is reported."""
        ...

    @property
    def at_boundary(self) -> bool:
        """No event is half sent: another one may follow."""
        ...

    @property
    def done(self) -> bool:
        """The end mark was seen, or the kind of answer has none."""
        ...

    def feed(self, data: bytes) -> None: ...

    def finish(self) -> None:
        """The body is complete."""
        ...


class StreamObserver:
    """Server-sent events."""

    __slots__ = ("_carry", "chunks", "done", "usage")

    def __init__(self) -> None:
        self._carry = b""
        self.usage: Usage | None = None
        self.chunks = 0
        self.done = False

    @property
    def at_boundary(self) -> bool:
        return not self._carry

    def feed(self, data: bytes) -> None:
        if self._carry:
            data = self._carry + data
            self._carry = b""
        if not data.endswith((b"\n\n", b"\r\n\r\n", b"\r\r")):
            last, last_crlf = data.rfind(b"\n\n"), data.rfind(b"\r\n\r\n")
            end = max(last + 2 if last >= 0 else 0, last_crlf + 4 if last_crlf >= 0 else 0)
            # over the bound only the tail is kept, enough to see where the event ends
            self._carry = data[end:] if len(data) - end <= _MAX_CARRY_BYTES else data[-4:]
            data = data[:end]
        self._read(data)

    def _read(self, data: bytes) -> None:
        self.chunks += data.count(b"data:")
        if b"[DONE]" in data and _DONE.search(data):
            self.done = True
            self.chunks -= 1
        if b'"usage"' in data and _USAGE.search(data):
            self._read_usage(data)

    def _read_usage(self, data: bytes) -> None:
        for line in data.splitlines():
            if line.startswith(b"data:") and _USAGE.search(line):
                usage = _decode_usage(line[5:])
                if usage is not None:
                    self.usage = usage

    def finish(self) -> None:
        self._read(self._carry)  # some servers leave the last blank line out
        self._carry = b""


class JsonObserver:
    """One JSON document."""

    __slots__ = ("_parts", "_size", "chunks", "usage")

    at_boundary = False
    done = True

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0
        self.usage: Usage | None = None
        self.chunks = 0

    def feed(self, data: bytes) -> None:
        self._size += len(data)
        if self._size <= _MAX_JSON_BYTES:
            self._parts.append(data)
        else:
            self._parts.clear()

    def finish(self) -> None:
        if self._size <= _MAX_JSON_BYTES:
            self.usage = _decode_usage(b"".join(self._parts))
        self._parts.clear()


class Blind:
    """Compressed or foreign bodies: passed on unread."""

    __slots__ = ()

    usage = None
    chunks = 0
    at_boundary = False
    done = True

    def feed(self, data: bytes) -> None:
        pass

    def finish(self) -> None:
        pass


def observer_for(head: ResponseHead) -> Observer:
    """Who can read this response."""
    if head.compressed:
        return Blind()
    content_type = head.content_type
    if content_type.startswith(b"text/event-stream"):
        return StreamObserver()
    if content_type.startswith(b"application/json") and head.status == 200:
        return JsonObserver()
    return Blind()

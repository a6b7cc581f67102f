"""Watches response bytes go by for usage figures and the end mark. Never holds a byte back, never changes one.

Events may be cut anywhere by the network, also inside a UTF-8 character (O17, O18): an unfinished event waits here,
while its bytes have long gone to the client. What an event means is the business of each dialect.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from backends.transport import ResponseHead

_MAX_CARRY_BYTES: Final = 1 << 20
MAX_JSON_BYTES: Final = 8 << 20


class Usage(NamedTuple):
    """What the engine says a request took. None where it does not report them."""

    prompt_tokens: int = 0
    """Those found in the cache included."""
    completion_tokens: int | None = None
    cached_tokens: int | None = None


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

    @property
    def answer_id(self) -> str | None:
        """The answer's own id, where later requests may name it."""
        ...

    def feed(self, data: bytes) -> None: ...

    def finish(self) -> None:
        """The body is complete."""
        ...


class StreamObserver(ABC):
    """Server-sent events, of whatever dialect."""

    __slots__ = ("_carry", "chunks", "done", "usage")

    answer_id: str | None = None

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

    @abstractmethod
    def _read(self, data: bytes) -> None:
        """Whole events, any number of them."""

    def finish(self) -> None:
        self._read(self._carry)  # some servers leave the last blank line out
        self._carry = b""


class JsonObserver:
    """One JSON document, read by `read` when it is complete. Longer ones than `max_bytes` pass unread."""

    __slots__ = ("_max_bytes", "_parts", "_read", "_size", "answer_id", "chunks", "usage")

    at_boundary = False
    done = True

    def __init__(
        self, read: Callable[[bytes], tuple[Usage | None, str | None]], max_bytes: int = MAX_JSON_BYTES
    ) -> None:
        self._read = read
        self._max_bytes = max_bytes
        self._parts: list[bytes] = []
        self._size = 0
        self.usage: Usage | None = None
        self.answer_id: str | None = None
        self.chunks = 0

    def feed(self, data: bytes) -> None:
        self._size += len(data)
        if self._size <= self._max_bytes:
            self._parts.append(data)
        else:
            self._parts.clear()

    def finish(self) -> None:
        if self._size <= self._max_bytes:
            self.usage, self.answer_id = self._read(b"".join(self._parts))
        self._parts.clear()


class Blind:
    """Compressed or foreign bodies: passed on unread."""

    __slots__ = ()

    usage = None
    answer_id = None
    chunks = 0
    at_boundary = False
    done = True

    def feed(self, data: bytes) -> None:
        pass

    def finish(self) -> None:
        pass


def choose_observer(
    head: ResponseHead, of_stream: Callable[[], Observer], of_document: Callable[[], Observer]
) -> Observer:
    """Who can read this response."""
    if head.compressed:
        return Blind()
    content_type = head.content_type
    if content_type.startswith(b"text/event-stream"):
        return of_stream()
    if content_type.startswith(b"application/json") and head.status == 200:
        return of_document()
    return Blind()


def data_lines(events: bytes, mark: bytes) -> Iterator[bytes]:
    """What stands on the `data` lines that hold `mark`."""
    for line in events.splitlines():
        if line.startswith(b"data:") and mark in line:
            yield line[5:]

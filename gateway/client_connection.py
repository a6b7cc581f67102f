"""One client connection, below its requests: admitted or not, read strictly, bounded, watched, and told the last word.

Invariants: what a client sends beyond a bound, or slower than it may, ends this connection and touches no other; an
answer that was begun is never interrupted by a refusal of what came behind it; after a refusal nothing more is read.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.connections import TIMEOUT_REASONS, bytes_taken
from gateway.dialects.openai import OpenAI
from gateway.headers import response_head
from gateway.strict import head_too_large_text
from vocabulary.errors import (
    BadHttp,
    BodyTooLarge,
    HeadTooLarge,
    RequestFailed,
    RequestTimeout,
    TooManyConnections,
)

if TYPE_CHECKING:
    import asyncio

    from gateway.app import Gateway
    from gateway.connections import CloseReason, Connections, Wait
    from gateway.exchange import Exchange

_WRITE_BUFFER_BYTES: Final = 256 * 1024
_MAX_FRAMING_PER_BYTE: Final = 16
"""A body in chunks of one byte each has 5."""

# Where in a request the parser is. Plain ints: looked at for every read.
BETWEEN: Final = 0
HEAD: Final = 1
BODY: Final = 2


class _AfterLastWord(Exception):
    """Stops the parser in the middle of a read."""


def _bare_answer(error: RequestFailed) -> bytes:
    """To a request that never became one."""
    body = OpenAI().error_body(error)
    own = b"content-type: application/json\r\n"
    if error.retry_after_s is not None:
        own += b"retry-after: %d\r\n" % max(1, math.ceil(error.retry_after_s))
    framing = b"content-length: %d\r\nconnection: close\r\n" % len(body)
    return response_head(error.status, b"", own, framing) + body


def _reason(error: RequestFailed) -> CloseReason:
    if isinstance(error, HeadTooLarge):
        return "headers_too_large"
    return "body_too_large" if isinstance(error, BodyTooLarge) else "bad_http"


class ClientConnection(HttpToolsProtocol):
    """A subclass binds `gateway`, and `watch`: the connections that it is one of."""

    gateway: Gateway
    watch: Connections

    # The initial state stands here: most connections change little of it.
    _content_length: bytes | None = None
    _reading: Exchange | None = None
    """Whose body is coming in."""
    _plain_bytes = 0
    """Of the body that is coming in, where that request is not a hot one."""
    _stage = BETWEEN
    _messages = 0
    """Begun so far."""
    _bounded_message = 0
    _bounded_body_bytes = 0
    _unfinished_bytes = 0
    """Of a head that comes in pieces, or of the framing of a body: see `_bound`."""
    _last_word: RequestFailed | None = None
    """What came last cannot be served: told after the answers before it, and nothing is read any more."""
    _deaf = False
    """What the client still sends is thrown away."""
    _lingering = False
    """Answered for the last time; the client may read that and close."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        if not self.watch.admit(self) and not transport.is_closing():
            most = self.watch.limits.max_connections
            text = f"there are as many connections as this listener takes ({most}, see listen.max_connections)"
            transport.write(_bare_answer(TooManyConnections(text)))
            self._linger()

    def connection_lost(self, exc: Exception | None) -> None:
        self.watch.discard(self)
        super().connection_lost(exc)
        self.cycle = None  # type: ignore[assignment]  # they name each other: freed by counting, not by the collector

    def abort(self) -> None:
        self.transport.abort()

    # Reading.

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        try:
            self.parser.feed_data(data)
        except (httptools.HttpParserUpgrade, httptools.HttpParserError) as error:
            self._stopped_in(data, error)
        if self._stage != BETWEEN and not self._deaf:
            self._bound(len(data))

    def _stopped_in(self, data: bytes, error: Exception) -> None:
        """The parser did not come to the end of what was read."""
        rest: bytes | memoryview = data
        offer_ends = self._reason_to_stop(error)
        while offer_ends is not None:
            # the parser takes what follows for another protocol (h2c, as Java's HttpClient offers): the offer is
            # declined by reading the head again without it
            rest = memoryview(data)[len(data) - len(rest) + offer_ends :]
            if self._feed(self._head_without_upgrade()) is not None:  # CONNECT
                self._give_up(BadHttp("the request is not valid HTTP/1.1"), "bad_http")
                return
            offer_ends = self._feed(rest)

    def _feed(self, data: bytes | memoryview) -> int | None:
        """How far the parser came where it met an offer to upgrade, else None."""
        try:
            self.parser.feed_data(data)
        except (httptools.HttpParserUpgrade, httptools.HttpParserError) as error:
            return self._reason_to_stop(error)
        return None

    def _reason_to_stop(self, error: Exception) -> int | None:
        """Where an offer to upgrade ends; None for all else, which is dealt with."""
        if isinstance(error, httptools.HttpParserUpgrade):
            return int(error.args[0])
        if not self._deaf:
            self._stopped_by(error)
        return None

    def _stopped_by(self, error: Exception) -> None:
        cause = error.__context__ if isinstance(error, httptools.HttpParserCallbackError) else None
        if isinstance(cause, RequestFailed):
            self._give_up(cause, _reason(cause))
        elif cause is None or isinstance(cause, httptools.HttpParserError):
            self._give_up(BadHttp("the request is not valid HTTP/1.1"), "bad_http")
        else:  # a fault of ours
            self.gateway.log.error("request_failed", error=type(cause).__name__, endpoint="none")
            self._give_up(RequestFailed("the gateway failed to handle this request"), "bad_http")

    def _head_without_upgrade(self) -> bytes:
        lines = [b"%b: %b\r\n" % pair for pair in self.headers if pair[0] != b"upgrade"]
        if self._content_length is not None:
            lines.append(b"content-length: %b\r\n" % self._content_length)
        version = self.parser.get_http_version().encode()
        return b"%b %b HTTP/%b\r\n%b\r\n" % (self.parser.get_method(), self.url, version, b"".join(lines))

    def on_message_begin(self) -> None:
        if self._deaf:
            raise _AfterLastWord
        self._stage = HEAD
        self._messages += 1
        self.url = b""
        self.headers = []
        self._content_length = None
        self.expect_100_continue = False

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"content-length":
            self._content_length = value  # apart: it differs where all else is as in the request before
            return
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def _bound(self, size: int) -> None:
        """After a read of `size` bytes that did not complete a message: a head must not go on and on, nor what is
        around the bytes of a body (sizes, extensions and trailers), which nobody keeps but the parser."""
        body_bytes = self._plain_bytes if self._reading is None else self._reading.size
        if self._bounded_message != self._messages:  # began somewhere in this read: what follows is counted
            self._bounded_message = self._messages
            self._unfinished_bytes = 0
        else:
            paid = _MAX_FRAMING_PER_BYTE * (body_bytes - self._bounded_body_bytes) if self._stage == BODY else 0
            self._unfinished_bytes = max(0, self._unfinished_bytes + size - paid)
        self._bounded_body_bytes = body_bytes
        most = self.watch.limits.max_head_bytes
        if self._stage == HEAD and self._unfinished_bytes > most:
            self._give_up(HeadTooLarge(head_too_large_text(most)), "headers_too_large")
        elif self._unfinished_bytes > 2 * most:  # a head within the bound may have gone before
            self._give_up(BadHttp("the request body has too much framing"), "bad_http")

    # Watching.

    def waits_for(self) -> tuple[Wait, object]:
        if self.transport.get_write_buffer_size():
            return "write", bytes_taken(self.transport)
        if self._lingering:
            return "linger", None
        cycle: Any = self.cycle
        answering = cycle is not None and not cycle.response_complete
        if self._stage == BODY and not self.flow.read_paused and (not answering or self._is_its_turn(cycle)):
            size = self._plain_bytes if self._reading is None else self._reading.size
            return "body", (self._messages, size)
        if answering:
            return "nothing", None
        if self._stage == HEAD or cycle is None:
            return "head", self._messages
        return "keep_alive", self._messages

    def _is_its_turn(self, cycle: Any) -> bool:
        return not self.pipeline if self._reading is None else bool(cycle.turn)

    def overdue(self, wait: Wait) -> None:
        if wait == "linger":
            self.transport.close()
            return
        reason = TIMEOUT_REASONS[wait]
        limits = self.watch.limits
        if wait == "write":
            self.watch.count_closed(reason)
            self.transport.abort()
        elif self._stage == BETWEEN:
            self.watch.count_closed(reason)
            self.transport.close()
        elif wait == "head":
            text = f"the request head was not complete within listen.header_timeout_s ({limits.header_timeout_s:g} s)"
            self._give_up(RequestTimeout(text), reason)
        else:
            text = f"the request body paused for longer than listen.body_timeout_s ({limits.body_timeout_s:g} s)"
            self._give_up(RequestTimeout(text), reason)

    # Refusing.

    def _give_up(self, error: RequestFailed, reason: CloseReason) -> None:
        """What comes from here on is read no more."""
        self._deaf = True
        self._last_word = error
        self.watch.count_closed(reason)
        self._say_last_word()

    def _say_last_word(self) -> None:
        """Once it is its turn: never into the middle of another request's answer."""
        error = self._last_word
        cycle: Any = self.cycle
        if error is None or self.transport.is_closing():
            return
        answered = cycle is None or cycle.response_complete
        reading = self._reading
        if reading is not None and reading is cycle and reading.turn and not answered:
            self._last_word = None
            reading.keep_alive = False
            reading.refuse(error)
        elif answered:
            self._last_word = None
            if cycle is None or self._stage != BODY:  # else that request has its answer already
                self.transport.write(_bare_answer(error))
            self._linger()
        elif reading is None and self._stage == BODY and not self.pipeline:
            self._last_word = None
            cycle.disconnected = True
            cycle.message_event.set()
            if not cycle.response_started:
                self.transport.write(_bare_answer(error))
            self._linger()

    def _linger(self) -> None:
        """Answered for the last time, but the client is still sending: closing now would be a reset, which takes the
        answer with it."""
        if self.transport.is_closing():
            return
        self._deaf = self._lingering = True
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()

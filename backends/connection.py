"""One socket to a backend, and the call that it carries.

Invariants: a connection belongs to one call or to nobody; a call that ends, in whatever way, tells its pool exactly
once; a cancelled call closes its socket in the same loop turn, in every phase.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol, cast

from backends.response import ResponseReader
from vocabulary.errors import UpstreamError, UpstreamProtocolError, UpstreamReset, UpstreamTruncated

if TYPE_CHECKING:
    from backends.transport import ResponseSink

# Phases of a call. Plain ints: a member of an enum costs 80 ns at each look in Python 3.11, and these are looked at per
# streamed chunk.
CONNECTING: Final = 0
WAITING: Final = 1
STREAMING: Final = 2
DONE: Final = 3


class Owner(Protocol):
    """What calls and connections need of the pool that they are of."""

    loop: asyncio.AbstractEventLoop

    def connect(self, call: PooledCall) -> None:
        """Take a new connection for it."""
        ...

    def finished(self, call: PooledCall) -> None:
        """The call has ended."""
        ...

    def keep(self, connection: Connection) -> None:
        """The connection may be used again."""
        ...

    def forget(self, connection: Connection) -> None:
        """The connection is closed."""
        ...


class PooledCall:
    """One request under way in a pool (the `Call` of the transport seam)."""

    __slots__ = (
        "_pool",
        "body",
        "connecting",
        "connection",
        "head",
        "last_byte_s",
        "paused",
        "phase",
        "retried",
        "sink",
    )

    def __init__(self, pool: Owner, head: bytes, body: bytes, sink: ResponseSink) -> None:
        self._pool = pool
        self.head = head
        self.body = body
        self.sink = sink
        self.connection: Connection | None = None
        self.connecting: asyncio.Task[None] | None = None
        self.phase = CONNECTING
        self.last_byte_s = 0.0
        self.paused = False
        self.retried = False

    def cancel(self) -> None:
        if self.phase == DONE:
            return
        self._pool.finished(self)
        if self.connecting is not None:
            self.connecting.cancel()
        if self.connection is not None:
            self.connection.drop()

    def pause(self) -> None:
        if not self.paused and self.phase != DONE:
            self.paused = True
            if self.connection is not None:
                self.connection.pause_reading()

    def resume(self) -> None:
        if self.paused:
            self.paused = False
            if self.connection is not None:
                # silence that the reader caused is not the backend's
                self.last_byte_s = self._pool.loop.time()
                self.connection.resume_reading()

    def fail(self, error: UpstreamError) -> None:
        if self.phase != DONE:
            self._pool.finished(self)
            self.sink.on_error(error)


class Connection(asyncio.Protocol):
    """One socket to the backend."""

    __slots__ = ("_paused", "_pool", "_response", "_reused", "call", "idle_since_s", "transport")

    def __init__(self, pool: Owner) -> None:
        self._pool = pool
        self.transport: asyncio.Transport | None = None
        self.call: PooledCall | None = None
        self.idle_since_s = 0.0
        self._reused = False
        self._paused = False
        self._response = ResponseReader()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's own class is no subclass of it

    def start(self, call: PooledCall, *, reused: bool) -> None:
        transport = self.transport
        assert transport is not None
        self.call = call
        self._reused = reused
        self._response.reset()
        call.connection = self
        call.phase = WAITING
        call.last_byte_s = self._pool.loop.time()
        if call.paused:
            self.pause_reading()
        if len(call.body) < 65536:
            transport.write(call.head + call.body)
        else:
            transport.write(call.head)
            transport.write(call.body)

    def data_received(self, data: bytes) -> None:
        call = self.call
        if call is None:  # bytes that nobody asked for on an idle connection: it cannot be trusted any more
            self.drop()
            return
        response = self._response
        try:
            response.feed(data)
        except UpstreamProtocolError as error:
            self.drop()
            call.fail(error)
            return
        sink = call.sink
        body = response.take_body()
        if call.phase == WAITING:
            if (head := response.take_head()) is None:
                return  # nor does a head that dribbles in put off the first byte's timeout
            call.phase = STREAMING
            call.last_byte_s = self._pool.loop.time()
            call.head = call.body = b""  # may be large, and will not be sent again
            sink.on_head(head, body)
        elif body:
            call.last_byte_s = self._pool.loop.time()
            sink.on_data(body)
        if response.complete and self.call is call:
            self._complete(call)

    def _complete(self, call: PooledCall) -> None:
        self.call = None
        transport = self.transport
        assert transport is not None
        response = self._response
        # unsent request bytes (an early answer) would be read as the next request
        reusable = response.should_keep_alive() and transport.get_write_buffer_size() == 0
        self._pool.finished(call)
        if reusable and not transport.is_closing():
            self.resume_reading()
            self._pool.keep(self)
        else:
            self.drop()
        call.sink.on_end(response.trailers)

    def drop(self) -> None:
        """Close the socket now; the call, if any, hears nothing from this connection any more."""
        self.call = None
        self._pool.forget(self)
        if self.transport is not None:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        call, self.call = self.call, None
        self._pool.forget(self)
        if call is None:
            return
        response = self._response
        call.connection = None
        if response.ends_with_connection and exc is None:
            self._pool.finished(call)
            call.sink.on_end([])
        elif response.head_seen:
            call.fail(UpstreamTruncated("the backend's connection ended inside the response"))
        elif self._reused and not response.begun and not call.retried:
            call.retried = True  # a keep-alive connection that had died unnoticed: once more, on a new one (O65)
            self._pool.connect(call)
        else:
            call.fail(UpstreamReset("the backend closed the connection before it answered"))

    def pause_reading(self) -> None:
        if not self._paused and self.transport is not None and not self.transport.is_closing():
            self._paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        if self._paused and self.transport is not None:
            self._paused = False
            if not self.transport.is_closing():
                self.transport.resume_reading()

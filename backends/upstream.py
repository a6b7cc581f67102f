"""HTTP/1.1 to one backend: a keep-alive pool on asyncio + httptools. Callbacks only: a warm connection needs no task.

Invariants: a connection belongs to one call or to the idle list, never to both; every way a call can end passes
`Pool.finished` exactly once; a cancelled call closes its socket in the same loop turn, in every phase.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from backends.response import ResponseReader
from vocabulary.errors import (
    UpstreamConnectError,
    UpstreamConnectTimeout,
    UpstreamError,
    UpstreamFirstByteTimeout,
    UpstreamIdleTimeout,
    UpstreamProtocolError,
    UpstreamReset,
    UpstreamTruncated,
)

if TYPE_CHECKING:
    import ssl

    from backends.transport import ResponseSink, UpstreamRequest


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a backend listens and how it is spoken to."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None
    authorization: str | None = None
    """Value of the Authorization header that this backend gets; None sends none."""

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        default_port = 443 if self.tls else 80
        return host if self.port == default_port else f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds. Long read defaults: an engine that computes is silent (O75), and no total timeout at all (O76)."""

    connect_timeout_s: float = 5.0
    first_byte_timeout_s: float = 600.0
    idle_timeout_s: float = 600.0
    keepalive_idle_s: float = 60.0
    max_idle_connections: int = 256

    @property
    def sweep_interval_s(self) -> float:
        return max(0.01, min(1.0, min(self.first_byte_timeout_s, self.idle_timeout_s, self.keepalive_idle_s) / 4))


# Phases of a call. Plain ints: a member of an enum costs 80 ns at each look in Python 3.11, and these are looked at per
# streamed chunk.
_CONNECTING: Final = 0
_WAITING: Final = 1
_STREAMING: Final = 2
_DONE: Final = 3


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

    def __init__(self, pool: Pool, head: bytes, body: bytes, sink: ResponseSink) -> None:
        self._pool = pool
        self.head = head
        self.body = body
        self.sink = sink
        self.connection: _Connection | None = None
        self.connecting: asyncio.Task[None] | None = None
        self.phase = _CONNECTING
        self.last_byte_s = 0.0
        self.paused = False
        self.retried = False

    def cancel(self) -> None:
        if self.phase == _DONE:
            return
        self._pool.finished(self)
        if self.connecting is not None:
            self.connecting.cancel()
        if self.connection is not None:
            self.connection.drop()

    def pause(self) -> None:
        if not self.paused and self.phase != _DONE:
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
        if self.phase != _DONE:
            self._pool.finished(self)
            self.sink.on_error(error)


class _Connection(asyncio.Protocol):
    """One socket to the backend."""

    __slots__ = ("_paused", "_pool", "_response", "_reused", "call", "idle_since_s", "transport")

    def __init__(self, pool: Pool) -> None:
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
        call.phase = _WAITING
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
        call.last_byte_s = self._pool.loop.time()
        response = self._response
        try:
            response.feed(data)
        except UpstreamProtocolError as error:
            self.drop()
            call.fail(error)
            return
        sink = call.sink
        body = response.take_body()
        if call.phase == _WAITING:
            if (head := response.take_head()) is None:
                return
            call.phase = _STREAMING
            sink.on_head(head, body)
        elif body:
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


class Pool:
    """Keep-alive connections to one backend (the seam's `Upstream`). Idle ones are used last in, first out."""

    def __init__(self, endpoint: Endpoint, timeouts: Timeouts, loop: asyncio.AbstractEventLoop) -> None:
        self.endpoint = endpoint
        self.loop = loop
        self._timeouts = timeouts
        self._idle: list[_Connection] = []
        self._connections: set[_Connection] = set()
        self._calls: set[PooledCall] = set()
        self._connects: set[asyncio.Task[None]] = set()
        self._closing = False
        self._drained = asyncio.Event()
        self._sweep = loop.call_later(timeouts.sweep_interval_s, self._sweeper)
        authorization = f"authorization: {endpoint.authorization}\r\n" if endpoint.authorization else ""
        self._common = f"host: {endpoint.authority}\r\n{authorization}".encode("latin-1")

    @property
    def active(self) -> int:
        """Calls under way, connecting ones included."""
        return len(self._calls)

    @property
    def idle(self) -> int:
        return len(self._idle)

    @property
    def sockets(self) -> int:
        return len(self._connections)

    def send(self, request: UpstreamRequest, sink: ResponseSink) -> PooledCall:
        """Send on an idle connection if there is one, else on a new one; errors of any kind go to the sink."""
        head = b"%b %b HTTP/1.1\r\n%b%bcontent-length: %d\r\n\r\n" % (
            request.method,
            request.target,
            self._common,
            request.header_lines,
            len(request.body),
        )
        call = PooledCall(self, head, request.body, sink)
        self._calls.add(call)
        idle = self._idle
        while idle:
            connection = idle.pop()
            if connection.transport is not None and not connection.transport.is_closing():
                connection.start(call, reused=True)
                return call
        self.connect(call)
        return call

    def connect(self, call: PooledCall) -> None:
        call.phase = _CONNECTING
        call.connecting = task = self.loop.create_task(self._connect(call))
        self._connects.add(task)
        task.add_done_callback(self._connects.discard)

    async def _connect(self, call: PooledCall) -> None:
        connection = _Connection(self)
        endpoint = self.endpoint
        server_hostname = endpoint.host if endpoint.tls else None
        try:
            async with asyncio.timeout(self._timeouts.connect_timeout_s):
                await self.loop.create_connection(
                    lambda: connection, endpoint.host, endpoint.port, ssl=endpoint.tls, server_hostname=server_hostname
                )
        except TimeoutError:
            call.connecting = None
            call.fail(UpstreamConnectTimeout("connecting to the backend took longer than limits.connect_timeout_s"))
            return
        except asyncio.CancelledError:
            connection.drop()  # the cancel may have come after the socket was made (O06)
            raise
        except Exception as error:  # the root of this task: OSError by far, but nobody else would tell the sink
            call.connecting = None
            call.fail(UpstreamConnectError(f"no connection to the backend ({type(error).__name__})"))
            return
        call.connecting = None
        if call.phase == _DONE:
            connection.drop()
            return
        self._connections.add(connection)
        connection.start(call, reused=False)

    def finished(self, call: PooledCall) -> None:
        call.phase = _DONE
        self._calls.discard(call)
        if self._closing and not self._calls:
            self._drained.set()

    def keep(self, connection: _Connection) -> None:
        if self._closing or len(self._idle) >= self._timeouts.max_idle_connections:
            connection.drop()
            return
        connection.idle_since_s = self.loop.time()
        self._idle.append(connection)

    def forget(self, connection: _Connection) -> None:
        self._connections.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def _sweeper(self) -> None:
        """All timeouts but connect's: one pass a second instead of a timer per request."""
        now_s = self.loop.time()
        timeouts = self._timeouts
        for call in list(self._calls):
            if call.paused:
                continue
            waited_s = now_s - call.last_byte_s
            if call.phase == _WAITING and waited_s > timeouts.first_byte_timeout_s:
                self._time_out(call, UpstreamFirstByteTimeout("no response within limits.first_byte_timeout_s"))
            elif call.phase == _STREAMING and waited_s > timeouts.idle_timeout_s:
                self._time_out(call, UpstreamIdleTimeout("the response paused for longer than limits.idle_timeout_s"))
        for connection in [c for c in self._idle if now_s - c.idle_since_s > timeouts.keepalive_idle_s]:
            connection.drop()
        self._sweep = self.loop.call_later(timeouts.sweep_interval_s, self._sweeper)

    def _time_out(self, call: PooledCall, error: UpstreamError) -> None:
        if call.connection is not None:
            call.connection.drop()
        call.fail(error)

    async def close(self) -> None:
        """Idle connections go at once; returns when the last running call has ended (O07)."""
        self._closing = True
        for connection in list(self._idle):
            connection.drop()
        if self._calls:
            await self._drained.wait()
        self._sweep.cancel()
        if self._connects:
            await asyncio.wait(self._connects)

    def abort(self) -> None:
        """End every call and connection now; running calls fail as reset."""
        for call in list(self._calls):
            if call.connecting is not None:
                call.connecting.cancel()
            if call.connection is not None:
                call.connection.drop()
            call.fail(UpstreamReset("the gateway is closing"))

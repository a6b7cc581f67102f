"""HTTP/1.1 to one backend: a keep-alive pool on asyncio + httptools. Callbacks only: a warm connection needs no task.

Invariant: every call that was sent is in `_calls` until it passes `finished`, and idle connections are in no call.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from backends.addresses import unsafe
from backends.connection import CONNECTING, DONE, STREAMING, WAITING, Connection, PooledCall
from backends.local_errors import is_local
from vocabulary.errors import (
    LocalResourceError,
    UpstreamConnectError,
    UpstreamConnectTimeout,
    UpstreamError,
    UpstreamFirstByteTimeout,
    UpstreamIdleTimeout,
    UpstreamReset,
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
    server_hostname: str | None = None
    """Name in its certificate and in the Host header, where `host` is only the IP address behind that name."""

    @property
    def authority(self) -> str:
        """What is connected to."""
        return self._with_port(self.host)

    @property
    def host_header(self) -> str:
        return self._with_port(self.server_hostname or self.host)

    def _with_port(self, host: str) -> str:
        host = f"[{host}]" if ":" in host else host
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


def _leads_astray(transport: asyncio.BaseTransport) -> bool:
    """A name may have come to mean a metadata service since it was checked: nothing is said to that."""
    peer = transport.get_extra_info("peername")
    return bool(peer) and unsafe(str(peer[0])) is not None


class Pool:
    """Keep-alive connections to one backend (the seam's `Upstream`). Idle ones are used last in, first out."""

    def __init__(self, endpoint: Endpoint, timeouts: Timeouts, loop: asyncio.AbstractEventLoop) -> None:
        self.endpoint = endpoint
        self.loop = loop
        self._timeouts = timeouts
        self._idle: list[Connection] = []
        self._connections: set[Connection] = set()
        self._calls: set[PooledCall] = set()
        self._connects: set[asyncio.Task[None]] = set()
        self._closing = False
        self._drained = asyncio.Event()
        self._sweep = loop.call_later(timeouts.sweep_interval_s, self._sweeper)
        authorization = f"authorization: {endpoint.authorization}\r\n" if endpoint.authorization else ""
        self._common = f"host: {endpoint.host_header}\r\n{authorization}".encode("latin-1")

    def set_timeouts(self, timeouts: Timeouts) -> None:
        """For running calls too."""
        self._timeouts = timeouts

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

    def heard_within(self, seconds: float) -> bool:
        since_s = self.loop.time() - seconds
        return any(call.phase == STREAMING and call.last_byte_s >= since_s for call in self._calls)

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
        call.phase = CONNECTING
        call.connecting = task = self.loop.create_task(self._connect(call))
        self._connects.add(task)
        task.add_done_callback(self._connects.discard)

    async def _connect(self, call: PooledCall) -> None:
        connection = Connection(self)
        endpoint = self.endpoint
        server_hostname = (endpoint.server_hostname or endpoint.host) if endpoint.tls else None
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
            if is_local(error):
                call.fail(LocalResourceError("the gateway has no file descriptor or port left to reach a backend"))
            else:
                call.fail(UpstreamConnectError(f"no connection to the backend ({type(error).__name__})"))
            return
        call.connecting = None
        if call.phase == DONE:
            connection.drop()
            return
        if connection.transport is not None and _leads_astray(connection.transport):
            connection.drop()
            call.fail(UpstreamConnectError("the backend's name leads to an address that is never called"))
            return
        self._connections.add(connection)
        connection.start(call, reused=False)

    def finished(self, call: PooledCall) -> None:
        call.phase = DONE
        self._calls.discard(call)
        if self._closing and not self._calls:
            self._drained.set()

    def keep(self, connection: Connection) -> None:
        if self._closing or len(self._idle) >= self._timeouts.max_idle_connections:
            connection.drop()
            return
        connection.idle_since_s = self.loop.time()
        self._idle.append(connection)

    def forget(self, connection: Connection) -> None:
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
            if call.phase == WAITING and waited_s > timeouts.first_byte_timeout_s:
                self._time_out(call, UpstreamFirstByteTimeout("no response within limits.first_byte_timeout_s"))
            elif call.phase == STREAMING and waited_s > timeouts.idle_timeout_s:
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

"""The client connections of one gateway: how many there may be, and how long each may keep it waiting.

One pass over all of them now and then, no timer per request. A connection tells what it waits for, and a mark that
changes when its client gets on; seen with the same mark for too long, the client is overdue. So nothing is measured
while requests run, and a time is kept to within two passes.
"""

from __future__ import annotations

import resource
import socket
import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal, Protocol, get_args

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator

    from gateway.config import Config

Wait = Literal["nothing", "head", "body", "keep_alive", "write", "linger"]
"""For a request head (the first one after connecting too), the rest of a body, a next request, the client to read, or
its end once it was told the last word."""

CloseReason = Literal[
    "keep_alive_timeout",
    "header_timeout",
    "body_timeout",
    "write_timeout",
    "too_many_connections",
    "headers_too_large",
    "body_too_large",
    "bad_http",
]
CLOSE_REASONS: Final[tuple[str, ...]] = get_args(CloseReason)
TIMEOUT_REASONS: Final[dict[Wait, CloseReason]] = {
    "head": "header_timeout",
    "body": "body_timeout",
    "keep_alive": "keep_alive_timeout",
    "write": "write_timeout",
}

LINGER_S: Final = 1.0
"""For a client that is still sending to read its last answer: a close at once would be a reset that takes it away."""

MAX_REFUSED: Final = 64
"""Connections over the limit that are told so at a time; further ones are closed without a word."""

_SIDE_CONNECTIONS: Final = 64
_BASE_FILES: Final = 64 + _SIDE_CONNECTIONS
"""Listeners, logs, the loop's own, files that threads read; connections to the admin and metrics addresses."""
_FILES_PER_BACKEND: Final = 4
"""Probes, and connections that are being replaced."""
_MIN_CONNECTIONS: Final = 16
_BYTES_ACKED_AT: Final = 120
"""`tcpi_bytes_acked` of Linux's struct tcp_info (include/uapi/linux/tcp.h)."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    max_connections: int
    max_head_bytes: int
    keep_alive_s: float
    header_timeout_s: float
    body_timeout_s: float
    write_timeout_s: float

    @property
    def sweep_interval_s(self) -> float:
        shortest_s = min(self.keep_alive_s, self.header_timeout_s, self.body_timeout_s, self.write_timeout_s)
        return max(0.01, min(1.0, shortest_s / 4))

    def allowed_s(self, wait: Wait) -> float:
        match wait:
            case "head":
                return self.header_timeout_s
            case "body":
                return self.body_timeout_s
            case "keep_alive":
                return self.keep_alive_s
            case "write":
                return self.write_timeout_s
            case "linger":
                return LINGER_S
            case "nothing":
                return float("inf")


def connection_limits(config: Config, open_files: int | None = None) -> ConnectionLimits:
    """`open_files`: the limit of this process, read from the system unless given."""
    if open_files is None:
        open_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    backends = len(config.backends) + sum(source.max_backends for source in config.discovery)
    listen = config.listen
    return ConnectionLimits(
        max_connections=room_for(
            open_files, backends, backends * config.limits.max_idle_connections, listen.max_connections
        ),
        max_head_bytes=int(listen.max_header_kb * 1000),
        keep_alive_s=listen.keep_alive_s,
        header_timeout_s=listen.header_timeout_s,
        body_timeout_s=listen.body_timeout_s,
        write_timeout_s=listen.write_timeout_s,
    )


def side_limits(limits: ConnectionLimits) -> ConnectionLimits:
    """Of the admin and metrics addresses together: people and scrapers, not clients."""
    return replace(limits, max_connections=_SIDE_CONNECTIONS)


def room_for(open_files: int, backends: int, idle_to_backends: int, wanted: int | None) -> int:
    """Client connections that `open_files` have room for.

    usable = open files - 128 - 64 (refusals) - 4 per backend; the backends' share at most a quarter
    default = (usable - min(idle connections to backends, usable / 4)) / 2: each may have one to a backend
    `wanted` by the operator holds, as far as `usable` goes: they know how many of theirs are idle.
    """
    left = open_files - _BASE_FILES - MAX_REFUSED
    usable = left - min(_FILES_PER_BACKEND * backends, left // 4)
    if wanted is not None:
        return min(wanted, max(_MIN_CONNECTIONS, usable))
    return max(_MIN_CONNECTIONS, (usable - min(idle_to_backends, usable // 4)) // 2)


class Watched(Protocol):
    """What the pass needs of a connection."""

    def waits_for(self) -> tuple[Wait, object]:
        """And a mark that changes when the client gets on."""
        ...

    def overdue(self, wait: Wait) -> None:
        """It has waited for this too long."""
        ...

    def abort(self) -> None: ...


class _Watch:
    __slots__ = ("mark", "since_s", "wait")

    def __init__(self, now_s: float) -> None:
        self.wait: Wait = "nothing"
        self.mark: object = None
        self.since_s = now_s


class Connections:
    """Those that are open. `start` and `stop` bracket the passes."""

    def __init__(
        self,
        limits: ConnectionLimits,
        clock: Callable[[], float],
        loop: asyncio.AbstractEventLoop,
        count_closed: Callable[[CloseReason], None],
    ) -> None:
        self.limits = limits
        self.count_closed = count_closed
        """Called once for each connection that the gateway ends of its own accord."""
        self._clock = clock
        self._loop = loop
        self._admitted: dict[Watched, _Watch] = {}
        self._refused: dict[Watched, _Watch] = {}
        self._next: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._admitted)

    def __iter__(self) -> Iterator[Watched]:
        return iter(self._admitted)

    def apply(self, limits: ConnectionLimits) -> None:
        """For open connections too; none is closed because there may be fewer now."""
        self.limits = limits
        if self._next is not None:
            self._next.cancel()
            self._schedule()

    def admit(self, connection: Watched) -> bool:
        """False: there are too many. One that is refused must be discarded too when it is lost."""
        if len(self._admitted) < self.limits.max_connections:
            self._admitted[connection] = _Watch(self._clock())
            return True
        self.count_closed("too_many_connections")
        if len(self._refused) < MAX_REFUSED:
            self._refused[connection] = _Watch(self._clock())
        else:
            connection.abort()
        return False

    def discard(self, connection: Watched) -> None:
        self._admitted.pop(connection, None)
        self._refused.pop(connection, None)

    def start(self) -> None:
        self._schedule()

    def stop(self) -> None:
        """No pass any more, and every connection is closed."""
        if self._next is not None:
            self._next.cancel()
            self._next = None
        for connection in (*self._admitted, *self._refused):
            connection.abort()

    def _schedule(self) -> None:
        self._next = self._loop.call_later(self.limits.sweep_interval_s, self._pass)

    def _pass(self) -> None:
        now_s = self._clock()
        for connection, watch in (*self._admitted.items(), *self._refused.items()):
            wait, mark = connection.waits_for()
            if wait != watch.wait or mark != watch.mark:
                watch.wait, watch.mark, watch.since_s = wait, mark, now_s
            elif wait != "nothing" and now_s - watch.since_s >= self.limits.allowed_s(wait):
                watch.since_s = now_s
                connection.overdue(wait)
        self._schedule()


def bytes_taken(transport: asyncio.Transport) -> object:
    """A mark of how far the client has read, for a transport with unsent bytes.

    What the kernel sent and the client's kernel acknowledged: with a full window that is what the client took. Where
    the system does not tell, the size of our buffer, which at worst says later that nothing was read: once it is full.
    """
    try:
        info = transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_ACKED_AT + 8)
        return struct.unpack_from("=Q", info, _BYTES_ACKED_AT)[0]
    except (OSError, AttributeError, struct.error):
        return transport.get_write_buffer_size()

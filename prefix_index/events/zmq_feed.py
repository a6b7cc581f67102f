"""The sockets of one engine's KV events: a SUB that hears them, and a DEALER for each replay.

Frames and replay as vLLM 0.33.0 and SGLang 0.5.23 have them (their kv_events.py and disaggregation/kv_events.py). What
arrives stays in ZMQ's own bounded queue until there is time for it: work is done in slices, one per turn of the loop,
and a queue that overflows shows as a gap. Invariant: while a replay runs no live message is read, and nothing is called
after `close`.
"""

from __future__ import annotations

import sys
from time import perf_counter
from typing import TYPE_CHECKING, Final, Protocol

import zmq

if TYPE_CHECKING:
    import asyncio

SLICE_S: Final = 0.0005
_QUEUED_MESSAGES: Final = 10_000
_MAX_MESSAGE_BYTES: Final = 64 << 20
_HEARTBEAT_MS: Final = 5_000
_END: Final = b"\xff" * 8
_SEQUENCE_BYTES: Final = 8


class Receiver(Protocol):
    """Whom a feed tells. All calls come from the loop, one at a time."""

    def connected(self) -> None:
        """The engine's publisher is there, perhaps again: what it sent before was not heard."""
        ...

    def disconnected(self) -> None: ...

    def message(self, sequence: int, payload: bytes) -> None: ...

    def replayed(self, sequence: int, payload: bytes) -> None: ...

    def replay_ended(self) -> None:
        """All that was to be had was told."""
        ...

    def malformed(self) -> None:
        """A message with other frames than the protocol's."""
        ...

    def work(self) -> bool:
        """Do one small step of what messages left to do; False: nothing is left. No message comes before that."""
        ...


class ZmqFeed:
    """`open` and `close` bracket the sockets; at the end of the loop nothing may be open.

    `bind`: the engine connects to us (vLLM does, unless its endpoint contains `*` or `::`).
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        loop: asyncio.AbstractEventLoop,
        receiver: Receiver,
        *,
        endpoint: str,
        replay_endpoint: str | None = None,
        topic: str = "",
        bind: bool = False,
        slice_s: float = SLICE_S,
    ) -> None:
        self._context = context
        self._loop = loop
        self._receiver = receiver
        self._endpoint = endpoint
        self._replay_endpoint = replay_endpoint
        self._topic = topic.encode()
        self._bind = bind
        self._slice_s = slice_s
        self._live: zmq.Socket[bytes] | None = None
        self._monitor: zmq.Socket[bytes] | None = None
        self._replay: zmq.Socket[bytes] | None = None
        self._next: asyncio.Handle | None = None
        self._peers = 0

    @property
    def address(self) -> str:
        """Where it listens or connects, with the real port."""
        assert self._live is not None
        return self._live.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode()  # type: ignore[union-attr]

    @property
    def replays(self) -> bool:
        """Past messages can be asked for."""
        return self._replay_endpoint is not None

    @property
    def replaying(self) -> bool:
        return self._replay is not None

    @property
    def peers(self) -> int:
        """Publishers connected now."""
        return self._peers

    # Life.

    def open(self) -> None:
        """Raises zmq.ZMQError where an address cannot be used."""
        live = self._live = self._context.socket(zmq.SUB)
        try:
            _prepare(live)
            live.setsockopt(zmq.RCVHWM, _QUEUED_MESSAGES)
            live.setsockopt(zmq.SUBSCRIBE, self._topic)
            monitor = self._monitor = live.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
            if self._bind:
                live.bind(self._endpoint)
            else:
                live.connect(self._endpoint)
        except zmq.ZMQError:
            self.close()
            raise
        self._loop.add_reader(monitor.fileno(), self._on_monitor)
        self._loop.add_reader(live.fileno(), self._pump)
        self._loop.call_soon(self._on_monitor)  # its descriptor wakes nobody before the first look
        self._soon()

    def close(self) -> None:
        """Any number of times."""
        if self._next is not None:
            self._next.cancel()
            self._next = None
        monitor, self._monitor = self._monitor, None
        live, self._live = self._live, None
        self.end_replay()
        if live is not None:
            self._loop.remove_reader(live.fileno())
            live.disable_monitor()
            live.close(linger=0)
        if monitor is not None:
            self._loop.remove_reader(monitor.fileno())
            monitor.close(linger=0)
        self._peers = 0

    # Replays.

    def ask_replay(self, start: int) -> None:
        """Ask for all messages from number `start` on; live ones wait meanwhile. One that runs already is given up.

        Raises zmq.ZMQError where the address cannot be used.
        """
        assert self._replay_endpoint is not None
        self.end_replay()
        replay = self._context.socket(zmq.DEALER)
        try:
            _prepare(replay)
            replay.setsockopt(zmq.RCVHWM, 2 * _QUEUED_MESSAGES)  # ROUTER drops what does not fit
            replay.connect(self._replay_endpoint)
            replay.send_multipart((b"", start.to_bytes(_SEQUENCE_BYTES, "big")), zmq.NOBLOCK)
        except zmq.ZMQError:
            replay.close(linger=0)
            raise
        self._replay = replay
        if self._live is not None:
            self._loop.remove_reader(self._live.fileno())
        self._loop.add_reader(replay.fileno(), self._pump)
        self._soon()

    def end_replay(self) -> None:
        """No more of it is read, live messages go on."""
        replay, self._replay = self._replay, None
        if replay is None:
            return
        self._loop.remove_reader(replay.fileno())
        replay.close(linger=0)
        if self._live is not None:
            self._loop.add_reader(self._live.fileno(), self._pump)
            self._soon()

    # From the sockets.

    def _soon(self) -> None:
        """ZMQ's descriptor tells of changes only, so whoever stops before the queue is empty comes back by himself."""
        if self._next is None and self._live is not None:
            self._next = self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """One slice of work: the rest of what was read first, then what is next."""
        if self._next is not None:
            self._next.cancel()
            self._next = None
        until_s = perf_counter() + self._slice_s
        work = self._receiver.work
        while work() or self._receive():
            if perf_counter() >= until_s:
                self._soon()
                return

    def _receive(self) -> bool:
        """Read one message; False: there is none."""
        replay = self._replay
        socket = self._live if replay is None else replay
        if socket is None:
            return False
        try:
            frames = socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return False
        if replay is None:
            self._heard(frames)
        else:
            self._heard_replay(frames)
        return True

    def _heard(self, frames: list[bytes]) -> None:
        if len(frames) == 3 and len(frames[1]) == _SEQUENCE_BYTES:
            self._receiver.message(int.from_bytes(frames[1], "big"), frames[2])
        else:
            self._receiver.malformed()

    def _heard_replay(self, frames: list[bytes]) -> None:
        """[empty, sequence, payload] of older engines, [empty, topic, sequence, payload] of newer ones."""
        if len(frames) not in (3, 4) or frames[0] or len(frames[-2]) != _SEQUENCE_BYTES:
            self._receiver.malformed()
        elif frames[-2] == _END:
            self.end_replay()
            self._receiver.replay_ended()
        else:
            self._receiver.replayed(int.from_bytes(frames[-2], "big"), frames[-1])

    def _on_monitor(self) -> None:
        while (monitor := self._monitor) is not None:
            try:
                event = int.from_bytes(monitor.recv_multipart(zmq.NOBLOCK)[0][:2], sys.byteorder)
            except zmq.Again:
                return
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._peers += 1
                self._receiver.connected()
            elif event == zmq.EVENT_DISCONNECTED and self._peers:
                self._peers -= 1
                if not self._peers:
                    self._receiver.disconnected()


def _prepare(socket: zmq.Socket[bytes]) -> None:
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.IPV6, 1)
    socket.setsockopt(zmq.MAXMSGSIZE, _MAX_MESSAGE_BYTES)
    socket.setsockopt(zmq.RECONNECT_IVL, 100)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 5_000)
    socket.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)  # a host that is gone sends no end of the connection
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 3 * _HEARTBEAT_MS)

"""KV events over ZMQ in the map form of vLLM 0.32: a PUB socket, and a ROUTER socket that replays.

Frames of a batch: topic, 8-byte big-endian sequence from 0 at each engine start, msgpack [timestamp, events, rank].
Replay: a DEALER sends [empty, 8-byte start]; it gets [empty, topic, sequence, payload] for each buffered batch from
there on, then an end mark with sequence -1. Sends never block: a PUB socket drops for slow subscribers.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

import msgspec
import zmq

from backends.engine.cache import BlocksRemoved
from backends.engine.encoding import TOKEN_BYTES, to_ids
from backends.engine.errors import printable
from backends.engine.sequence import BlocksStored

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from backends.engine.core import CacheEvent
    from backends.engine.exchange import Job

BUFFERED_BATCHES: Final = 10_000
_HIGH_WATER: Final = 100_000
_END: Final = (-1).to_bytes(8, "big", signed=True)


class EventPublisher:
    """Owns its ZMQ context and sockets; `close` frees them."""

    def __init__(
        self,
        host: str,
        port: int,
        replay_port: int | None,
        *,
        topic: str,
        block_size: int,
        loop: asyncio.AbstractEventLoop,
        wall_clock: Callable[[], float],
    ) -> None:
        self._topic = topic.encode()
        self._block_size = block_size
        self._wall_clock = wall_clock
        self._loop = loop
        self._sequence = 0
        self._lost = 0
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=BUFFERED_BATCHES)
        self._context = zmq.Context()
        self._replay: zmq.Socket[bytes] | None = None
        self.replay_endpoint: str | None = None
        try:
            self._publish = self._context.socket(zmq.PUB)
            self._publish.set_hwm(_HIGH_WATER)
            self.endpoint = _bind(self._publish, host, port)
            if replay_port is not None:
                self._replay = self._context.socket(zmq.ROUTER)
                self._replay.set_hwm(0)  # the buffer bounds what can be asked
                self.replay_endpoint = _bind(self._replay, host, replay_port)
                loop.add_reader(self._replay.fileno(), self._on_replay)
        except zmq.ZMQError:
            self._context.destroy(linger=0)
            raise

    def publish(self, events: Sequence[CacheEvent]) -> None:
        """One batch; none for no events."""
        if not events:
            return
        batch = [self._wall_clock(), [self._render(event) for event in events], 0]
        payload = msgspec.msgpack.encode(batch)
        sequence, self._sequence = self._sequence, self._sequence + 1
        self._buffer.append((sequence, payload))
        if self._lost:
            self._lost -= 1
        else:
            self._publish.send_multipart((self._topic, sequence.to_bytes(8, "big"), payload), zmq.NOBLOCK)

    def lose(self, count: int) -> None:
        """The next `count` batches reach no subscriber; a replay has them."""
        self._lost = count

    def restart(self) -> None:
        """A new engine process: the sequence starts over and nothing can be replayed."""
        self._sequence = self._lost = 0
        self._buffer.clear()

    def close(self) -> None:
        if self._replay is not None:
            self._loop.remove_reader(self._replay.fileno())
        self._context.destroy(linger=0)

    def _render(self, event: CacheEvent) -> dict[str, Any]:
        if isinstance(event, BlocksStored):
            return self._stored(event)
        if isinstance(event, BlocksRemoved):
            return {"type": "BlockRemoved", "block_hashes": event.hashes, "medium": "GPU", "group_idx": 0}
        return {"type": "AllBlocksCleared"}

    def _stored(self, event: BlocksStored) -> dict[str, Any]:
        job: Job = event.request.payload.job  # type: ignore[attr-defined]
        size = self._block_size * TOKEN_BYTES
        extra: list[list[str] | None] = []
        for block in range(event.first, event.first + event.count):
            keys = [job.adapter] if job.adapter else []
            if job.salt and block == 0:
                keys.append(printable(job.salt))
            extra.append(keys or None)
        return {
            "type": "BlockStored",
            "block_hashes": event.hashes,
            "parent_block_hash": event.parent,
            "token_ids": to_ids(job.ids[event.first * size : (event.first + event.count) * size]),
            "block_size": self._block_size,
            "lora_id": job.adapter_id,
            "medium": "GPU",
            "lora_name": job.adapter or None,
            "extra_keys": extra,
            "group_idx": 0,
            "kv_cache_spec_kind": "full_attention",
        }

    def _on_replay(self) -> None:
        """ZMQ's descriptor reports edges only, so everything there is must be read, also after a send."""
        socket = self._replay
        while socket is not None and not socket.closed and socket.poll(0):
            frames = socket.recv_multipart(zmq.NOBLOCK)
            if len(frames) != 3 or len(frames[2]) != 8:
                continue
            client, start = frames[0], int.from_bytes(frames[2], "big")
            for sequence, payload in self._buffer:
                if sequence >= start:
                    socket.send_multipart((client, b"", self._topic, sequence.to_bytes(8, "big"), payload), zmq.NOBLOCK)
            socket.send_multipart((client, b"", b"", _END, b""), zmq.NOBLOCK)


def _bind(socket: zmq.Socket[bytes], host: str, port: int) -> str:
    socket.setsockopt(zmq.LINGER, 0)
    socket.bind(f"tcp://{host}:{port or '*'}")
    return socket.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode()  # type: ignore[union-attr]

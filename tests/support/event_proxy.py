"""Between an engine's publisher and its subscriber: passes messages on, or loses them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

import zmq

if TYPE_CHECKING:
    from types import TracebackType


class EventProxy:
    """`async with EventProxy(endpoint) as proxy:` publishes at `proxy.endpoint` what comes from `endpoint`."""

    def __init__(self, endpoint: str) -> None:
        self._upstream = endpoint
        self.losing = False
        self.passed = 0
        self.lost = 0

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._sub = self._context.socket(zmq.SUB)
        self._sub.setsockopt(zmq.SUBSCRIBE, b"")
        self._sub.connect(self._upstream)
        self._bind("tcp://127.0.0.1:*")
        self._loop.add_reader(self._sub.fileno(), self._pass)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.remove_reader(self._sub.fileno())
        self._context.destroy(linger=0)

    def break_off(self) -> None:
        """The subscriber's connection ends; it may come again."""
        self._pub.unbind(self.endpoint)
        self._pub.close(linger=0)

    async def come_back(self) -> None:
        async with asyncio.timeout(10):
            while True:
                try:
                    self._bind(self.endpoint)
                    return
                except zmq.ZMQError:
                    await asyncio.sleep(0.01)

    def _bind(self, endpoint: str) -> None:
        self._pub = self._context.socket(zmq.PUB)
        self._pub.bind(endpoint)
        self.endpoint = self._pub.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode()  # type: ignore[union-attr]

    def _pass(self) -> None:
        while True:
            try:
                frames = self._sub.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if self.losing or self._pub.closed:
                self.lost += 1
            else:
                self.passed += 1
                self._pub.send_multipart(frames, zmq.NOBLOCK)

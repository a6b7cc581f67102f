"""A simulated engine as a whole: `serve` for a process of its own, `SimulatedEngine` inside another one."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Self

from backends.engine.encoding import BytesEncoding, Encoding
from backends.engine.events import EventPublisher
from backends.engine.faults import Fault, FaultBoard
from backends.engine.http import Connection
from backends.engine.instance import Instance
from backends.engine.options import EngineOptions
from backends.engine.server import Api
from backends.engine.tokenizer import TokensEncoding

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from backends.engine.core import EngineCore

__all__ = ["EngineOptions", "SimulatedEngine", "serve"]


class SimulatedEngine:
    """`async with SimulatedEngine(options) as engine:` listens from entry to exit, on the running loop."""

    def __init__(self, options: EngineOptions, *, wall_clock: Callable[[], float] = time.time) -> None:
        self.options = options
        self._wall_clock = wall_clock
        self._encoding: Encoding = (
            TokensEncoding(options.tokenizer, options.template) if options.tokenizer is not None else BytesEncoding()
        )
        self._connections: set[Connection] = set()
        self._thaw: asyncio.TimerHandle | None = None
        self._publisher: EventPublisher | None = None
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        options, loop = self.options, asyncio.get_running_loop()
        self._loop = loop
        self.board = FaultBoard(loop.time)
        self._executor = ThreadPoolExecutor(1, "engine-encode")
        try:
            if options.kv_events_port is not None:
                self._publisher = EventPublisher(
                    options.host,
                    options.kv_events_port,
                    options.kv_events_replay_port,
                    topic=options.kv_events_topic,
                    block_size=options.block_size,
                    loop=loop,
                    wall_clock=self._wall_clock,
                )
            self._instance = self._new_instance()
            self._api = Api(
                options, self._encoding, self._executor, self.board, lambda: self._instance, self._apply_fault
            )
            self._server = await loop.create_server(
                lambda: Connection(self._api, self._connections), options.host, options.port, backlog=1024
            )
        except BaseException:
            self._release()
            raise
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        server = self._server
        if server is None:
            return
        server.close()
        self._instance.pacer.stop()
        try:
            await self._api.aclose()
            await self._drop_connections()
            await server.wait_closed()
        finally:
            self._release()

    @property
    def url(self) -> str:
        """Base address, without a path."""
        return f"http://{self.options.host}:{self.port}"

    @property
    def core(self) -> EngineCore:
        """Of the life that the engine is in now."""
        return self._instance.core

    @property
    def events_endpoint(self) -> str | None:
        """ZMQ address of the PUB socket."""
        return self._publisher.endpoint if self._publisher else None

    @property
    def replay_endpoint(self) -> str | None:
        """ZMQ address of the ROUTER socket."""
        return self._publisher.replay_endpoint if self._publisher else None

    @property
    def connections(self) -> int:
        """Clients connected now."""
        return len(self._connections)

    def restart(self) -> None:
        """A new process as clients see it: connections cut, cold cache, counters at zero, event sequence from 0."""
        self._instance.pacer.stop()
        self._cancel_thaw()
        self.board.end("hang")
        for connection in tuple(self._connections):
            connection.reset()
        if self._publisher is not None:
            self._publisher.restart()
        self._instance = self._new_instance()

    def set_fault(self, kind: str, **fields: object) -> None:
        """As POST /faults. ApiError for what it would refuse."""
        self._apply_fault(Fault.read({"kind": kind, **fields}))

    def _apply_fault(self, fault: Fault) -> None:
        match fault.kind:
            case "clear":
                self._clear_faults()
            case "restart":
                self.restart()
            case "lose_events":
                if self._publisher is not None:
                    self._publisher.lose(fault.count or 1)
            case _:
                self.board.set(fault)
        if fault.kind == "hang":
            self._instance.pacer.freeze()
            self._cancel_thaw()
            if fault.for_s is not None:
                self._thaw = self._loop.call_later(fault.for_s, self._end_hang)

    def _clear_faults(self) -> None:
        self.board.clear()
        if self._publisher is not None:
            self._publisher.lose(0)
        self._end_hang()

    def _end_hang(self) -> None:
        self._cancel_thaw()
        self.board.end("hang")
        self._instance.pacer.thaw()
        self._api.unpark()

    def _cancel_thaw(self) -> None:
        if self._thaw is not None:
            self._thaw.cancel()
            self._thaw = None

    def _new_instance(self) -> Instance:
        return Instance(self.options, self._encoding, self._publisher, self._loop, self._wall_clock)

    async def _drop_connections(self) -> None:
        while self._connections:
            for connection in tuple(self._connections):
                connection.abort()
            await asyncio.sleep(0)

    def _release(self) -> None:
        self._cancel_thaw()
        self._executor.shutdown(cancel_futures=True)
        if self._publisher is not None:
            self._publisher.close()
            self._publisher = None


async def serve(options: EngineOptions, ready: Callable[[int], None] | None = None) -> None:
    """Run one engine until cancelled. `ready` gets the port when it listens."""
    async with SimulatedEngine(options) as engine:
        if ready is not None:
            ready(engine.port)
        await asyncio.Event().wait()

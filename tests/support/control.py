"""A fleet in memory under the control that an operator, a source and a config have of it."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from backends.backend import BackendSpec
from backends.prober import ProbePolicy, Prober
from backends.upstream import Endpoint
from gateway.lifecycle import FleetControl
from gateway.logs import get_logger
from tests.support.fleet import Fleet, NoUpstream
from vocabulary import BackendId

if TYPE_CHECKING:
    from backends.backend import Backend
    from gateway.placement import Placement


class Closing(NoUpstream):
    """Counts how often it was closed, and waits until it may be."""

    def __init__(self) -> None:
        self.closes = 0
        self.may_close = asyncio.Event()
        self.may_close.set()

    async def close(self) -> None:
        await self.may_close.wait()
        self.closes += 1


class Controlled(Fleet):
    def __post_init__(self) -> None:
        super().__post_init__()
        self.prober = Prober(self.registry, ProbePolicy(), self.clock, lambda _: None)
        self.control = FleetControl(
            self.registry, self.prober, self.fleet, self.metrics, self.clock, get_logger("test")
        )

    def spec(self, name: str, port: int = 9, **fields: Any) -> BackendSpec:
        return BackendSpec(BackendId(name), Endpoint("127.0.0.1", port), **{"models": ("m",), **fields})

    def place(self, session: str | None = None, text: str = "hello " * 200, attempt: int = 0) -> Placement:
        headers = [(b"x-session-id", session.encode())] if session else None
        return self.router.place(self.prepare(body(text), headers), attempt)

    def serve(self, session: str | None = None, text: str = "hello " * 200) -> str:
        placement = self.place(session, text)
        self.router.answered(placement, failed=False)
        self.router.settle(placement, None, 3)
        return placement.state.backend

    def series(self, name: str) -> list[str]:
        return [line for line in self.metrics.render().decode().splitlines() if f'backend="{name}"' in line]


def body(text: str) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()


async def rest() -> None:
    """Let the tasks run that can."""
    for _ in range(10):
        await asyncio.sleep(0)


def closing(backend: Backend) -> Closing:
    backend.upstream = upstream = Closing()
    return upstream

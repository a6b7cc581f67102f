from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Protocol

import httpx2
import pytest

from backends.engine.command import EngineOptions, SimulatedEngine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class StartEngine(Protocol):
    async def __call__(self, **options: Any) -> SimulatedEngine: ...


@pytest.fixture
async def start_engine() -> AsyncIterator[StartEngine]:
    """Engines at 1000 times the speed unless asked otherwise; all are down after the test, without clients left."""
    async with AsyncExitStack() as stack:

        async def start(**options: Any) -> SimulatedEngine:
            return await stack.enter_async_context(SimulatedEngine(EngineOptions(**{"speed": 1000.0, **options})))

        yield start


@pytest.fixture
async def http() -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(timeout=20) as client:
        yield client

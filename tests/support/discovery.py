"""Runs a source and keeps what it tells; a sleep that ends when the test says so."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from backends.discovery.protocol import Found, Source


class Ticker:
    """In place of asyncio.sleep. Waits shorter than `free_below_s` are over at once and are not kept."""

    def __init__(self, free_below_s: float = 0.0) -> None:
        self.waits_s: list[float] = []
        self._free_below_s = free_below_s
        self._ticks = asyncio.Semaphore(0)
        self._asleep = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        if seconds < self._free_below_s:
            await asyncio.sleep(0)
            return
        self.waits_s.append(seconds)
        self._asleep.set()
        await self._ticks.acquire()

    async def asleep(self, timeout_s: float = 10.0) -> float:
        """Returns the length of the wait that the source is in, or next begins."""
        async with asyncio.timeout(timeout_s):
            await self._asleep.wait()
        return self.waits_s[-1]

    def end(self) -> None:
        """Ends the wait that is."""
        assert self._asleep.is_set()
        self._asleep.clear()
        self._ticks.release()

    async def tick(self) -> float:
        """Ends the wait; returns the length of the next one, once it has begun."""
        await self.asleep()
        self.end()
        return await self.asleep()


class Watched:
    """What a running source has told so far."""

    def __init__(self) -> None:
        self.reports: list[tuple[Found, ...]] = []
        self.errors: list[Exception] = []
        self._event = asyncio.Event()

    def report(self, found: tuple[Found, ...]) -> None:
        self.reports.append(found)
        self._event.set()

    def failed(self, error: Exception) -> None:
        self.errors.append(error)
        self._event.set()

    async def until(self, condition: Callable[[Watched], bool], timeout_s: float = 10.0) -> None:
        async with asyncio.timeout(timeout_s):
            while not condition(self):
                self._event.clear()
                await self._event.wait()

    @property
    def last(self) -> tuple[Found, ...]:
        return self.reports[-1]

    @property
    def hosts(self) -> list[str]:
        return [found.address.host for found in self.last]

    @property
    def kinds(self) -> list[str]:
        """Class names of the errors."""
        return [type(error).__name__ for error in self.errors]


@contextlib.asynccontextmanager
async def running(source: Source) -> AsyncIterator[Watched]:
    watched = Watched()
    task = asyncio.create_task(source.run(watched.report, watched.failed))
    try:
        yield watched
    finally:
        ended = task.done()
        task.cancel()
        await asyncio.wait([task])
        assert not ended, f"the source ended by itself: {task.exception()!r}"
        assert task.cancelled()

"""Steady load on a gateway, of which no request may fail."""

from __future__ import annotations

import asyncio

from tests.support.gateway import chat
from tests.support.process import client_of


class Load:
    """Clients that ask one request after the other, streams and whole answers, until told to stop. They connect anew
    when the gateway says that it closes."""

    def __init__(self, url: str, clients: int = 4) -> None:
        self._url = url
        self._stop = asyncio.Event()
        self.statuses: list[int] = []
        self.cut = 0
        self._tasks = [asyncio.create_task(self._run(i)) for i in range(clients)]

    async def _run(self, number: int) -> None:
        while not self._stop.is_set():
            async with client_of(self._url) as client:
                closes = False
                while not self._stop.is_set() and not closes:
                    response = await client.ask(chat(f"{number}", stream=number % 2 == 0))
                    self.statuses.append(response.status)
                    await response.read()
                    self.cut += not response.complete
                    closes = response.header("connection") == "close"

    async def some(self, count: int = 50) -> None:
        goal = len(self.statuses) + count
        async with asyncio.timeout(30):
            while len(self.statuses) < goal:
                await asyncio.sleep(0.005)
                assert not any(task.done() for task in self._tasks)

    async def end(self) -> None:
        self._stop.set()
        await asyncio.gather(*self._tasks)
        assert set(self.statuses) == {200}
        assert self.cut == 0

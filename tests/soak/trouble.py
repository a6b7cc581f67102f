"""What goes wrong during a soak, one thing after the other, all of it survivable."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.soak.processes import Engine, Gateway

_PAUSE_S: Final = (2.0, 6.0)


class Trouble:
    """At any time at most one engine is out, so that somebody can always serve."""

    def __init__(self, gateway: Gateway, engines: list[Engine], backends: list[dict[str, Any]], seed: int) -> None:
        self._gateway = gateway
        self._engines = engines
        self._backends = backends
        self._rng = random.Random(seed)
        self.counts: dict[str, int] = {}
        self._kinds: dict[str, Callable[[], Awaitable[None]]] = {
            "engine killed and started again": self._kill,
            "engine frozen for 2 s": self._freeze,
            "config reloaded by file": self._reload,
            "config reloaded by signal": self._signal,
            "config refused": self._nonsense,
            "backend removed and added again": self._remove,
            "backend drained": self._drain,
            "caches flushed": self._flush,
        }

    async def run(self, stop: asyncio.Event) -> None:
        names = list(self._kinds)
        while not stop.is_set():
            self._rng.shuffle(names)
            for name in names:
                await self._kinds[name]()
                self.counts[name] = self.counts.get(name, 0) + 1
                await asyncio.sleep(self._rng.uniform(*_PAUSE_S))
                if stop.is_set():
                    return

    async def _kill(self) -> None:
        engine = self._rng.choice(self._engines)
        await engine.kill()
        await asyncio.sleep(self._rng.uniform(0.5, 3))
        await engine.start()
        await self._until_up(engine.name)

    async def _freeze(self) -> None:
        engine = self._rng.choice(self._engines)
        engine.freeze()
        await asyncio.sleep(2)
        engine.thaw()

    async def _reload(self) -> None:
        self._gateway.write(limits={"max_attempts": self._rng.randint(3, 6), "keepalive_idle_s": 2})
        await self._applied()

    async def _signal(self) -> None:
        self._gateway.write()
        self._gateway.hang_up()
        await self._applied()

    async def _nonsense(self) -> None:
        self._gateway.write_nonsense()
        async with asyncio.timeout(30):
            while not (await self._gateway.status())["reload"]["problems"]:
                await asyncio.sleep(0.1)
        self._gateway.write()
        await self._applied()

    async def _applied(self) -> None:
        """The file that was written runs."""
        before = (await self._gateway.status())["reload"]["applied"]
        await self._gateway.order("reload")
        status = (await self._gateway.status())["reload"]
        assert status["applied"] > before
        assert not status["problems"]

    async def _remove(self) -> None:
        gone = self._rng.choice(self._engines)
        self._gateway.write(backends=[entry for entry in self._backends if entry["name"] != gone.name])
        await self._applied()
        await asyncio.sleep(self._rng.uniform(0, 3))
        self._gateway.write()
        await self._applied()
        await self._until_up(gone.name)

    async def _drain(self) -> None:
        name = self._rng.choice(self._engines).name
        await self._gateway.order(f"backends/{name}/drain")
        await asyncio.sleep(self._rng.uniform(0.5, 3))
        await self._gateway.order(f"backends/{name}/undrain")

    async def _flush(self) -> None:
        await self._gateway.order("flush")

    async def _until_up(self, name: str) -> None:
        async with asyncio.timeout(30):
            while not any(b["name"] == name and b["state"] == "up" for b in (await self._gateway.status())["backends"]):
                await asyncio.sleep(0.1)

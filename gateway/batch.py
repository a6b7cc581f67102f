"""Requests that became complete in the same turn of the event loop, handled stage by stage.

Why: a system call between two requests' decisions leaves the processor's predictors and caches cold. Under load eight
requests share a turn, and staging them saved a fifth of all CPU (143 to 114 us for 1 KB); a lone request pays one call.
Order is kept: who came first chooses first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio

    from gateway.exchange import Exchange

_AT_ONCE: Final = 16
"""The first of a burst should not wait until the last one is prepared."""


class Batch:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ready: list[Exchange] = []

    def add(self, exchange: Exchange) -> None:
        """Its body is complete and it is its turn on the connection."""
        self._ready.append(exchange)
        if len(self._ready) == 1:
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        ready, self._ready = self._ready, []
        for start in range(0, len(ready), _AT_ONCE):
            staged = ready[start : start + _AT_ONCE]
            for exchange in staged:
                exchange.prepare()
            for exchange in staged:
                exchange.place()
            for exchange in staged:
                exchange.send()

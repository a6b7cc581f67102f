"""Keeps a key set fresh: one task that asks a URL again and again.

Invariant: what fails changes nothing, so the last good set stays until a better one comes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import httpx2

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_BYTES: Final = 1 << 20
EARLIEST_S: Final = 10.0
"""Tokens with unknown keys cause at most one fetch in this time, whatever strangers send."""
_TIMEOUT_S: Final = 10.0
_FIRST_BACKOFF_S: Final = 1.0


class JwksFetcher:
    """`take`: gets a body that differs from the last one it took; raises ValueError where it is of no use. `failed`:
    told of every failure. `jitter`: a random number from [0, 1) at each call."""

    def __init__(
        self,
        url: str,
        refresh_s: float,
        take: Callable[[bytes], None],
        failed: Callable[[Exception], None],
        clock: Callable[[], float],
        jitter: Callable[[], float],
    ) -> None:
        self._url = url
        self._refresh_s = refresh_s
        self._take = take
        self._failed = failed
        self._clock = clock
        self._jitter = jitter
        self._last_s = float("-inf")
        self._taken = b""
        self._wanted = asyncio.Event()
        self._tried = asyncio.Event()

    async def first(self, timeout_s: float) -> None:
        """Returns after the first fetch, whatever came of it, or after the timeout."""
        try:
            await asyncio.wait_for(self._tried.wait(), timeout_s)
        except TimeoutError:
            return

    def fetch_soon(self) -> None:
        """A token names a key that is not in the set: perhaps it is new."""
        if self._clock() - self._last_s >= EARLIEST_S:
            self._last_s = self._clock()
            self._wanted.set()

    async def run(self) -> None:
        """Until it is cancelled."""
        failures = 0
        while True:
            self._wanted.clear()
            self._last_s = self._clock()
            try:
                body = await self._fetch()
                if body != self._taken:
                    self._take(body)
                    self._taken = body
            except Exception as error:  # whatever it is, keys that come later must not be missed
                failures += 1
                self._failed(error)
            else:
                failures = 0
            self._tried.set()
            await self._pause(failures)

    async def _fetch(self) -> bytes:
        """Raises an httpx2 error, TimeoutError or ValueError."""
        headers = {"accept": "application/json", "accept-encoding": "identity"}
        async with (
            asyncio.timeout(_TIMEOUT_S),
            httpx2.AsyncClient(trust_env=False, timeout=_TIMEOUT_S) as client,
            client.stream("GET", self._url, headers=headers) as response,
        ):
            if response.status_code != 200:
                raise ValueError(f"the answer has status {response.status_code}")
            body = bytearray()
            async for piece in response.aiter_raw():
                body += piece
                if len(body) > MAX_BYTES:
                    raise ValueError(f"the answer is larger than {MAX_BYTES} bytes")
            return bytes(body)

    async def _pause(self, failures: int) -> None:
        pause_s = self._refresh_s
        if failures:
            pause_s = min(pause_s, _FIRST_BACKOFF_S * 2 ** min(failures - 1, 10)) * (0.5 + self._jitter())
        try:
            await asyncio.wait_for(self._wanted.wait(), pause_s)
        except TimeoutError:
            return

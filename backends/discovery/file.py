"""Backends from a YAML or JSON file that others write: `[{name, url, models}, ...]`.

Invariant: a list is taken whole or not at all, and only once the file has stayed the same for a moment. The file is
found again by its path at each look, so renames over it and the link swaps of mounted ConfigMaps are seen.
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING, Final

from backends.discovery.backend_list import MAX_BYTES, read_list
from backends.discovery.backoff import Backoff
from backends.discovery.protocol import InvalidList

if TYPE_CHECKING:
    import random
    from pathlib import Path

    from backends.discovery.protocol import Failed, Report, Sleep

_SETTLE_S: Final = 0.2


class FileSource:
    """Looks at the content every `refresh_s`; a change counts when it is still there a moment later: half a YAML list
    is a valid list, too."""

    def __init__(self, path: Path, refresh_s: float, rng: random.Random, sleep: Sleep = asyncio.sleep) -> None:
        self._path = path
        self._refresh_s = refresh_s
        self._sleep = sleep
        self._backoff = Backoff(rng, most_s=refresh_s)
        self._read_digest: bytes | None = None
        """Of the content that was last taken or refused."""

    async def run(self, report: Report, failed: Failed) -> None:
        while True:
            try:
                await self._look(report)
            except (OSError, InvalidList) as error:
                if isinstance(error, OSError):
                    self._read_digest = None
                failed(error)
                await self._sleep(self._backoff.next_s())
            else:
                self._backoff.reset()
                await self._sleep(self._refresh_s)

    async def _look(self, report: Report) -> None:
        """Raises OSError and InvalidList."""
        content, digest = await asyncio.to_thread(_read, self._path)
        if digest == self._read_digest:
            return
        while True:
            await self._sleep(_SETTLE_S)
            before = digest
            content, digest = await asyncio.to_thread(_read, self._path)
            if digest == before:
                break
        self._read_digest = digest
        report(await asyncio.to_thread(read_list, content, self._path.name))


def _read(path: Path) -> tuple[bytes, bytes]:
    """(content, digest). Raises OSError."""
    with path.open("rb") as stream:
        content = stream.read(MAX_BYTES + 1)
    return content, hashlib.blake2b(content, digest_size=16).digest()

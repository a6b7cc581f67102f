"""Notices that the config, or a file it names, has changed.

By looking at the files' identity once a second: that sees editors that rename, and Kubernetes, which swaps a symlink
two levels above the file. Reads no content and keeps no descriptor.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from gateway.wiring import fingerprint

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from pathlib import Path


class FileWatch:
    """The first look is taken when this is built: build it before the files are put to use."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._known = _look(files)

    async def run(
        self, files: Callable[[], Iterable[Path]], changed: Callable[[], Awaitable[object]], interval_s: float
    ) -> None:
        """Until cancelled. `files` is asked anew at each look. `changed` is awaited once they have been the same at two
        looks in a row, so that half-written ones are not read."""
        pending = self._known
        while True:
            await asyncio.sleep(interval_s)
            seen = await asyncio.to_thread(_look, files())
            known = {path: self._known.get(path, mark) for path, mark in seen.items()}
            if seen != known and seen == pending:
                known = seen
                await changed()
            self._known = known
            pending = seen


def _look(files: Iterable[Path]) -> dict[str, object]:
    return {str(path): fingerprint(path) for path in files}

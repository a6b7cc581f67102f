"""Threads for encoding work that is too long for the event loop.

Invariants: at most `max_pending` jobs wait or run, what comes on top is refused (None: the request is routed by
load); the awaiting side waits at most `timeout_s`, even where a job does not end.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")


class EncodingWorker:
    def __init__(self, *, threads: int, max_pending: int, timeout_s: float) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="encode")
        self._max_pending = max_pending
        self._timeout_s = timeout_s
        self._pending = 0
        self._lock = Lock()
        self._closed = False

    def run(self, job: Callable[[], T | None]) -> Coroutine[None, None, T | None] | None:
        """Start a job; its result, or None past the time limit. None at once where there is no room."""
        with self._lock:
            if self._closed or self._pending >= self._max_pending:
                return None
            self._pending += 1
            future = self._pool.submit(job)
        future.add_done_callback(self._done)
        return self._result(future)

    def close(self) -> None:
        """Waiting jobs are dropped; a running one ends by itself."""
        with self._lock:
            self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _result(self, future: Future[T | None]) -> T | None:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            return None
        except asyncio.CancelledError:
            if self._closed and future.cancelled() and not _cancelling():
                return None
            raise

    def _done(self, _: Future[T | None]) -> None:
        with self._lock:
            self._pending -= 1


def _cancelling() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0

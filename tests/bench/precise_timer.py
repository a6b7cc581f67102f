"""Timers finer than a millisecond on any event loop.

uvloop and asyncio round timers to whole milliseconds, which would bunch the chunks of independent streams together
and make them cheaper to forward than they are. A Linux timerfd wakes the loop on time.
"""

import asyncio
import ctypes
import heapq
import itertools
import os
import time
from collections.abc import Callable

_CLOCK_MONOTONIC = 1
_TFD_NONBLOCK_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC
_TFD_TIMER_ABSTIME = 1


class _Itimerspec(ctypes.Structure):
    """`struct itimerspec` of timerfd_settime(2): interval, then value, each in seconds and nanoseconds."""

    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


class PreciseTimer:
    """Calls back at given times of `time.monotonic()`; `close` when done."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd: int = self._libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_NONBLOCK_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._loop = loop
        self._order = itertools.count()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        loop.add_reader(self._fd, self._wake)

    def call_at(self, at_s: float, callback: Callable[[], None]) -> None:
        """Call `callback` once, as soon as the clock has reached `at_s`."""
        heapq.heappush(self._due, (at_s, next(self._order), callback))
        if self._due[0][0] == at_s:
            self._arm()

    def close(self) -> None:
        """Forget all that is due."""
        self._loop.remove_reader(self._fd)
        os.close(self._fd)

    def _arm(self) -> None:
        seconds, fraction_s = divmod(self._due[0][0], 1)
        spec = _Itimerspec(0, 0, int(seconds), int(fraction_s * 1e9))
        self._libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, ctypes.byref(spec), None)

    def _wake(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return
        now_s = time.monotonic()
        while self._due and self._due[0][0] <= now_s:
            heapq.heappop(self._due)[2]()
        if self._due:
            self._arm()

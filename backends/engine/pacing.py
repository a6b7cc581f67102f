"""Real time for an engine core: each step is shown when it would have ended, divided by `speed`.

The end of a step is counted from the planned end of the one before, so timer jitter does not add up. A late loop
shows several steps at once; what it lost beyond `MAX_LAG_S` is forgotten. One timer handle per engine, no task.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from backends.engine.core import EngineCore, StepResult

MAX_LAG_S: Final = 0.1
_STEPS_PER_TURN: Final = 64  # then other callbacks of the loop have their turn


class Pacer:
    """Drives one core; `deliver` gets each step at its end."""

    def __init__(
        self, core: EngineCore, speed: float, loop: asyncio.AbstractEventLoop, deliver: Callable[[StepResult], None]
    ) -> None:
        if speed <= 0:
            raise ValueError("speed must be positive")
        self._core = core
        self._speed = speed
        self._loop = loop
        self._deliver = deliver
        self._step: StepResult | None = None
        self._end_s = 0.0
        self._timer: asyncio.Handle | None = None
        self._frozen = False
        self._stopped = False

    def kick(self) -> None:
        """There is work. The first step starts when the callbacks that are due have run, so that what arrives
        together batches.
        """
        if self._step is None and self._timer is None and not self._frozen and not self._stopped:
            self._timer = self._loop.call_soon(self._begin)

    def freeze(self) -> None:
        """Stop the engine in the middle of whatever it does."""
        self._frozen = True
        self._cancel()

    def thaw(self) -> None:
        """Go on where it stopped."""
        if not self._frozen:
            return
        self._frozen = False
        self._end_s = self._loop.time()
        if self._step is not None:
            self._timer = self._loop.call_soon(self._turn)
        elif self._core.has_work:
            self.kick()

    def stop(self) -> None:
        """Nothing is shown after this."""
        self._stopped = True
        self._step = None
        self._cancel()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _begin(self) -> None:
        self._timer = None
        self._end_s = self._loop.time()
        if self._next():
            self._timer = self._loop.call_at(self._end_s, self._turn)

    def _turn(self) -> None:
        self._timer = None
        now = self._loop.time()
        self._end_s = max(self._end_s, now - MAX_LAG_S)
        for _ in range(_STEPS_PER_TURN):
            step, self._step = self._step, None
            if step is not None:
                self._deliver(step)
            if self._frozen or self._stopped or not self._next():
                return
            if self._end_s > now:
                self._cancel()
                self._timer = self._loop.call_at(self._end_s, self._turn)
                return
        self._timer = self._loop.call_soon(self._turn)

    def _next(self) -> bool:
        """Run the next step; its end is planned. False when there is nothing to do."""
        if not self._core.has_work:
            return False
        self._step = self._core.step()
        self._end_s += self._step.duration_s / self._speed
        return True

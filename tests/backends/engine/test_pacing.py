"""Real time on a loop whose clock the test moves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from backends.engine.core import EngineCore, StepResult
from backends.engine.pacing import MAX_LAG_S, Pacer
from backends.engine.sequence import Request
from backends.engine.setups import SETUPS, step_s

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

SETUP = SETUPS["llama-3.1-8b"]


class Handle:
    def __init__(self, when: float, callback: Callable[[], None]) -> None:
        self.when = when
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class FakeLoop:
    """Runs callbacks in order of time; each runs `late_s` after its time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.late_s = 0.0
        self.handles: list[Handle] = []

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Callable[[], None]) -> Handle:
        return self.call_at(self.now, callback)

    def call_at(self, when: float, callback: Callable[[], None]) -> Handle:
        self.handles.append(Handle(when, callback))
        return self.handles[-1]

    def run(self, until_s: float = float("inf")) -> None:
        while live := [handle for handle in self.handles if not handle.cancelled and handle.when <= until_s]:
            handle = min(live, key=lambda each: each.when)
            self.handles.remove(handle)
            self.now = max(self.now, handle.when + self.late_s)
            handle.callback()


class Rig:
    def __init__(self, speed: float = 1.0) -> None:
        self.loop = FakeLoop()
        self.core = EngineCore(SETUP)
        self.shown_s: list[float] = []
        self.pacer = Pacer(self.core, speed, cast("asyncio.AbstractEventLoop", self.loop), self.deliver)

    def deliver(self, step: StepResult) -> None:
        self.shown_s += [self.loop.now] * len(step.served)

    def ask(self, output: int, **fields: Any) -> None:
        self.core.add(Request(f"r{self.loop.now}", 100, output, **fields))
        self.pacer.kick()


def ends(output: int, speed: float = 1.0) -> list[float]:
    """When each token of a lone request of 100 prompt tokens is out."""
    times = [step_s(SETUP, [(100, 0)], 0, 0)]
    for i in range(1, output):
        times.append(times[-1] + step_s(SETUP, [], 1, 100 + i))
    return [time / speed for time in times]


@pytest.mark.parametrize("speed", [1.0, 10.0])
def test_tokens_come_when_their_steps_end(speed: float) -> None:
    rig = Rig(speed)
    rig.ask(20)
    rig.loop.run()
    assert rig.shown_s == pytest.approx(ends(20, speed))


def test_late_timers_do_not_add_up() -> None:
    rig = Rig()
    rig.ask(200)
    rig.loop.late_s = 0.001
    rig.loop.run()
    assert rig.shown_s[-1] == pytest.approx(ends(200)[-1] + 0.001 + 0.001)  # the last timer, and the start


def test_a_short_stall_is_caught_up() -> None:
    rig = Rig()
    rig.ask(50)
    rig.loop.run(until_s=ends(50)[9] + 1e-6)
    assert len(rig.shown_s) == 10
    rig.loop.now = ends(50)[15] + 1e-6
    rig.loop.run()
    assert rig.shown_s[10:16] == [pytest.approx(ends(50)[15], abs=1e-5)] * 6
    assert rig.shown_s[16:] == pytest.approx(ends(50)[16:])


def test_a_long_stall_is_forgotten() -> None:
    rig = Rig()
    rig.ask(100)
    rig.loop.run(until_s=ends(100)[9] + 1e-6)
    rig.loop.now = 50.0
    rig.loop.run()
    caught_up = sum(time == 50.0 for time in rig.shown_s)
    assert 1 < caught_up <= MAX_LAG_S / 0.007 + 1
    assert rig.shown_s[-1] > 50.5


def test_what_arrives_while_idle_starts_a_new_count() -> None:
    rig = Rig()
    rig.ask(3)
    rig.loop.run()
    rig.loop.now = 10.0
    rig.ask(3)
    rig.loop.run()
    assert rig.shown_s[3:] == pytest.approx([10 + end for end in ends(3)])


def test_frozen_means_nothing_is_shown_until_thawed() -> None:
    rig = Rig()
    rig.ask(20)
    rig.loop.run(until_s=ends(20)[4] + 1e-6)
    rig.pacer.freeze()
    rig.ask(5)
    rig.loop.run()
    assert len(rig.shown_s) == 5
    rig.loop.now = 5.0
    rig.pacer.thaw()
    rig.loop.run()
    assert len(rig.shown_s) == 25
    assert min(rig.shown_s[5:]) >= 5.0
    assert not rig.core.has_work


def test_thaw_after_a_freeze_of_an_idle_engine() -> None:
    rig = Rig()
    rig.pacer.thaw()
    rig.pacer.freeze()
    rig.ask(2)
    rig.loop.run()
    assert rig.shown_s == []
    rig.pacer.thaw()
    rig.loop.run()
    assert len(rig.shown_s) == 2


def test_a_stopped_pacer_stays_silent() -> None:
    rig = Rig()
    rig.ask(20)
    rig.loop.run(until_s=0.02)
    shown = len(rig.shown_s)
    rig.pacer.stop()
    rig.ask(1)
    rig.loop.run()
    assert len(rig.shown_s) == shown


def test_a_turn_ends_so_that_others_run() -> None:
    rig = Rig(speed=1e9)
    rig.ask(1000)
    turns = 0
    while live := [handle for handle in rig.loop.handles if not handle.cancelled]:
        rig.loop.handles.remove(live[0])
        rig.loop.now += 1.0
        live[0].callback()
        turns += 1
    assert len(rig.shown_s) == 1000
    assert turns > 10


def test_speed_is_positive() -> None:
    with pytest.raises(ValueError, match="positive"):
        Rig(0)

"""The filters before a decision: trials, fail open, and who is held back in its slow start."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from backends.health import State
from gateway.eligibility import may_get
from gateway.explain import explain
from tests.support.control import Controlled, body
from vocabulary import Kind
from vocabulary.errors import NoBackendAvailable, UpstreamReset

if TYPE_CHECKING:
    from collections.abc import Iterator

    from backends.backend import Backend


@pytest.fixture
def fleet() -> Iterator[Controlled]:
    with Controlled() as made:
        yield made


def eject(fleet: Controlled, backend: Backend) -> None:
    while backend.health.state is not State.EJECTED:
        backend.health.request_failed(fleet.now_s)


def take_down(fleet: Controlled, backend: Backend) -> None:
    backend.health.probe_failed(fleet.now_s, 0.0, refused=True)


# Trials.


def test_a_trial_does_not_wait_for_streams_from_before(fleet: Controlled) -> None:
    backend = fleet.add("a")
    long = fleet.place()
    eject(fleet, backend)
    with pytest.raises(NoBackendAvailable):
        fleet.place()
    fleet.now_s += 10
    trial = fleet.place()
    with pytest.raises(NoBackendAvailable):
        fleet.place()
    fleet.router.failed(long, UpstreamReset())
    fleet.router.abandon(long)
    assert backend.health.state is State.TRIAL, "what was sent before is no verdict"
    fleet.router.answered(trial, failed=False)
    assert fleet.changed == ["a"]
    assert backend.health.admits(fleet.now_s)
    fleet.place()
    fleet.place()


def test_a_trial_whose_client_left_makes_room(fleet: Controlled) -> None:
    backend = fleet.add("a")
    eject(fleet, backend)
    fleet.now_s += 10
    fleet.router.abandon(fleet.place(), cancelled=True)
    failing = fleet.place()
    fleet.router.failed(failing, UpstreamReset())
    fleet.router.abandon(failing)
    assert backend.health.state is State.EJECTED


# Fail open.


def test_o61_without_a_healthy_backend_requests_go_all_the_same_if_the_operator_says_so(fleet: Controlled) -> None:
    down, ejected, resting = (fleet.add(name) for name in "abc")
    take_down(fleet, down)
    eject(fleet, ejected)
    fleet.control.drain("c")
    with pytest.raises(NoBackendAvailable):
        fleet.place()
    fleet.router.fail_open = True
    placements = [fleet.place(text=f"{number} " * 100) for number in range(30)]
    assert {placement.state.backend for placement in placements} == {"a", "b"}
    assert {placement.decision.kind for placement in placements} == {Kind.FALLBACK}
    record = explain(fleet.router, fleet.prepare(body("x")), fleet.now_s)
    assert record["kind"] == "fallback"
    assert "health.fail_open" in str(record["reason"])
    fleet.router.answered(next(p for p in placements if p.state.backend == "b"), failed=False)
    assert ejected.health.state is State.UP
    placement = fleet.place()
    assert (placement.state.backend, placement.decision.kind) == ("b", Kind.FORCED), "healthy again, no need to"
    assert resting.in_flight == 0


def test_fail_open_tries_no_sick_one_after_a_healthy_one(fleet: Controlled) -> None:
    healthy, down = fleet.add("a"), fleet.add("b")
    take_down(fleet, down)
    fleet.router.fail_open = True
    first = fleet.place()
    assert first.state.backend == "a"
    with pytest.raises(NoBackendAvailable):
        fleet.router.place(fleet.prepare(body("x")), 1, {healthy.instance.id})
    take_down(fleet, healthy)
    second = fleet.router.place(fleet.prepare(body("x")), 1, {healthy.instance.id})
    assert (second.state.backend, second.decision.kind) == ("b", Kind.RETRY)


def test_fail_open_waits_for_the_first_probe(fleet: Controlled) -> None:
    backend = fleet.add("a", up=False)
    fleet.router.fail_open = True
    with pytest.raises(NoBackendAvailable):
        fleet.place()
    assert not may_get(backend, fail_open=True)


def test_who_may_get_requests(fleet: Controlled) -> None:
    backend = fleet.add("a")
    assert may_get(backend, fail_open=False)
    eject(fleet, backend)
    assert may_get(backend, fail_open=False), "its probes pass"
    take_down(fleet, backend)
    assert not may_get(backend, fail_open=False)
    assert may_get(backend, fail_open=True)
    fleet.control.drain("a")
    assert not may_get(backend, fail_open=True)


# Slow start.


def newcomer(fleet: Controlled) -> Backend:
    """One beside two established ones that hold requests; only it is empty."""
    for name in "ab":
        fleet.add(name)
    for number in range(20):
        fleet.place(f"s{number}", f"{number} " * 100)
    backend = fleet.add("new")
    fleet.fleet.set_slow_start(20.0)
    fleet.fleet.ease_in(backend.instance, fleet.now_s)
    return backend


def test_a_new_backend_gets_its_turn_at_once_and_then_its_share(fleet: Controlled) -> None:
    newcomer(fleet)
    placements = [fleet.place(f"n{number}", f"x{number} " * 100) for number in range(65)]
    turns = [number for number, placement in enumerate(placements) if placement.state.backend == "new"]
    assert turns[0] == 0
    assert len(turns) == 3, "a tenth of a third"
    held = placements[1].decision.candidates[2]
    assert held.rejected == "slow_start"


def test_its_own_sessions_are_never_held_back(fleet: Controlled) -> None:
    newcomer(fleet)
    assert fleet.place("mine").state.backend == "new"
    assert fleet.place("other", "z " * 300).state.backend != "new"
    for _ in range(5):
        assert fleet.place("mine").state.backend == "new"


def test_it_is_not_held_back_where_nobody_else_can_take_it(fleet: Controlled) -> None:
    newcomer(fleet)
    for name in "ab":
        fleet.control.drain(name)
    assert {fleet.place(f"n{number}", f"x{number} " * 99).state.backend for number in range(5)} == {"new"}


def test_asking_why_pays_for_nothing(fleet: Controlled) -> None:
    backend = newcomer(fleet)
    before = fleet.fleet.ramps[backend.instance.id].credit
    for _ in range(5):
        explain(fleet.router, fleet.prepare(body("why")), fleet.now_s)
    assert fleet.fleet.ramps[backend.instance.id].credit == before


def test_ramps_end_and_can_be_switched_off(fleet: Controlled) -> None:
    backend = newcomer(fleet)
    assert fleet.fleet.worth(backend.instance.id, fleet.now_s + 10) == 0.5
    fleet.now_s += 20 * 6
    fleet.place()
    assert not fleet.fleet.ramps
    fleet.fleet.ease_in(backend.instance, fleet.now_s)
    fleet.fleet.set_slow_start(0.0)
    assert not fleet.fleet.ramps
    fleet.fleet.ease_in(backend.instance, fleet.now_s)
    assert not fleet.fleet.ramps
    assert fleet.fleet.worth(backend.instance.id, fleet.now_s) == 1.0


def test_a_fleet_that_starts_together_has_no_ramps(fleet: Controlled) -> None:
    fleet.fleet.set_slow_start(20.0)
    backends = [fleet.add(name) for name in "abc"]
    for backend in backends:
        backend.health.state = State.UNKNOWN
    for backend, began_s in zip(backends, (0.0, 9.9, 10.0), strict=True):
        backend.health.state = State.UP
        fleet.fleet.ease_in(backend.instance, fleet.now_s + began_s)
    assert list(fleet.fleet.ramps) == [backends[2].instance.id], "half a slow start apart: no start together"


def test_a_ramp_ends_with_its_instance(fleet: Controlled) -> None:
    backend = newcomer(fleet)
    old = backend.instance
    fleet.registry.restart(backend)
    assert not fleet.fleet.ramps
    fleet.fleet.ease_in(old, fleet.now_s)
    assert not fleet.fleet.ramps

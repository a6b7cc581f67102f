"""Backends that rest, change, and lose their cache. In memory: no socket, the clock is the test's."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from tests.support.control import Controlled, body, closing, rest
from vocabulary.errors import NoBackendAvailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def fleet() -> AsyncIterator[Controlled]:
    with Controlled() as made:
        yield made
        async with asyncio.timeout(5):
            await made.control.stop()


# Rest.


async def test_a_draining_backend_gets_nothing_and_its_sessions_move(fleet: Controlled) -> None:
    for name in "abc":
        fleet.add(name)
    home = fleet.serve("s")
    fleet.control.drain(home)
    placement = fleet.place("s")
    assert placement.state.backend != home
    assert [c.rejected for c in placement.decision.candidates if c.backend == home] == ["draining"]
    for number in range(20):
        assert fleet.serve(text=f"{number} " * 100) != home
    fleet.control.undrain(home)
    assert fleet.serve("s") == placement.state.backend, "its home is there now"
    assert home in {fleet.serve(text=f"x{number} " * 100) for number in range(20)}


async def test_a_second_attempt_never_goes_to_a_draining_backend(fleet: Controlled) -> None:
    for name in "abc":
        fleet.add(name)
    fleet.control.drain("b")
    first = fleet.place()
    second = fleet.router.place(fleet.prepare(body("hello")), 1, {first.lease.instance.id})
    assert {first.state.backend, second.state.backend} == {"a", "c"}
    with pytest.raises(NoBackendAvailable):
        fleet.router.place(fleet.prepare(body("hello")), 2, {p.lease.instance.id for p in (first, second)})


async def test_where_all_drain_there_is_nobody_fail_open_or_not(fleet: Controlled) -> None:
    for name in "ab":
        fleet.add(name)
        fleet.control.drain(name)
    for fail_open in (False, True):
        fleet.router.fail_open = fail_open
        with pytest.raises(NoBackendAvailable):
            fleet.place()


async def test_reasons_are_apart(fleet: Controlled) -> None:
    backend = fleet.add("a")
    fleet.control.drain("a", "discovery")
    fleet.control.drain("a")
    fleet.control.drain("a")
    assert fleet.control.undrain("a").drain_reasons == ("discovery",)
    assert backend.draining
    fleet.control.undrain("a", "discovery")
    fleet.control.undrain("a", "discovery")
    assert not backend.draining


async def test_the_log_says_when_it_drains_and_once_when_it_is_empty(fleet: Controlled) -> None:
    fleet.add("a")
    placements = [fleet.place() for _ in range(2)]
    with capture_logs() as logs:
        fleet.control.drain("a")
        fleet.control.undrain("a")
        fleet.control.drain("a")
        fleet.control.drain("a")
        for placement in placements:
            fleet.router.settle(placement, None, 0)
    told = [(line["event"], line.get("in_flight")) for line in logs]
    assert told == [
        ("backend_draining", 2),
        ("backend_undrained", None),
        ("backend_draining", 2),
        ("backend_empty", None),
    ]
    assert "hello" not in str(logs)


async def test_back_from_a_rest_it_is_eased_in_only_if_it_began_anew(fleet: Controlled) -> None:
    fleet.fleet.set_slow_start(20.0)
    backend = fleet.add("a")
    fleet.add("elder")
    fleet.now_s += 100
    fleet.control.drain("a")
    fleet.now_s += 100
    fleet.control.undrain("a")
    assert not fleet.fleet.ramps
    fleet.control.drain("a")
    fleet.now_s += 1
    fleet.registry.restart(backend)
    fleet.now_s += 500
    fleet.control.undrain("a")
    assert fleet.fleet.worth(backend.instance.id, fleet.now_s) == 0.1


@pytest.mark.parametrize("order", ["drain", "undrain", "flush", "remove_later"])
async def test_unknown_names(fleet: Controlled, order: str) -> None:
    with pytest.raises(KeyError):
        getattr(fleet.control, order)("nobody")


# Changing.


async def test_another_address_is_another_backend_and_what_runs_stays_where_it_is(fleet: Controlled) -> None:
    old = fleet.add("a")
    upstream = closing(old)
    upstream.may_close.clear()
    fleet.serve("s")
    running = fleet.place("s")
    fleet.control.drain("a", "admin")
    new = fleet.control.change(fleet.spec("a", port=10))
    assert new is not old
    assert new.drain_reasons == ("admin",), "what the operator wants of the name goes on"
    fleet.control.undrain("a")
    new.health.probe_passed()
    placement = fleet.place("s")
    assert placement.lease.instance is new.instance
    assert placement.decision.cached_tokens == 0
    await rest()
    assert upstream.closes == 0
    assert running.lease.instance.backend.upstream is upstream
    assert list(fleet.control.replaced) == [old]
    fleet.router.settle(running, None, 0)
    upstream.may_close.set()
    await rest()
    assert upstream.closes == 1
    assert list(fleet.control.replaced) == []
    assert fleet.registry.get(new.name) is new


async def test_o07_a_new_key_means_new_connections_to_the_engine_that_is_known(fleet: Controlled) -> None:
    backend = fleet.add("a")
    before = closing(backend)
    before.may_close.clear()
    fleet.serve("s")
    running, instance = fleet.place("s"), backend.instance
    spec = fleet.spec("a")
    assert fleet.control.change(replace(spec, endpoint=replace(spec.endpoint, authorization="Bearer new"))) is backend
    assert backend.upstream is not before
    assert (backend.instance, backend.in_flight) == (instance, 1)
    assert fleet.place("s").decision.cached_tokens > 0, "its cache is known still"
    await rest()
    assert before.closes == 0, "a call runs on it"
    fleet.router.settle(running, None, 0)
    before.may_close.set()
    await rest()
    assert before.closes == 1


async def test_other_settings_are_taken_over_at_once(fleet: Controlled) -> None:
    backend = fleet.add("a")
    for number in range(20):
        fleet.serve(text=f"{number} " * 400)
    state, upstream = fleet.state(backend), backend.upstream
    held = fleet.index.stats().entries
    fit = state.fit
    spec = fleet.spec("a", capacity_tokens=1000, prefill_cap_tokens=7, by_priority=True)
    assert fleet.control.change(spec) is backend
    assert fleet.index.stats().entries <= 1000 / 16 < held
    candidate = fleet.place().decision.candidates[0]
    assert (candidate.capacity_tokens, candidate.prefill_cap_tokens, candidate.by_priority) == (1000, 7, True)
    assert state.fit is fit, "what was learned goes on"
    fleet.control.change(replace(spec, prefill_s_per_token=0.5))
    assert (state.p, fleet.state(backend)) == (0.5, state)
    assert backend.upstream is upstream
    with capture_logs() as logs:
        fleet.control.change(replace(spec, prefill_s_per_token=0.5))
    assert not logs, "nothing has changed"
    assert fleet.control.change(fleet.spec("new")).name == "new"


async def test_a_name_that_is_there_cannot_be_added(fleet: Controlled) -> None:
    fleet.add("a")
    with pytest.raises(ValueError, match="exists"):
        fleet.control.add(fleet.spec("a"))


async def test_every_backend_is_probed_by_one_task_whatever_happens(fleet: Controlled) -> None:
    fleet.add("a")
    fleet.control.start()
    fleet.control.add(fleet.spec("b"))
    for port in (9, 10, 10, 11, 11):
        for name in "ab":
            fleet.control.change(fleet.spec(name, port=port))
            spec = fleet.spec(name, port=port)
            fleet.control.change(replace(spec, endpoint=replace(spec.endpoint, authorization=f"Bearer {port}")))
    assert fleet.prober.watched == set(fleet.registry)
    await fleet.control.remove("b")
    assert {backend.name for backend in fleet.prober.watched} == {"a"}
    await fleet.prober.stop()
    with contextlib.suppress(asyncio.CancelledError):
        await rest()
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("probe ")]


# Flush.


async def test_o43_flush_forgets_what_is_cached_and_who_lives_there(fleet: Controlled) -> None:
    a, b = fleet.add("a", capacity_tokens=5000), fleet.add("b")
    fleet.control.drain("b")
    fleet.serve("s")
    running = fleet.place("t", "other " * 200)
    fleet.control.undrain("b")
    fleet.control.drain("a")
    fleet.serve("u", "third " * 200)
    fleet.control.undrain("a")
    with capture_logs() as logs:
        assert fleet.control.flush("a") == (a,)
    (line,) = logs
    assert (line["event"], line["backend"]) == ("backend_flushed", "a")
    assert line["blocks"] > 10
    holders = fleet.index.stats().holders
    assert {holder.instance for holder in holders} == {b.instance.id}
    assert fleet.sessions.live_tokens(a.instance.id) == 0
    assert fleet.prepare(body("hello")).home is None
    fleet.router.settle(running, None, 0)
    fleet.router.abandon(running)
    for number in range(50):
        fleet.control.drain("b")
        fleet.serve(text=f"{number} " * 600)
        fleet.control.undrain("b")
    assert fleet.index.stats().holders[fleet.state(a).holder] <= 5000 / 16, "its size is known still"
    assert fleet.control.flush() == (a, b)
    assert fleet.index.stats().entries == 0
    assert fleet.sessions.stats().instances == 0
    assert fleet.serve("s") in ("a", "b")

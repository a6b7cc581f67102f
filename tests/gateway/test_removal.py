"""Backends that go: at once, while requests run, and by the thousand. In memory."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.support.control import Controlled, closing, rest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def fleet() -> AsyncIterator[Controlled]:
    with Controlled() as made:
        yield made
        async with asyncio.timeout(5):
            await made.control.stop()


# Going.


async def test_removal_waits_for_what_runs_and_leaves_nothing(fleet: Controlled) -> None:
    fleet.add("b")
    backend = fleet.add("a")
    upstream = closing(backend)
    fleet.control.drain("b")
    placement = fleet.place("s")
    fleet.control.undrain("b")
    waiting = asyncio.create_task(fleet.control.remove("a"))
    await rest()
    assert fleet.registry.get(backend.name) is backend, "status shows it until it is empty"
    assert backend.drain_reasons == ("config",)
    waiting.cancel()
    await rest()
    again = asyncio.create_task(fleet.control.remove("a"))
    await rest()
    upstream.may_close.clear()
    fleet.router.settle(placement, None, 3)
    await rest()
    assert fleet.registry.get(backend.name) is None
    assert list(fleet.control.replaced) == [backend]
    assert not again.done()
    upstream.may_close.set()
    await asyncio.wait_for(again, 5)
    assert upstream.closes == 1
    assert not fleet.series("a")
    assert fleet.series("b")
    assert set(fleet.fleet.states) == {b.instance.id for b in fleet.registry}
    assert fleet.index.stats().entries == 0
    assert fleet.sessions.stats().instances == 0
    assert list(fleet.control.replaced) == []
    with pytest.raises(KeyError):
        await fleet.control.remove("a")


async def test_a_removal_is_called_off_by_its_own_reason_alone(fleet: Controlled) -> None:
    backend = fleet.add("a")
    placement = fleet.place()
    task = fleet.control.remove_later("a", "discovery")
    fleet.control.undrain("a", "admin")
    fleet.control.undrain("a", "config")
    assert fleet.control.remove_later("a", "discovery") is task
    fleet.control.undrain("a", "discovery")
    fleet.router.settle(placement, None, 0)
    await rest()
    assert task.cancelled()
    assert fleet.registry.get(backend.name) is backend
    assert not backend.draining
    await fleet.control.remove("a", "discovery")
    assert len(fleet.registry) == 0


async def test_called_off_in_the_step_in_which_it_became_empty(fleet: Controlled) -> None:
    backend = fleet.add("a")
    placement = fleet.place()
    fleet.control.remove_later("a")
    await rest()
    fleet.router.settle(placement, None, 0)
    fleet.control.undrain("a", "config")
    await rest()
    assert fleet.registry.get(backend.name) is backend
    fleet.serve()


async def test_any_number_may_go_at_once(fleet: Controlled) -> None:
    for number in range(50):
        fleet.add(f"b{number}")
    placements = [fleet.place(text=f"{number} " * 100) for number in range(200)]
    tasks = [fleet.control.remove_later(f"b{number}") for number in range(50)]
    await rest()
    busy = {placement.state.backend for placement in placements}
    assert {backend.name for backend in fleet.registry} == busy
    for placement in placements:
        fleet.router.settle(placement, None, 0)
    await asyncio.wait_for(asyncio.gather(*tasks), 5)
    assert len(fleet.registry) == 0


async def test_stop_ends_removals(fleet: Controlled) -> None:
    backend = fleet.add("a")
    fleet.place()
    task = fleet.control.remove_later("a")
    await rest()
    await fleet.control.stop()
    assert task.cancelled()
    assert fleet.registry.get(backend.name) is backend


async def test_o37_back_at_the_same_address_it_has_to_earn_its_credit_again(fleet: Controlled) -> None:
    fleet.add("a")
    fleet.serve("s")
    assert fleet.place("s").decision.cached_tokens > 0
    fleet.control.remove_later("a")
    fleet.control.add(fleet.spec("a")).health.probe_passed()
    placement = fleet.place("s")
    assert (placement.state.backend, placement.decision.cached_tokens) == ("a", 0)
    assert placement.prepared.home is None


async def test_o50_leases_end_on_the_life_that_they_began_on(fleet: Controlled) -> None:
    old = fleet.add("a")
    upstream = closing(old)
    before = [fleet.place() for _ in range(5)]
    removal = fleet.control.remove_later("a")
    new = fleet.control.add(fleet.spec("a"))
    new.health.probe_passed()
    assert (old.in_flight, new.in_flight, new.draining) == (5, 0, False)
    after = [fleet.place() for _ in range(2)]
    await rest()
    assert removal.cancelled()
    assert (old.in_flight, new.in_flight) == (5, 2)
    for placement in (*before, *after):
        fleet.router.settle(placement, None, 0)
        assert old.in_flight >= 0 <= new.in_flight
    await rest()
    assert (old.in_flight, new.in_flight) == (0, 0)
    assert upstream.closes == 1
    assert fleet.registry.get(new.name) is new
    assert fleet.series("a"), "the name is in use"


async def test_o38_a_thousand_backends_come_and_go_and_nothing_stays(fleet: Controlled) -> None:
    fleet.add("keeper")
    fleet.serve("kept")

    def held() -> tuple[int, ...]:
        index, sessions = fleet.index.stats(), fleet.sessions.stats()
        return (
            fleet.index.nodes,
            index.entries,
            sessions.instances,
            len(fleet.fleet.states),
            len(fleet.fleet.ramps),
            len(fleet.registry),
            len(fleet.metrics.render()) // 1000,
        )

    fleet.fleet.set_slow_start(20.0)
    before = held()
    for number in range(1000):
        fleet.control.drain("keeper")
        name = f"pod-{number}"
        backend = fleet.control.add(fleet.spec(name, capacity_tokens=10_000))
        backend.health.probe_passed()
        fleet.fleet.ease_in(backend.instance, fleet.now_s)
        assert fleet.serve(f"s{number % 10}", f"{number} " * 50) == name
        running = fleet.place(f"s{number % 10}", f"{number} " * 60)
        removal = fleet.control.remove_later(name)
        fleet.router.settle(running, None, 0)
        await removal
        fleet.control.undrain("keeper")
    assert held() == before

"""Field cases F: who gets cold traffic, and what one hot backend does to the others."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from tests.support.fleet import Fleet
from tests.support.gateway import chat, running_gateway
from tests.support.holding import Held, Holding, fleet, hold, place
from vocabulary import BackendId

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.gateway import RawClient, RunningGateway
    from tests.support.upstream import ScriptedUpstream

NO_RAMP = {"slow_start_s": 0}


def text(number: int, of: str = "prompt") -> str:
    return f"{of} {number}: " + f"{number * 7919} is its number. " * 40


@asynccontextmanager
async def one_busy(busy: int, policy: str) -> AsyncIterator[tuple[RunningGateway, AsyncExitStack, Holding]]:
    """`a` runs so many long streams of a model that only it has; all others are idle, and have `m` as well."""
    script = Holding()
    async with AsyncExitStack() as stack:
        models = {"a": ("m", "only-a"), "b": ("m", "only-b")}
        _, backends = await fleet(stack, models, script)
        routes = [{"name": "r", "policy": policy}]
        gw = await stack.enter_async_context(running_gateway(backends, routes=routes, health=NO_RAMP))
        client = await stack.enter_async_context(gw.client())
        for number in range(40):  # b has done much more than a, and by requests per second it still does
            assert await place(client, chat(text(number, "done"), model="only-b")) == "b"
        running = [await hold(gw, stack, chat(text(number, "long"), model="only-a")) for number in range(busy)]
        yield gw, stack, script
        script.let_go()
        for one in running:
            await one.end()
        await gw.until(lambda _: gw.in_flight == 0)
        gw.assert_at_rest()


@pytest.mark.parametrize("policy", ["warm", "least_requests", "power_of_two", "lmetric", "session_hash"])
async def test_o45_what_runs_now_decides_and_not_what_was_done(policy: str) -> None:
    async with one_busy(10, policy) as (gw, stack, script):
        new = [await hold(gw, stack, chat(text(number, "new"))) for number in range(20)]
        places = [one.backend for one in new]
        if policy == "session_hash":  # keys decide below the bound, and at the bound the load does
            assert places.count("b") > places.count("a")
        else:
            assert places[:8] == ["b"] * 8, "b gets them until levels meet"
            assert abs(gw.in_flight_of("a") - gw.in_flight_of("b")) <= 2
        script.let_go()
        for one in new:
            await one.end()


@pytest.mark.parametrize("known", [0, 3], ids=["knows nothing", "knows few prefixes"])
async def test_o46_cold_traffic_goes_to_the_idle_one_not_to_the_smallest_cache(known: int) -> None:
    async with one_busy(30, "warm") as (gw, stack, _):
        client = await stack.enter_async_context(gw.client())
        for number in range(known):
            await place(client, chat(text(number, "known"), model="only-a"))
        for number in range(200):
            await place(client, chat(text(number, "prefix"), model="only-b"))
        holders = gw.gateway.index.stats().holders
        a, b = (backend.instance.id for backend in gw.gateway.registry)
        blocks = Counter[int]()
        for holder, count in holders.items():
            blocks[holder.instance] += count
        assert blocks[b] > 5 * blocks[a], "the idle one holds far more"
        for number in range(15):
            assert await place(client, chat(text(number, "cold"))) == "b"
            assert await place(client, chat(text(number, "cold id")), {"x-session-id": f"cold {number}"}) == "b"


@pytest.mark.parametrize("session_ids", [True, False], ids=["session ids", "prefixes"])
async def test_o48_one_hot_backend_leaves_the_affinity_of_the_others_alone(session_ids: bool) -> None:
    def turn(number: int, last: bool) -> dict[str, object]:
        messages = [{"role": "user", "content": text(number, "talk") * 6}]
        if last:
            messages += [{"role": "assistant", "content": "yes"}, {"role": "user", "content": "go on " * 20}]
        return {"model": "m", "messages": messages}

    def headers(number: int) -> dict[str, str]:
        return {"x-session-id": f"talk {number}"} if session_ids else {}

    script = Holding()
    async with AsyncExitStack() as stack:
        _, backends = await fleet(stack, {"a": ("m", "only-a"), "b": ("m",), "c": ("m",)}, script)
        gw = await stack.enter_async_context(running_gateway(backends, health=NO_RAMP))
        client = await stack.enter_async_context(gw.client())
        homes = {number: await place(client, turn(number, False), headers(number)) for number in range(30)}
        assert set(homes.values()) == {"a", "b", "c"}
        running = [await hold(gw, stack, chat(text(number, "hot"), model="only-a")) for number in range(60)]
        for number, home in homes.items():
            now = await place(client, turn(number, True), headers(number))
            assert now in "bc"
            assert now == home or home == "a", "only those whose own favourite is overloaded move"
        script.let_go()
        for one in running:
            await one.end()
        gw.assert_at_rest()


# Hashing.

FIVE: dict[str, tuple[str, ...]] = dict.fromkeys("abcde", ("m",))
SECRET = {"secret": "${WARMROUTE_TEST_SECRET}"}


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of sessions depend on it: fixed, so that every run has the same spread."""
    monkeypatch.setenv("WARMROUTE_TEST_SECRET", "a secret of sixteen bytes or more")


@asynccontextmanager
async def hashing(
    models: dict[str, tuple[str, ...]], policy: str = "session_hash"
) -> AsyncIterator[tuple[RunningGateway, RawClient, AsyncExitStack, dict[str, ScriptedUpstream], Holding]]:
    script = Holding()
    async with AsyncExitStack() as stack:
        upstreams, backends = await fleet(stack, models, script)
        routes = [{"name": "r", "policy": policy}]
        gw = await stack.enter_async_context(running_gateway(backends, routes=routes, store=SECRET, health=NO_RAMP))
        yield gw, await stack.enter_async_context(gw.client()), stack, upstreams, script
        gw.assert_at_rest()


def id_of(number: int) -> dict[str, str]:
    return {"x-session-id": f"session {number}"}


async def test_o51_overflow_of_a_drowning_backend_moves_on_and_stays_there() -> None:
    """40 of 100 sessions hash to one of five backends, whose share is 20. All are busy, turn after turn."""
    async with hashing(FIVE) as (gw, client, stack, _, script):
        owned: dict[str, list[int]] = defaultdict(list)
        for number in range(400):
            owned[await place(client, chat("x"), id_of(number))].append(number)
        chosen = owned["a"][:40] + [number for name in "bcde" for number in owned[name][:15]]
        assert len(chosen) == 100
        random.Random(51).shuffle(chosen)
        bound = 25  # 1.25 times the mean
        running: dict[int, Held] = {}
        places: dict[int, list[str]] = {number: [] for number in chosen}
        for turn in range(6):
            for start in range(0, 100, 20):  # so many end and begin their next turn at about the same time
                some = chosen[start : start + 20]
                for number in some if turn else ():
                    await running[number].client.close()
                await gw.until(lambda _, left=80 if turn else start: gw.in_flight == left)  # type: ignore[misc]
                for number in some:
                    running[number] = await hold(gw, stack, chat(f"turn {turn}"), id_of(number))
                    places[number].append(running[number].backend)
                    assert gw.in_flight_of("a") <= bound
            random.Random(turn).shuffle(chosen)
        assert gw.in_flight_of("a") >= 20, "it has its share, and is not shunned"
        moves = [sum(before != after for before, after in pairwise(went[1:])) for went in places.values()]
        assert sum(moves) <= 10, "no ping-pong"
        drowned = [number for number in owned["a"][:40] if places[number][-1] != "a"]
        assert 15 <= len(drowned) <= 20
        assert len({places[number][-1] for number in drowned}) > 1, "and not all to the same one"
        script.let_go()
        for one in running.values():
            await one.end()
        await gw.until(lambda _: gw.in_flight == 0)
        back = [await place(client, chat("later"), id_of(number)) for number in drowned]
        assert back == ["a"] * len(drowned), "with room again the owner takes them back: gateways agree on it"


async def test_o52_ten_thousand_keys_spread_and_removal_undoes_what_adding_did() -> None:
    """In memory, for their number; on sockets below."""

    def spread(one: Fleet) -> list[str]:
        prepared = one.prepare(b'{"model": "m", "messages": []}')
        places = []
        for number in range(10_000):
            prepared.session = number.to_bytes(16, "big")  # type: ignore[assignment]
            placement = one.router.place(prepared)
            places.append(placement.metrics.name)
            one.router.settle(placement, None, 0)
            one.sessions.forget_instance(placement.lease.instance.id)
        return places

    with Fleet(policy="session_hash") as one:
        names = {f"w{number}" for number in range(10)}
        for name in sorted(names):
            one.add(name)
        first = spread(one)
        assert max(Counter(first).values()) <= 1.15 * 1000
        rng, present = random.Random(52), set(names)
        for number in range(200):
            if rng.random() < 0.5 and len(present) > 5:
                gone = rng.choice(sorted(present))
                present.remove(gone)
                one.registry.remove(BackendId(gone))
            else:
                new = rng.choice(sorted(names - present) or [f"x{number}"])
                present.add(new)
                one.add(new)
        for gone in present - names:
            one.registry.remove(BackendId(gone))
        for new in names - present:
            one.add(new)
        assert spread(one) == first


async def test_o52_on_sockets_backends_that_come_and_go_leave_every_session_where_it_was() -> None:
    async with hashing({f"w{number}": ("m",) for number in range(10)}) as (gw, client, _, _, _):
        registry, prober = gw.gateway.registry, gw.gateway.prober
        first = [await place(client, chat("x"), id_of(number)) for number in range(500)]
        assert max(Counter(first).values()) <= 1.3 * 50
        rng = random.Random(52)
        for _ in range(20):
            gone = rng.choice(sorted(backend.name for backend in registry))
            left = registry.get(BackendId(gone))
            assert left is not None
            await prober.unwatch(left)
            registry.remove(left.name)
            prober.watch(registry.add(left.spec))
            await left.upstream.close()
        await gw.until(lambda g: all(backend.models for backend in g.registry))
        assert [await place(client, chat("x"), id_of(number)) for number in range(500)] == first

"""Field cases F: load counts and the spread of requests."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from contextlib import AsyncExitStack
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.gateway import RawClient, chat, running_gateway
from tests.support.streams import StreamClient, StreamUpstream, paced
from tests.support.upstream import DONE, SSE_HEAD, ScriptedUpstream, Served, chunk, token

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.gateway import RunningGateway

USERS = 200
TURNS = 3
SYSTEM = ("You are the assistant of a large shop. Be brief, be kind, and never invent an order number. " * 100)[:8192]


def conversation(user: int, turn: int) -> dict[str, Any]:
    """What a user sends in a turn: the shared system prompt, and everything said before."""
    body = paced("", events=2)
    messages = [{"role": "system", "content": SYSTEM}]
    for earlier in range(turn + 1):
        messages.append({"role": "user", "content": f"User {user} asks in turn {earlier}: where is order {user * 7}?"})
        if earlier < turn:
            messages.append({"role": "assistant", "content": f"Order {user * 7} is on its way, as of turn {earlier}."})
    return {**body, "messages": messages}


class Chats:
    """All users' conversations, a given number of them at a time; who was served where."""

    def __init__(self, gw: RunningGateway, *, session_ids: bool) -> None:
        self._gw = gw
        self._session_ids = session_ids
        self._users = iter(range(USERS))
        self.places: dict[int, list[str]] = defaultdict(list)

    async def run(self, at_once: int) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(self._worker())

    async def _worker(self) -> None:
        client = await StreamClient.connect(self._gw.host, self._gw.port)
        try:
            for user in self._users:
                for turn in range(TURNS):
                    headers = {"x-session-id": f"user-{user}"} if self._session_ids else None
                    await client.send(conversation(user, turn), headers)
                    assert client.whole, client.error
                    self.places[user].append(client.header("x-warmroute-backend") or "")
        finally:
            await client.close()

    @property
    def stayed(self) -> float:
        """Share of the later turns that went where the turn before had gone."""
        later = [pair for places in self.places.values() for pair in pairwise(places)]
        return sum(before == after for before, after in later) / len(later)


@pytest.mark.parametrize("session_ids", [True, False], ids=["session ids", "lineage"])
@pytest.mark.parametrize("at_once", [1, 4, 20, 200])
async def test_o44_a_shared_system_prompt_spreads_users_and_later_turns_stay(at_once: int, session_ids: bool) -> None:
    async with AsyncExitStack() as stack:
        upstreams = [await stack.enter_async_context(StreamUpstream()) for _ in range(4)]
        gw = await stack.enter_async_context(running_gateway([upstream.url for upstream in upstreams]))
        chats = Chats(gw, session_ids=session_ids)
        await chats.run(at_once)
        gw.assert_at_rest()
    users = Counter(places[0] for places in chats.places.values())
    requests = Counter(place for places in chats.places.values() for place in places)
    assert requests.total() == sum(upstream.requests for upstream in upstreams) == USERS * TURNS
    assert max(users.values()) <= 1.3 * USERS / 4, users
    assert max(requests.values()) <= 1.3 * USERS * TURNS / 4, requests
    assert chats.stayed >= 0.9


def different(number: int) -> str:
    return f"question {number}: " + f"{number * 7919} is the number. " * 20


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    "text",
    [different, lambda _: "ping", lambda _: "one of many samples " * 10, lambda _: "a long one " * 1000],
    ids=["different prompts", "one short prompt", "samples of one prompt", "samples of one long prompt"],
)
async def test_o47_a_burst_spreads_before_any_head_is_there(text: Callable[[int], str], stream: bool) -> None:
    arrived = 0
    all_there, release = asyncio.Event(), asyncio.Event()

    async def script(served: Served) -> None:
        nonlocal arrived
        arrived += 1
        if arrived == 100:
            all_there.set()
        await release.wait()
        await (served.stream(token()) if stream else served.respond({"choices": []}))

    async with AsyncExitStack() as stack:
        upstreams = [await stack.enter_async_context(ScriptedUpstream(script)) for _ in range(4)]
        gw = await stack.enter_async_context(running_gateway([upstream.url for upstream in upstreams]))
        clients = [await stack.enter_async_context(gw.client()) for _ in range(100)]
        for number, client in enumerate(clients):
            await client.send(chat(text(number), stream=stream))
        await asyncio.wait_for(all_there.wait(), 20)
        assert sorted(gw.in_flight_of(name) for name in "abcd") == sorted(len(u.requests) for u in upstreams)
        assert all(22 <= len(upstream.requests) <= 28 for upstream in upstreams), [len(u.requests) for u in upstreams]
        release.set()
        for client in clients:
            response = await client.receive()
            assert response.status == 200
            await response.read()
        gw.assert_at_rest()


def inflight(gw: RunningGateway, name: str) -> float:
    """As an operator sees it."""
    start = f'warmroute_inflight{{backend="{name}"}} '
    lines = gw.gateway.metrics.render().decode().splitlines()
    return next(float(line.removeprefix(start)) for line in lines if line.startswith(start))


@pytest.mark.parametrize("health_status", [200, 503], ids=["healthy", "too busy for probes"])
async def test_o49_probes_leave_the_counts_of_running_streams_alone(health_status: int) -> None:
    release = asyncio.Event()

    async def script(served: Served) -> None:
        await served.write(SSE_HEAD + chunk(token()))
        await release.wait()
        await served.write(chunk(DONE) + b"0\r\n\r\n")

    async with (
        ScriptedUpstream(script) as a,
        ScriptedUpstream(models=("other",)) as b,
        running_gateway([a.url, b.url], health={"interval_s": 0.05, "metrics_interval_s": 0.05}) as gw,
        AsyncExitStack() as stack,
    ):
        clients = [await stack.enter_async_context(gw.client()) for _ in range(50)]
        for number, client in enumerate(clients):
            await client.send(chat(different(number), stream=True))
        responses = [await client.receive() for client in clients]
        a.health_status = health_status  # the engine's own gauge says 0 all the time
        probes = a.health_probes
        for cycle in range(1, 5):
            async with asyncio.timeout(10):
                while a.health_probes < probes + cycle:
                    await asyncio.sleep(0.005)
            assert gw.in_flight_of("a") == 50
            assert inflight(gw, "a") == 50
        release.set()
        for response in responses:
            await response.read()
            assert response.complete
        assert inflight(gw, "a") == 0
        gw.assert_at_rest()


async def test_o50_a_flap_leaves_no_count_behind_and_none_below_zero() -> None:
    releases = [asyncio.Event() for _ in range(7)]

    async def script(served: Served) -> None:
        await served.write(SSE_HEAD + chunk(token()))
        await releases[served.json["seed"]].wait()
        await served.write(chunk(DONE) + b"0\r\n\r\n")

    async with ScriptedUpstream(script) as a, running_gateway([a.url]) as gw, AsyncExitStack() as stack:
        registry, prober = gw.gateway.registry, gw.gateway.prober

        async def start(numbers: range) -> list[RawClient]:
            clients = [await stack.enter_async_context(gw.client()) for _ in numbers]
            for number, client in zip(numbers, clients, strict=True):
                await client.send(chat(different(number), stream=True, seed=number))
            return clients

        clients = await start(range(5))
        await a.until(lambda u: len(u.requests) == 5)
        old = next(iter(registry))
        await prober.unwatch(old)
        registry.remove(old.name)
        new = registry.add(old.spec)
        prober.watch(new)
        await gw.until(lambda _: bool(new.models))
        assert (old.instance.in_flight, new.instance.in_flight, inflight(gw, "a")) == (5, 0, 0)

        clients += await start(range(5, 7))
        await a.until(lambda u: len(u.requests) == 7)
        assert (old.instance.in_flight, new.instance.in_flight) == (5, 2)
        responses = [await client.receive() for client in clients]
        for number in (5, 0, 1, 6, 2, 3, 4):  # of the new life first, then mixed
            releases[number].set()
            await asyncio.wait_for(responses[number].read(), 10)
            assert responses[number].complete
            left = sum(not release.is_set() for release in releases[:5]), sum(not r.is_set() for r in releases[5:])
            assert (old.instance.in_flight, new.instance.in_flight) == left
            assert inflight(gw, "a") == left[1]
        gw.assert_at_rest()
        await asyncio.wait_for(old.upstream.close(), 10)

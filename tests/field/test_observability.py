"""Field cases H: label values and bookkeeping that grow with traffic. O72 is in tests/integration/test_lifecycle.py."""

from __future__ import annotations

import asyncio
import gc
import random
from collections import Counter, OrderedDict, deque
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.support.gateway import chat, request_bytes, running_gateway
from tests.support.memory import resident_mib
from tests.support.scrape import counted, series
from tests.support.streams import StreamClient, StreamUpstream, paced
from tests.support.upstream import SSE_HEAD, ScriptedUpstream, Served, chunk, token

if TYPE_CHECKING:
    from tests.support.gateway import RawClient, RunningGateway

ROUTES = ["/v1/chat/completions", "/v1/completions"]


async def statuses(client: RawClient, wire: list[bytes]) -> Counter[int]:
    """Sent in one write, answered one by one."""
    client.writer.write(b"".join(wire))
    found: Counter[int] = Counter()
    for _ in wire:
        response = await client.receive()
        await response.read()
        found[response.status] += 1
    return found


async def test_o70_five_thousand_model_names_make_one_label_value_and_count_as_404() -> None:
    rng = random.Random(70)

    def request(number: int) -> bytes:
        name = f"{rng.randbytes(4 + number % 20).hex()}-{number}"
        path = ROUTES[number % 2]
        body = {**chat("x", model=name, stream=number % 3 == 0), "prompt": "x"}
        return request_bytes(body, path, headers={"x-session-id": name})

    async with ScriptedUpstream() as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        await statuses(client, [request_bytes(chat()), request(0), request(1)])
        before = series(gw.gateway)
        count = 5000
        found: Counter[int] = Counter()
        for start in range(0, count, 100):
            found += await statuses(client, [request(number) for number in range(start, start + 100)])
        assert found == {404: count}
        assert series(gw.gateway) == before
        labels = {"model": "unknown", "backend": "none"}
        assert counted(gw.gateway, "warmroute_requests_total", status="404", **labels) == count + 2
        assert counted(gw.gateway, "warmroute_requests_total", status="200", **labels) == 0
        assert len(upstream.requests) == 1
        gw.assert_at_rest()


async def test_o70_nothing_else_that_clients_choose_becomes_a_label() -> None:
    rng = random.Random(71)

    def requests(number: int) -> list[bytes]:
        odd = f"x{rng.randbytes(8).hex()}"
        own = {
            "x-request-id": odd,
            "user-agent": odd,
            "x-warmroute-class": odd,
            "x-warmroute-deadline-ms": odd,
            "host": f"{odd}.test",
        }
        return [
            request_bytes(chat(user=odd, cache_salt=odd), headers=own),
            request_bytes(chat(), f"{ROUTES[0]}?{odd}"),
            request_bytes(b"", f"/v1/models/{odd}", "GET"),
            request_bytes(b"{}", f"/v1/{odd}"),
            request_bytes(b"", ROUTES[0], f"X{odd[:6].upper()}" if number % 2 else "PUT"),
            request_bytes(chat(), headers={"content-type": f"text/{odd}"}),
        ]

    async with ScriptedUpstream() as upstream, running_gateway([upstream.url]) as gw:
        before: set[tuple[str, ...]] = set()
        for number in range(60):
            for wire in requests(number):
                async with gw.client() as client:
                    await statuses(client, [wire])
            if number == 1:
                before = series(gw.gateway)
        assert series(gw.gateway) == before
        gw.assert_at_rest()


# Bookkeeping.

OURS: Final = ("gateway.", "backends.", "routing.", "prefix_index.", "vocabulary")
CONTAINERS: Final = (dict, set, list, deque, OrderedDict)


def kept() -> tuple[Counter[str], int, int]:
    """Objects of ours by their class, all objects, and the entries of all containers."""
    gc.collect()
    objects = gc.get_objects()
    ours = Counter(type(one).__qualname__ for one in objects if str(type(one).__module__).startswith(OURS))
    # the collector does not list containers of plain numbers and strings, but their owners
    containers = {id(one): len(one) for one in gc.get_referents(*objects) if type(one) in CONTAINERS}
    return ours, len(objects), sum(containers.values())


async def failing(served: Served) -> None:
    match served.number % 6:
        case 0:
            await served.respond({"error": {}}, 400)
        case 1:
            await served.respond({"error": {}}, 500)
        case 2:
            await served.respond({"error": {}}, 503)
        case 3:
            served.reset()
        case 4:
            await served.write(SSE_HEAD + chunk(token()))
            served.reset()
        case _:
            await served.write(b"no http\r\n\r\n")
            served.reset()


class Mill:
    """Requests of every outcome, from prompts and sessions that come back."""

    def __init__(self, gw: RunningGateway) -> None:
        self._gw = gw
        self.outcomes: Counter[str] = Counter()

    async def run(self, good: int, aborted: int, failed: int, unknown: int) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(20):
                group.create_task(self._good(number, good // 20))
            group.create_task(self._aborted(aborted))
            group.create_task(self._failed(failed, unknown))
        await self._gw.until(lambda g: self._gw.in_flight == 0 and not g.connections)

    async def _good(self, number: int, count: int) -> None:
        client = await StreamClient.connect(self._gw.host, self._gw.port)
        try:
            for turn in range(count):
                headers = {"x-session-id": f"{number}"} if turn % 2 else None
                await client.send(paced(f"{number} {turn % 5} " * 40, events=1), headers)
                assert client.whole, client.error
                self.outcomes["good"] += 1
        finally:
            await client.close()

    async def _aborted(self, count: int) -> None:
        for start in range(0, count, 20):
            clients = [await StreamClient.connect(self._gw.host, self._gw.port) for _ in range(20)]
            for number, client in enumerate(clients):
                phase = number % 4  # at once, before the head, in the body, after a whole one
                client.send(paced(f"abort {number} " * 40, events=2, gap_s=5, head_s=None if phase == 1 else 0))
                if phase == 0:
                    client.transport.abort()
            await asyncio.sleep(0.01)
            for client in clients:
                await client.close()
            self.outcomes["aborted"] += len(clients)
            assert start < count

    async def _failed(self, failed: int, unknown: int) -> None:
        for number in range(failed + unknown):
            async with self._gw.client() as client:
                model = "bad" if number < failed else f"unknown {number}"
                body: Any = chat(f"{number % 7} " * 40, model=model, stream=number % 2 == 0)
                response = await client.ask(body if number % 9 else b"{")
                await response.read()
                self.outcomes[f"{response.status // 100}xx"] += 1


async def test_o71_nothing_is_kept_of_twenty_thousand_requests() -> None:
    health = {"interval_s": 60, "metrics_interval_s": 60, "eject_after_failures": 10_000}
    async with (
        StreamUpstream() as upstream,
        ScriptedUpstream(failing, models=("bad",)) as bad,
        running_gateway([upstream.url, bad.url], health=health, sessions={"max_sessions": 200}) as gw,
    ):
        mill = Mill(gw)
        await mill.run(good=6000, aborted=600, failed=600, unknown=200)
        bad.requests.clear()
        ours, objects, entries = kept()
        before_mib = resident_mib()
        await mill.run(good=11_000, aborted=1000, failed=400, unknown=200)
        bad.requests.clear()
        ours_after, objects_after, entries_after = kept()
        assert mill.outcomes.total() == 20_000
        assert mill.outcomes["good"] == 17_000
        assert min(mill.outcomes["4xx"], mill.outcomes["5xx"]) >= 100
        grown = {name: count - ours[name] for name, count in ours_after.items() if count > ours[name] + 20}
        assert not grown
        assert objects_after - objects < 1000
        assert entries_after - entries < 2000
        # a kilobyte left of each would be 13 MiB; the heap of a worker that has run many tests breathes by as much
        assert resident_mib() - before_mib < 32
        gw.assert_at_rest()
        assert not gw.gateway.connections
        assert not gw.gateway.batch._ready


@pytest.mark.parametrize("of", ["requests", "sessions"])
async def test_o71_what_is_kept_on_purpose_has_its_bound(of: str) -> None:
    """Every prompt and every session is new: the index and the sessions stay at their limits."""
    sections = {"store": {"max_entries": 200}, "sessions": {"max_sessions": 50}}
    async with ScriptedUpstream() as upstream, running_gateway([upstream.url], **sections) as gw, gw.client() as client:
        for number in range(400):
            headers = {"x-session-id": f"s{number}"} if of == "sessions" else {}
            await (await client.ask(chat(f"{number} is a new one " * 20), headers=headers)).read()
        assert gw.gateway.index.stats().entries <= 200
        assert gw.gateway.index.stats().evicted_total > 0
        stats = gw.gateway.sessions.stats()
        assert stats.sessions == 50
        assert stats.names <= 100
        assert counted(gw.gateway, "warmroute_index_evicted_total") > 0
        gw.assert_at_rest()

"""Field cases G: slow, frozen, loading and missing backends. tests/integration/test_backends.py has the plain ones."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

from backends.health import State
from tests.support.gateway import chat, running_gateway
from tests.support.scrape import counted
from tests.support.upstream import DONE, SSE_HEAD, ScriptedUpstream, Served, answer, chunk, token
from vocabulary import BackendId

if TYPE_CHECKING:
    from backends.backend import Backend
    from tests.support.gateway import RunningGateway

NEVER = {"interval_s": 600, "metrics_interval_s": 600, "slow_start_s": 0}
JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 50\r\n\r\n"


class Frozen(ScriptedUpstream):
    """Its `/health` does not answer while `frozen`."""

    frozen = False

    async def _probe(self, served: Served) -> None:
        if self.frozen and served.target == "/health":
            self.health_probes += 1
            await served.until_closed()
            return
        await super()._probe(served)


def backend(gw: RunningGateway, name: str = "a") -> Backend:
    found = gw.gateway.registry.get(BackendId(name))
    assert found is not None
    return found


async def ask(gw: RunningGateway, text: str = "hello", version: str = "1.1", **fields: Any) -> int:
    async with gw.client() as client:
        response = await client.ask(chat(text, **fields), version=version)
        await response.read()
        return response.status


async def ready(gw: RunningGateway) -> int:
    async with gw.client() as client:
        return (await client.ask(b"", path="/readyz", method="GET")).status


# Loading and missing.


async def test_o59_a_port_that_is_open_gets_no_traffic_before_the_engine_answers() -> None:
    """It accepts and says nothing, then is unhealthy, then has no model; the requests of a peer go on."""
    async with Frozen(models=()) as loading, ScriptedUpstream() as peer:
        loading.frozen = True
        health = {"interval_s": 0.05, "timeout_s": 0.1, "slow_start_s": 0}
        entries: list[dict[str, Any]] = [
            {"name": "a", "url": loading.url, "models": ["m"]},
            {"name": "b", "url": peer.url},
        ]
        async with running_gateway(entries, health=health) as gw:
            for step in ("silent", "unhealthy"):
                probes = loading.health_probes
                while loading.health_probes < probes + 3:
                    assert await ask(gw, f"{step} {loading.health_probes} " * 40) == 200
                assert not loading.requests
                assert backend(gw).health.state is State.DOWN
                loading.frozen, loading.health_status = False, 503
            loading.health_status = 200
            await gw.until(lambda _: backend(gw).health.state is State.UP)
            for number in range(20):
                assert await ask(gw, f"up {number} " * 40, stream=number % 2 == 0) == 200
            assert loading.requests


@pytest.mark.parametrize("down", [1, 3], ids=["one of three", "all three"])
async def test_o60_it_starts_with_backends_missing_and_the_late_ones_join(down: int) -> None:
    async with AsyncExitStack() as stack:
        upstreams = [await stack.enter_async_context(ScriptedUpstream()) for _ in range(3)]
        for upstream in upstreams[:down]:
            await upstream.shut()
        health = {"interval_s": 0.05, "slow_start_s": 0}
        gw = await stack.enter_async_context(running_gateway([u.url for u in upstreams], health=health))
        assert await ready(gw) == (503 if down == 3 else 200)
        assert await ask(gw) == (503 if down == 3 else 200)
        for upstream in upstreams[:down]:
            await upstream.listen()
            stack.push_async_callback(upstream.shut)
        await gw.until(lambda g: all(one.health.state is State.UP for one in g.registry))
        assert await ready(gw) == 200
        for number in range(30):
            assert await ask(gw, f"prompt {number} " * 40) == 200
        assert all(upstream.requests for upstream in upstreams)


# Busy.


@pytest.mark.parametrize("chunked", [True, False], ids=["stream", "slow whole answer"])
async def test_o61_an_answer_that_flows_is_life_however_long_probes_stay_unanswered(chunked: bool) -> None:
    """The only backend, one long answer whose head is old, no other request; as an engine that compiles meanwhile."""
    over = asyncio.Event()
    count = 0

    async def script(served: Served) -> None:
        nonlocal count
        head = SSE_HEAD if chunked else b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n"
        await served.write(head)
        while not over.is_set():
            count += 1
            await served.write(chunk(token("t")) if chunked else b"text ")
            await asyncio.sleep(0.01)
        if chunked:
            await served.write(chunk(DONE) + b"0\r\n\r\n")
        else:
            served.writer.close()

    health = {"interval_s": 0.05, "timeout_s": 0.05, "fail_threshold": 2, "metrics_interval_s": 600, "slow_start_s": 0}
    async with Frozen(script) as upstream, running_gateway([upstream.url], health=health) as gw, gw.client() as client:
        response = await client.ask(chat(stream=chunked))
        reading = asyncio.create_task(response.read())
        upstream.frozen = True
        probes = upstream.health_probes
        async with asyncio.timeout(20):
            while upstream.health_probes < probes + 8:
                assert backend(gw).health.state is State.UP
                await asyncio.sleep(0.005)
        assert await ready(gw) == 200
        over.set()
        assert (await reading).count(b"t") >= count
        await gw.until(lambda _: backend(gw).health.state is State.DOWN)  # neither traffic nor probes: gone


async def test_o61_thresholds_are_the_operators_and_all_down_is_a_503_that_says_when() -> None:
    health = {"interval_s": 0.05, "timeout_s": 0.05, "fail_threshold": 5, "pass_threshold": 3, "slow_start_s": 0}
    async with Frozen() as upstream, running_gateway([upstream.url], health=health) as gw:
        upstream.frozen = True
        probes = upstream.health_probes
        await gw.until(lambda _: backend(gw).health.state is State.DOWN)
        assert upstream.health_probes - probes >= 5
        async with gw.client() as client:
            response = await client.ask(chat())
            assert response.status == 503
            assert response.header("content-type") == "application/json"
            assert int(response.header("retry-after") or 0) >= 1
            assert (await response.error())["code"] == "no_backend_available"
        upstream.frozen = False
        probes = upstream.health_probes
        await gw.until(lambda _: backend(gw).health.state is State.UP)
        assert upstream.health_probes - probes >= 3
        assert await ask(gw) == 200


async def test_o61_fail_open_sends_requests_all_the_same() -> None:
    health = {"interval_s": 0.05, "timeout_s": 0.05, "fail_threshold": 1, "fail_open": True, "slow_start_s": 0}
    async with Frozen() as upstream, running_gateway([upstream.url], health=health) as gw:
        upstream.frozen = True
        await gw.until(lambda _: backend(gw).health.state is State.DOWN)
        for stream in (False, True):
            assert await ask(gw, stream=stream) == 200
        backend(gw).drain("admin", gw.gateway.clock())
        assert await ask(gw) == 503, "what an operator took out stays out"


# Frozen behind a healthy frontend.


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("head", [False, True], ids=["no head", "head alone"])
async def test_o62_a_frozen_engine_behind_a_healthy_frontend_is_ejected_and_tried_later(
    head: bool, stream: bool
) -> None:
    """Servers send the head of a stream at once, whatever the engine does: it says nothing."""
    frozen = True

    async def script(served: Served) -> None:
        if not frozen:
            await answer(served)
            return
        if head:
            await served.write(SSE_HEAD if stream else JSON_HEAD)
        await served.until_closed()

    limits = {"first_byte_timeout_s": 0.05, "idle_timeout_s": 0.05}
    health = {**NEVER, "eject_after_failures": 3, "eject_s": 0.3}
    async with (
        ScriptedUpstream(script) as a,
        ScriptedUpstream() as b,
        running_gateway([a.url, b.url], limits=limits, health=health) as gw,
    ):
        for number in range(60):
            status = await ask(gw, f"prompt {number} " * 40, stream=stream)
            assert status in ((200,) if head else (200, 504))
            if backend(gw).health.state is State.EJECTED:
                break
        assert backend(gw).health.state is State.EJECTED
        assert len(a.requests) == 3
        kind = "idle_timeout" if head else "first_byte_timeout"
        assert counted(gw.gateway, "warmroute_upstream_errors_total", backend="a", kind=kind) == 3
        served = len(b.requests)
        for number in range(5):
            assert await ask(gw, f"later {number} " * 40, stream=stream) == 200
        assert len(b.requests) - served >= 4, "its peer has the rest"
        frozen = False
        for number in range(200):
            await gw.until(lambda g: backend(gw).health.retry_in_s(g.clock()) == 0)
            assert await ask(gw, f"trial {number} " * 40, stream=stream) == 200
            if backend(gw).health.state is State.UP:
                break
        assert backend(gw).health.state is State.UP
        gw.assert_at_rest()

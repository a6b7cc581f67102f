"""Field cases G: connections to backends that are dead, refused, or never made."""

from __future__ import annotations

import socket
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from backends.health import State
from tests.field.test_health import NEVER, ask, backend
from tests.support.gateway import running_gateway
from tests.support.scrape import counted
from tests.support.streams import StreamUpstream
from tests.support.upstream import ScriptedUpstream, Served, answer

if TYPE_CHECKING:
    import asyncio


@pytest.mark.parametrize("version", ["1.1", "1.0"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_o65_backends_that_close_after_each_answer_cost_no_request(stream: bool, version: str) -> None:
    """Without having said so: noticed before the next request, or by it."""
    used: set[asyncio.StreamWriter] = set()
    answered = 0

    async def script(served: Served) -> None:
        nonlocal answered
        if served.writer in used:
            served.reset()
            return
        used.add(served.writer)
        await answer(served)
        answered += 1
        if answered % 3 == 0:
            served.writer.close()

    async with AsyncExitStack() as stack:
        upstreams = [await stack.enter_async_context(ScriptedUpstream(script)) for _ in range(2)]
        gw = await stack.enter_async_context(running_gateway([u.url for u in upstreams], health=NEVER))
        for number in range(60):
            assert await ask(gw, f"prompt {number} " * 40, version, stream=stream) == 200
        assert counted(gw.gateway, "warmroute_upstream_errors_total") == 0
        assert answered == 60
        assert sum(len(upstream.requests) for upstream in upstreams) > 60, "some met a dead connection"
        gw.assert_at_rest()


async def test_o65_no_silent_second_time_once_a_byte_of_the_answer_has_come() -> None:
    async def script(served: Served) -> None:
        if served.number == 0:
            await answer(served)
            return
        await served.write(b"HTTP/1.1 200")
        served.reset()

    async with ScriptedUpstream(script) as upstream, running_gateway([upstream.url], health=NEVER) as gw:
        assert await ask(gw) == 200
        assert await ask(gw) == 502
        assert len(upstream.requests) == 2
        gw.assert_at_rest()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_o66_one_of_three_stops_between_probes_and_all_requests_succeed(stream: bool) -> None:
    async with AsyncExitStack() as stack:
        upstreams = [await stack.enter_async_context(ScriptedUpstream()) for _ in range(3)]
        health = {**NEVER, "eject_after_failures": 4, "eject_s": 600}
        gw = await stack.enter_async_context(running_gateway([u.url for u in upstreams], health=health))
        for number in range(10):
            await ask(gw, f"before {number} " * 40)
        stopped = upstreams[1]
        await stopped.shut()
        statuses = [await ask(gw, f"prompt {number} " * 40, stream=stream) for number in range(100)]
        assert statuses == [200] * 100
        assert backend(gw, "b").health.state is State.EJECTED
        assert counted(gw.gateway, "warmroute_upstream_errors_total", backend="b") == 4, "its threshold, and no more"
        gw.assert_at_rest()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_o66_one_that_lets_connections_wait_is_given_up_like_one_that_refuses(stream: bool) -> None:
    """Its queue of new connections is full: no refusal, and no answer either."""
    async with AsyncExitStack() as stack:
        full = await stack.enter_async_context(StreamUpstream())
        peer = await stack.enter_async_context(ScriptedUpstream())
        health = {**NEVER, "eject_after_failures": 2, "eject_s": 600}
        limits = {"connect_timeout_s": 0.1, "keepalive_idle_s": 0.05}
        gw = await stack.enter_async_context(running_gateway([full.url, peer.url], health=health, limits=limits))
        stack.callback(full.freeze().close)
        for _ in range(16):
            filler = socket.socket()
            stack.callback(filler.close)
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", full.port))
        for number in range(100):
            assert await ask(gw, f"prompt {number} " * 40, stream=stream) == 200
            if backend(gw).health.state is State.EJECTED:
                break
        assert backend(gw).health.state is State.EJECTED
        assert counted(gw.gateway, "warmroute_retries_total", reason="connect_timeout") == 2
        assert await ask(gw, "later", stream=stream) == 200
        gw.assert_at_rest()

"""A start with any part of the fleet down, and checkers that survive what is done to them."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace

import pytest

from backends.health import State
from backends.prober import ProbePolicy
from tests.integration.test_drain import ask, backend, status_of
from tests.support.gateway import chat, running_gateway
from tests.support.upstream import SSE_HEAD, ScriptedUpstream, Served, chunk, token

SUBSETS = [chosen for size in range(4) for chosen in itertools.combinations(range(3), size)]


@pytest.mark.parametrize("down", SUBSETS, ids=lambda down: "down " + ("".join("abc"[i] for i in down) or "none"))
async def test_o60_starts_with_any_subset_down_and_the_late_ones_join(down: tuple[int, ...]) -> None:
    upstreams = [ScriptedUpstream() for _ in range(3)]
    try:
        for upstream in upstreams:
            await upstream.listen()
        for number in down:
            await upstreams[number].shut()
        health = {"interval_s": 0.05, "slow_start_s": 0}
        urls = [upstream.url for upstream in upstreams]
        async with running_gateway(urls, health=health) as gw, gw.client() as client:
            up = [number for number in range(3) if number not in down]
            response = await client.ask(b"", path="/readyz", method="GET")
            assert response.status == (200 if up else 503)
            await response.read()
            answers = [await ask(gw, f"session {number}") for number in range(9)]
            if up:
                assert {status for status, _ in answers} == {200}
                assert {name for _, name in answers} == {"abc"[number] for number in up}
            else:
                assert {status for status, _ in answers} == {503}
            for number in down:
                await upstreams[number].listen()
            await gw.until(lambda g: all(one.health.state is State.UP for one in g.registry))
            assert (await client.ask(b"", path="/readyz", method="GET")).status == 200
            names = {(await ask(gw, f"later {number}"))[1] for number in range(12)}
            assert names >= {"abc"[number] for number in down}
            gw.assert_at_rest()
    finally:
        for upstream in upstreams:
            await upstream.shut()


async def test_whoever_is_new_or_back_beside_older_ones_is_eased_in() -> None:
    health = {"interval_s": 0.05, "slow_start_s": 2, "fail_threshold": 1}
    async with ScriptedUpstream() as a, ScriptedUpstream() as b, running_gateway([a.url, b.url], health=health) as gw:
        fleet = gw.gateway.fleet

        def eased() -> bool:
            return list(fleet.ramps) == [backend(gw, "a").instance.id]

        await gw.until(lambda g: all(one.health.state is State.UP for one in g.registry))
        assert not fleet.ramps, "they start together"
        await asyncio.sleep(1.1)
        a.metrics = a.metrics.replace("seconds 1000", "seconds 2000")
        await gw.until(lambda _: eased())
        fleet.ramps.clear()
        a.health_status = 500
        await gw.until(lambda _: backend(gw, "a").health.state is State.DOWN)
        a.health_status = 200
        await gw.until(lambda _: eased())
        assert (await status_of(gw, "a"))["slow_start"] < 1
        assert (await status_of(gw, "b"))["slow_start"] == 1


async def test_o69_after_five_changes_there_is_one_checker_and_it_checks() -> None:
    async with ScriptedUpstream() as a, ScriptedUpstream() as b, running_gateway([a.url, b.url]) as gw:
        gateway = gw.gateway
        for number in range(5):
            gateway.prober.set_policy(ProbePolicy(interval_s=0.05 + number / 1000, timeout_s=1.0))
            for name in "ab":
                one = backend(gw, name)
                endpoint = replace(one.spec.endpoint, authorization=f"Bearer {number}")
                gateway.control.change(replace(one.spec, endpoint=endpoint))
            await asyncio.sleep(0)
        await gw.until(lambda _: _checkers() == ["probe a", "probe b"])
        await b.shut()
        await gw.until(lambda _: backend(gw, "b").health.state is State.DOWN)
        assert await ask(gw) == (200, "a")
        await b.listen()
        await gw.until(lambda _: backend(gw, "b").health.state is State.UP)


def _checkers() -> list[str]:
    return sorted(task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("probe "))


async def test_o61_an_engine_whose_stream_flows_is_not_dead() -> None:
    """One request only, whose head was long ago."""
    done = asyncio.Event()

    async def flow(served: Served) -> None:
        await served.write(SSE_HEAD)
        while not done.is_set():
            await served.write(chunk(token()))
            await asyncio.sleep(0.01)
        await served.write(b"0\r\n\r\n")

    health = {"interval_s": 0.05, "fail_threshold": 1}
    async with (
        ScriptedUpstream(flow) as upstream,
        running_gateway([upstream.url], health=health) as gw,
        gw.client() as client,
    ):
        response = await client.ask(chat(stream=True))
        upstream.health_status = 500
        await asyncio.sleep(0.25)  # past the time for which a response head speaks
        assert backend(gw, "a").last_error == "HTTPStatusError"
        assert backend(gw, "a").health.state is State.UP
        done.set()
        await response.read()
        await gw.until(lambda _: backend(gw, "a").health.state is State.DOWN)


async def test_o61_fail_open_keeps_a_fleet_whose_probes_all_fail_in_service() -> None:
    async with (
        ScriptedUpstream() as upstream,
        running_gateway([upstream.url], health={"interval_s": 0.05, "fail_threshold": 1, "fail_open": True}) as gw,
        gw.client() as client,
    ):
        upstream.health_status = 500
        await gw.until(lambda _: backend(gw, "a").health.state is State.DOWN)
        assert (await client.ask(b"", path="/readyz", method="GET")).status == 200
        response = await client.ask(chat())
        assert (response.status, response.header("x-warmroute-decision")) == (200, "fallback")

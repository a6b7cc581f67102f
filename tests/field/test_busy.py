"""Field case O13: busy, gone and unknown are told apart, in answers and in metrics."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from backends.health import State
from tests.field.test_refusals import ROUTES, asked, assert_refused_as_is, refusal, two
from tests.support.gateway import chat
from tests.support.holding import hold
from tests.support.scrape import counted
from tests.support.upstream import SSE_HEAD, Served, answer, chunk, token

if TYPE_CHECKING:
    from tests.support.gateway import RawClient, RunningGateway

RARELY = {"interval_s": 600, "metrics_interval_s": 600, "slow_start_s": 0}
EJECTING = {**RARELY, "eject_after_failures": 2, "eject_s": 600}


async def failure(client: RawClient, model: str, stream: bool) -> tuple[int, str]:
    response = await client.ask(chat(model=model, stream=stream))
    return response.status, (await response.error())["code"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_o13_gone_and_unknown_have_statuses_and_labels_of_their_own(stream: bool) -> None:
    async with AsyncExitStack() as stack:
        _, gw = await two(stack)
        client = await stack.enter_async_context(gw.client())
        assert await failure(client, "none-such", stream) == (404, "model_not_found")
        for backend in gw.gateway.registry:
            backend.health.probe_failed(gw.gateway.clock(), 0, refused=True)
        assert await failure(client, "m", stream) == (503, "no_backend_available")
        assert await failure(client, "none-such", stream) == (404, "model_not_found")
        answers = {"backend": "none", "route": "default"}
        assert counted(gw.gateway, "warmroute_requests_total", status="503", model="m", **answers) == 1
        assert counted(gw.gateway, "warmroute_requests_total", status="404", model="unknown", backend="none") == 2


class Full:
    """One stream runs there, and all else is refused while `full`."""

    def __init__(self) -> None:
        self.full = False

    async def __call__(self, one: Served) -> None:
        if one.json.get("hold"):
            await one.write(SSE_HEAD + chunk(token()))
            await one.until_closed()
        elif self.full:
            await one.respond(refusal(503), 503)
        else:
            await answer(one)


async def ask_until(gw: RunningGateway, client: RawClient, count: int, stream: bool) -> None:
    """Requests for both, each served by `b`, until `a` has refused so many."""
    for number in range(300):
        response = await client.ask(asked(ROUTES[0], number, stream=stream))
        assert (response.status, response.header("x-warmroute-backend")) == (200, "b")
        await response.read()
        if counted(gw.gateway, "warmroute_retries_total", reason="status") >= count:
            return
    raise AssertionError("a is not asked")


@pytest.mark.parametrize("known_by", ["our own streams", "its own figures"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_o13_a_full_backend_gives_way_to_its_peer_and_is_not_taken_for_dead(stream: bool, known_by: str) -> None:
    """Engines say 503 when their queue is full. However often: they work, and take requests again at once."""
    async with AsyncExitStack() as stack:
        metrics = "vllm:num_requests_running 8\nvllm:num_requests_waiting 3\nprocess_start_time_seconds 1000\n"
        upstreams, gw = await two(stack, health=EJECTING, metrics=None if known_by == "our own streams" else metrics)
        a, b = upstreams
        a.script, b.script = full, other = Full(), Full()
        if known_by == "our own streams":
            while not (gw.in_flight_of("a") and gw.in_flight_of("b")):
                await hold(gw, stack, chat(f"long {gw.in_flight}" * 40))
        client = await stack.enter_async_context(gw.client())
        full.full = True
        await ask_until(gw, client, 6, stream)
        assert counted(gw.gateway, "warmroute_upstream_errors_total", backend="a", kind="busy") == 6
        assert counted(gw.gateway, "warmroute_upstream_errors_total") == 6
        assert all(backend.health.state is State.UP for backend in gw.gateway.registry)
        other.full = True
        response = await client.ask(asked(ROUTES[0], 0, stream=stream))
        await assert_refused_as_is(response, 503)
        assert counted(gw.gateway, "warmroute_requests_total", status="503", backend="none") == 0
        full.full = False
        assert (await client.ask(asked(ROUTES[0], 1, stream=stream))).status == 200


async def test_o13_a_backend_that_refuses_with_nothing_to_do_is_broken() -> None:
    async with AsyncExitStack() as stack:
        upstreams, gw = await two(stack, health=EJECTING)
        upstreams[0].script = full = Full()
        full.full = True
        client = await stack.enter_async_context(gw.client())
        await ask_until(gw, client, 2, False)
        assert counted(gw.gateway, "warmroute_upstream_errors_total", backend="a", kind="status") == 2
        assert [backend.health.state for backend in gw.gateway.registry] == [State.EJECTED, State.UP]
        gw.assert_at_rest()


async def test_o13_a_backend_that_is_gone_is_counted_as_gone() -> None:
    async def dies(one: Served) -> None:
        one.reset()

    async def broken(one: Served) -> None:
        await one.write(SSE_HEAD[:20])
        one.reset()

    async with AsyncExitStack() as stack:
        upstreams, gw = await two(stack)
        a, b = upstreams
        a.script, b.script = dies, broken
        client = await stack.enter_async_context(gw.client())
        assert (await failure(client, "m", False))[0] == 502
        await a.shut()
        await b.shut()
        assert await failure(client, "m", False) == (502, "upstream_connect_failed")
        errors = {
            kind: counted(gw.gateway, "warmroute_upstream_errors_total", kind=kind) for kind in ("busy", "status")
        }
        assert errors == {"busy": 0, "status": 0}
        assert counted(gw.gateway, "warmroute_upstream_errors_total", kind="connect") >= 2
        assert counted(gw.gateway, "warmroute_upstream_errors_total") == 4

"""Field cases B: what a backend refuses is the client's to know."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

from backends.health import State
from tests.support.access import KEY_A, bearer, setting, tenant
from tests.support.gateway import chat, request_bytes, running_gateway
from tests.support.scrape import counted
from tests.support.upstream import ScriptedUpstream, Served, answer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.support.gateway import Response, RunningGateway

CLIENT_ERRORS = [400, 401, 403, 404, 409, 413, 422, 429]
NOT_LISTED = [500, 501, 504]
ROUTES = ["/v1/chat/completions", "/v1/completions", "/v1/messages"]
RATE_LIMITS = {
    "retry-after": "30",
    "retry-after-ms": "30000",
    "x-ratelimit-limit-requests": "100",
    "x-ratelimit-remaining-requests": "0",
    "x-ratelimit-reset-requests": "12s",
}
RARELY = {"interval_s": 600, "metrics_interval_s": 600}


def asked(path: str, number: int, **fields: Any) -> dict[str, Any]:
    text = f"prompt {number} " * 30
    if path == "/v1/completions":
        return {"model": "m", "prompt": text, **fields}
    return chat(text, **fields)


def refusal(status: int) -> bytes:
    return json.dumps({"error": {"message": "é, said the engine", "type": "E", "code": status}}).encode()


async def obedient(served: Served) -> None:
    """Answers with the status, and the header lines, that the request asks for."""
    status = served.json.get("status", 200)
    if status == 200:
        await answer(served)
        return
    lines = "".join(f"{name}: {value}\r\n" for name, value in served.json.get("headers", {}).items())
    await served.respond(refusal(status), status, lines.encode())


async def two(
    stack: AsyncExitStack, metrics: str | None = None, **sections: Any
) -> tuple[list[ScriptedUpstream], RunningGateway]:
    upstreams = [await stack.enter_async_context(ScriptedUpstream(obedient)) for _ in range(2)]
    for upstream in upstreams:
        upstream.metrics = metrics or upstream.metrics
    gw = await stack.enter_async_context(running_gateway([u.url for u in upstreams], **{"health": RARELY, **sections}))
    return upstreams, gw


def served(upstreams: list[ScriptedUpstream]) -> int:
    return sum(len(upstream.requests) for upstream in upstreams)


async def assert_refused_as_is(response: Response, status: int) -> None:
    assert response.status == status
    assert response.header("content-type") == "application/json"
    assert await response.read() == refusal(status)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("path", ROUTES)
async def test_o10_a_refusal_passes_after_exactly_one_attempt(path: str, stream: bool) -> None:
    async with AsyncExitStack() as stack:
        upstreams, gw = await two(stack)
        client = await stack.enter_async_context(gw.client())
        for number, status in enumerate(CLIENT_ERRORS * 5 + NOT_LISTED):
            response = await client.ask(asked(path, number, status=status, stream=stream), path=path)
            await assert_refused_as_is(response, status)
            assert served(upstreams) == number + 1
        assert all(upstream.requests for upstream in upstreams)
        assert all(backend.health.state is State.UP for backend in gw.gateway.registry)
        assert counted(gw.gateway, "warmroute_retries_total") == 0
        for status in CLIENT_ERRORS:
            assert counted(gw.gateway, "warmroute_requests_total", status=str(status), model="m") == 5
        gw.assert_at_rest()


async def test_o10_pipelined_and_http_1_0_clients_get_each_refusal_in_its_place() -> None:
    async with AsyncExitStack() as stack:
        upstreams, gw = await two(stack)
        client = await stack.enter_async_context(gw.client())
        statuses = [400, 200, 422, 429, 200, 404]
        bodies = [asked(ROUTES[0], number, status=status) for number, status in enumerate(statuses)]
        client.writer.write(b"".join(request_bytes(body) for body in bodies))
        for status in statuses:
            response = await client.receive()
            assert response.status == status
            assert (await response.read() == refusal(status)) is (status != 200)
        async with gw.client() as old:
            await assert_refused_as_is(await old.ask(asked(ROUTES[0], 9, status=422), version="1.0"), 422)
            assert await asyncio.wait_for(old.reader.read(), 10) == b""
        assert served(upstreams) == len(statuses) + 1
        gw.assert_at_rest()


@pytest.mark.parametrize("second", [200, 422, 502, 503])
async def test_o10_only_statuses_of_the_policy_are_asked_again(second: int) -> None:
    """Also of the second attempt: what it says is final, unless the policy lists that as well."""

    async def script(one: Served) -> None:
        number = sum(len(upstream.requests) for upstream in upstreams)
        one.body = json.dumps({**one.json, "status": 503 if number == 1 else second}).encode()
        await obedient(one)

    async with AsyncExitStack() as stack:
        upstreams, gw = await two(stack, limits={"retry_statuses": [503], "max_attempts": 5})
        for upstream in upstreams:
            upstream.script = script
        client = await stack.enter_async_context(gw.client())
        response = await client.ask(asked(ROUTES[0], 0))
        assert response.status == second
        await response.read()
        assert served(upstreams) == 2
        assert [len(upstream.requests) for upstream in upstreams] == [1, 1]
        assert counted(gw.gateway, "warmroute_retries_total", reason="status") == 1
        async with gw.client() as other:
            assert (await other.ask(asked(ROUTES[0], 1))).status == second
        assert served(upstreams) == (3 if second != 503 else 4)
        gw.assert_at_rest()


# Retry-After.


def assert_rate_limits(response: Response, expected: Mapping[str, str] = RATE_LIMITS) -> None:
    for name, value in expected.items():
        assert [v for n, v in response.headers if n.lower() == name] == [value]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("path", ROUTES)
async def test_o12_retry_after_and_rate_limits_are_forwarded(path: str, stream: bool) -> None:
    async with AsyncExitStack() as stack:
        upstreams, gw = await two(stack)
        client = await stack.enter_async_context(gw.client())
        for number, status in enumerate([429, 503, 429, 500]):
            body = asked(path, number, status=status, stream=stream, headers=RATE_LIMITS)
            response = await client.ask(body, path=path)
            await assert_refused_as_is(response, status)
            assert_rate_limits(response)
        assert served(upstreams) == 5, "the 503 is the second backend's"
        old = await stack.enter_async_context(gw.client())
        body = asked(path, 9, status=429, stream=stream, headers=RATE_LIMITS)
        assert_rate_limits(await old.ask(body, path=path, version="1.0"))


async def test_o12_the_answer_of_the_second_attempt_keeps_its_own_headers() -> None:
    seen: list[Served] = []

    async def script(one: Served) -> None:
        seen.append(one)
        headers = b"retry-after: 5\r\nx-first: 1\r\n" if len(seen) == 1 else b"retry-after: 77\r\n"
        await one.respond(refusal(429), 503 if len(seen) == 1 else 429, headers)

    async with AsyncExitStack() as stack:
        upstreams, gw = await two(stack)
        for upstream in upstreams:
            upstream.script = script
        client = await stack.enter_async_context(gw.client())
        response = await client.ask(chat())
        assert (response.status, len(seen)) == (429, 2)
        assert_rate_limits(response, {"retry-after": "77"})
        assert response.header("x-first") is None


@pytest.mark.parametrize("why", ["down", "ejected", "draining"])
async def test_o12_the_gateways_own_503_says_when_to_come_back(why: str) -> None:
    async with AsyncExitStack() as stack:
        _, gw = await two(stack, health={**RARELY, "eject_after_failures": 1, "eject_s": 30})
        client = await stack.enter_async_context(gw.client())
        for number in range(2):
            if why == "ejected":
                await assert_refused_as_is(await client.ask(asked(ROUTES[0], number, status=500)), 500)
        for backend in gw.gateway.registry:
            if why == "down":
                backend.health.probe_failed(gw.gateway.clock(), 0, refused=True)
            elif why == "draining":
                backend.draining = True
        response = await client.ask(chat())
        assert response.status == 503
        assert (await response.error())["code"] == "no_backend_available"
        wait_s = int(response.header("retry-after") or 0)
        assert 25 <= wait_s <= 30 if why == "ejected" else 1 <= wait_s <= 30


async def test_o12_the_gateways_own_429_says_when_to_come_back() -> None:
    async with setting(tenant("a", KEY_A, requests_per_min=6)) as (_, upstream, client):
        found = []
        for _ in range(3):
            response = await client.ask(chat(), headers=bearer(KEY_A))
            found.append(response.status)
            await response.read()
        assert found == [200, 429, 429]
        assert 5 <= int(response.header("retry-after") or 0) <= 10, "six a minute"
        assert len(upstream.requests) == 1

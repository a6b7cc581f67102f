"""The limits of a tenant, on real sockets: exact, and given back in every outcome."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from prefix_index.encoding.bytes_encoder import BytesEncoder
from tests.support.access import KEY_A, KEY_B, A, B, assert_works, bearer, reload, setting, tenant
from tests.support.gateway import chat
from tests.support.scrape import counted
from tests.support.upstream import Served, answer, token


@pytest.mark.parametrize("stream", [False, True])
async def test_places_are_limited_and_left_in_every_outcome(stream: bool) -> None:
    async def script(served: Served) -> None:
        what = served.json["messages"][0]["content"]
        if what == "held":
            await served.until_closed()
        elif what == "reset":
            served.reset()
        elif what == "error":
            await served.respond({"error": {}}, 400)
        else:
            await served.stream(token()) if served.json["stream"] else await answer(served)

    limited = tenant("a", KEY_A, max_concurrent_requests=2)
    async with (
        setting(limited, B, script=script) as (gw, upstream, client),
        gw.client() as first,
        gw.client() as second,
    ):
        holders = first, second
        for holder in holders:
            await holder.send(chat("held", stream=stream), headers=bearer(KEY_A))
        await upstream.until(lambda u: len(u.requests) == 2)
        assert counted(gw.gateway, "warmroute_tenant_inflight", tenant="a") == 2
        response = await client.ask(chat(stream=stream), headers=bearer(KEY_A))
        assert response.status == 429
        assert 1 <= int(response.header("retry-after") or 0) <= 60
        error = await response.error()
        assert (error["code"], error["type"]) == ("tenant_concurrency_limit", "rate_limit_error")
        assert "tenants[].max_concurrent_requests" in error["message"]
        await assert_works(client, KEY_B)
        for holder in holders:
            holder.reset()
        await gw.until(lambda gateway: quota(gateway, "a").in_flight == 0)
        for what in ("ok", "error", "reset", "ok", "error", "reset", "ok"):
            response = await client.ask(chat(what, stream=stream), headers=bearer(KEY_A))
            assert response.status != 429
            await response.read()
        for bad in (b"{", b"[]", b'{"model": "nowhere"}', b'{"model": "m", "kv_transfer_params": {}}'):
            for _ in range(3):
                response = await client.ask(bad, headers=bearer(KEY_A))
                assert response.status in (400, 404)
                await response.read()
        assert quota(gw.gateway, "a").in_flight == 0
        assert counted(gw.gateway, "warmroute_tenant_requests_total", tenant="a", status="4xx") == 15
        gw.assert_at_rest()


def quota(gateway: Any, name: str) -> Any:
    return gateway.access.tenant(name).quota


async def test_places_are_left_by_clients_who_leave_before_they_are_placed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long prompt is encoded in a thread: the client goes in the meantime."""
    release = asyncio.Event()

    async def held() -> None:
        await release.wait()

    async with setting(tenant("a", KEY_A, max_concurrent_requests=1)) as (gw, upstream, client):
        with monkeypatch.context() as patch:
            patch.setattr(BytesEncoder, "encode", lambda *_: held())
            for _ in range(3):
                async with gw.client() as leaving:
                    await leaving.send(chat(), headers=bearer(KEY_A))
                    await gw.until(lambda gateway: quota(gateway, "a").in_flight == 1)
                    leaving.reset()
                    await gw.until(lambda gateway: quota(gateway, "a").in_flight == 0)
        await assert_works(client)
        assert len(upstream.requests) == 1
        await gw.until(lambda gateway: gateway.tasks == 0)
        gw.assert_at_rest()


async def test_the_rate_of_a_tenant_is_limited() -> None:
    async with setting(tenant("a", KEY_A, requests_per_min=12), B) as (gw, upstream, client):
        for _ in range(2):
            await assert_works(client)
        response = await client.ask(chat(), headers=bearer(KEY_A))
        assert response.status == 429
        assert 1 <= int(response.header("retry-after") or 0) <= 5
        error = await response.error()
        assert error["code"] == "tenant_rate_limit"
        assert "tenants[].requests_per_min" in error["message"]
        await assert_works(client, KEY_B)
        assert len(upstream.requests) == 3
        await reload(gw, A, B)
        await assert_works(client)
        gw.assert_at_rest()

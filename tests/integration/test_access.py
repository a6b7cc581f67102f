"""Who may come in, on real sockets: keys and tokens, and what becomes of strangers."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any

import openai
import pytest

from tests.support.access import KEY_A, KEY_A2, KEY_B, A, B, assert_works, bearer, reload, setting, tenant
from tests.support.gateway import chat, request_bytes
from tests.support.scrape import counted
from tests.support.tokens import AUDIENCE, ISSUER, Signer
from tests.support.upstream import Served, answer

if TYPE_CHECKING:
    from pathlib import Path


STRANGERS: list[tuple[dict[str, str], str]] = [
    ({}, "missing"),
    ({"authorization": "Bearer "}, "missing"),
    ({"x-api-key": ""}, "missing"),
    ({"cookie": KEY_A, "api-key": KEY_A, "x_api_key": KEY_A}, "missing"),
    ({"authorization": "Basic " + KEY_A}, "scheme"),
    ({"authorization": KEY_A}, "scheme"),
    ({"authorization": f"Bearer {KEY_A}", "x-api-key": KEY_B}, "conflict"),
    (bearer("sk-canary-unknown"), "unknown"),
    (bearer(KEY_A + "x"), "unknown"),
    (bearer(KEY_A[:-1]), "unknown"),
]


async def test_strangers_get_one_answer_whatever_they_send() -> None:
    async with setting(A, B) as (gw, upstream, client):
        bodies = []
        for headers, reason in STRANGERS:
            response = await client.ask(chat("canary prompt"), headers=headers)
            assert response.status == 401
            assert response.header("www-authenticate") == "Bearer"
            bodies.append(await response.read())
            assert counted(gw.gateway, "warmroute_unauthenticated_total", reason=reason) >= 1
        assert len(set(bodies)) == 1
        error = json.loads(bodies[0])["error"]
        assert (error["code"], error["type"]) == ("invalid_api_key", "authentication_error")
        assert not upstream.requests
        await assert_works(client)
        gw.assert_at_rest()


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/m", "/v1/nowhere", "/", "/v1/chat/completions"])
async def test_no_path_but_the_health_checks_is_open(path: str) -> None:
    async with setting(A) as (gw, _, client):
        response = await client.ask(b"", path=path, method="GET")
        assert response.status == 401
        assert (await response.error())["code"] == "invalid_api_key"
        response = await client.ask(b"", path=path, method="GET", headers={"x-api-key": KEY_A})
        assert response.status in (200, 404, 405)
        await response.read()
        for open_path in ("/livez", "/readyz"):
            response = await client.ask(b"", path=open_path, method="GET")
            assert response.status == 200
            await response.read()
        gw.assert_at_rest()


async def test_every_key_of_a_tenant_works_in_both_headers() -> None:
    async with setting(A, B) as (gw, upstream, client):
        for key in (KEY_A, KEY_A2, KEY_B):
            await assert_works(client, key)
            response = await client.ask(chat(), headers={"x-api-key": key})
            assert response.status == 200
            await response.read()
        assert len(upstream.requests) == 6
        assert counted(gw.gateway, "warmroute_tenant_requests_total", tenant="a", status="2xx") == 4
        assert counted(gw.gateway, "warmroute_tenant_requests_total", tenant="b", status="2xx") == 2
        gw.assert_at_rest()


async def test_the_openai_client_comes_in_with_its_key_and_is_told_when_not() -> None:
    named = [{"name": "m"}, {"name": "n"}]
    async with setting(tenant("a", KEY_A, models=["m"]), B, serves=("m", "n"), models=named) as (gw, _, _):
        url = f"{gw.url}/v1"
        messages: Any = [{"role": "user", "content": "hello"}]
        async with openai.AsyncOpenAI(base_url=url, api_key=KEY_A, max_retries=0) as known:
            stream = await known.chat.completions.create(model="m", messages=messages, stream=True)
            assert "".join([part.choices[0].delta.content or "" async for part in stream]) == "abc"
            assert [model.id for model in (await known.models.list()).data] == ["m"]
            with pytest.raises(openai.PermissionDeniedError) as denied:
                await known.chat.completions.create(model="n", messages=messages)
            assert denied.value.code == "model_not_allowed"
        async with openai.AsyncOpenAI(base_url=url, api_key="sk-canary-unknown", max_retries=0) as unknown:
            with pytest.raises(openai.AuthenticationError) as refused:
                await unknown.chat.completions.create(model="m", messages=messages)
            assert refused.value.code == "invalid_api_key"
            with pytest.raises(openai.AuthenticationError):
                await unknown.models.list()
        gw.assert_at_rest()


# A stranger's body.


async def test_a_strangers_body_is_not_waited_for() -> None:
    async with setting(A) as (gw, upstream, client):
        wire = request_bytes(b"", headers={"content-length": "50000000"}) + b'{"model": "m", '
        client.writer.write(wire)
        response = await client.receive()
        assert response.status == 401
        assert response.header("connection") == "close"
        await response.read()
        assert await client.reader.read() == b""
        await client.close()
        await gw.until(lambda gateway: not gateway.connections)
        assert gw.gateway.request_buffer.used == 0
        assert not upstream.requests


async def test_a_stranger_is_not_asked_to_continue() -> None:
    async with setting(A) as (gw, _, client):
        headers = {"expect": "100-continue", "content-length": "100"}
        client.writer.write(request_bytes(b"", headers=headers))
        head = await client.reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 401 ")
        assert b"connection: close" in head
        async with gw.client() as other:
            other.writer.write(request_bytes(b"", headers={**headers, **bearer(KEY_A)}))
            assert (await other.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")


async def test_strangers_among_pipelined_requests_are_told_in_turn() -> None:
    async def slow_first(served: Served) -> None:
        if served.number == 0:
            await asyncio.sleep(0.05)
        await answer(served)

    async with setting(A, script=slow_first) as (gw, upstream, client):
        good, bad = request_bytes(chat(), headers=bearer(KEY_A)), request_bytes(chat())
        client.writer.write(good + bad + good + bad + good)
        statuses = []
        for _ in range(5):
            response = await client.receive()
            statuses.append(response.status)
            await response.read()
        assert statuses == [200, 401, 200, 401, 200]
        assert len(upstream.requests) == 3
        gw.assert_at_rest()


async def test_a_pipelined_stranger_who_never_ends_is_told_in_turn() -> None:
    release = asyncio.Event()

    async def held(served: Served) -> None:
        await release.wait()
        await answer(served)

    async with setting(A, script=held) as (gw, upstream, client):
        endless = request_bytes(b"", headers={"content-length": "50000000"})
        client.writer.write(request_bytes(chat(), headers=bearer(KEY_A)) + endless + b"x" * 1000)
        await upstream.until(lambda u: len(u.requests) == 1)
        release.set()
        response = await client.receive()
        assert response.status == 200
        await response.read()
        response = await client.receive()
        assert response.status == 401
        assert response.header("connection") == "close"
        await response.read()
        assert await client.reader.read() == b""
        gw.assert_at_rest()


async def test_a_stranger_over_http_1_0() -> None:
    async with setting(A) as (_, _, client):
        response = await client.ask(chat(), version="1.0")
        assert response.status == 401
        await response.read()
        assert await client.reader.read() == b""


# Reload.


async def test_keys_are_rotated_on_a_kept_connection() -> None:
    async with setting(tenant("a", KEY_A)) as (gw, _, client):
        await assert_works(client, KEY_A)
        await reload(gw, tenant("a", KEY_A, KEY_A2))
        await assert_works(client, KEY_A)
        await assert_works(client, KEY_A2)
        await reload(gw, tenant("a", KEY_A2))
        response = await client.ask(chat(), headers=bearer(KEY_A))
        assert response.status == 401
        await response.read()
        await assert_works(client, KEY_A2)
        await reload(gw)
        response = await client.ask(chat())
        assert response.status == 200, "open again"
        await response.read()
        gw.assert_at_rest()


async def test_a_running_request_outlives_its_key() -> None:
    release = asyncio.Event()

    async def held(served: Served) -> None:
        await release.wait()
        await answer(served)

    async with setting(A, B, script=held) as (gw, upstream, client):
        await client.send(chat(), headers=bearer(KEY_B))
        await upstream.until(lambda u: len(u.requests) == 1)
        await reload(gw, A)
        release.set()
        response = await client.receive()
        assert response.status == 200
        await response.read()
        assert 'tenant="b"' not in gw.gateway.metrics.render().decode()
        gw.assert_at_rest()


# Tokens.


def jwt_section(path: Path) -> dict[str, Any]:
    return {"jwt": {"jwks_file": str(path), "issuer": ISSUER, "audience": AUDIENCE}}


async def test_a_token_comes_in_as_its_tenant(tmp_path: Path) -> None:
    signer = Signer()
    path = tmp_path / "jwks.json"
    path.write_bytes(signer.jwks)
    async with setting(A, {"name": "c"}, auth=jwt_section(path)) as (gw, _, client):
        await assert_works(client, signer.token("c"))
        await assert_works(client, KEY_A)
        assert counted(gw.gateway, "warmroute_tenant_requests_total", tenant="c", status="2xx") == 1
        for bad, reason in (
            (signer.token("c", exp=1.0), "expired"),
            (signer.token("nobody"), "unknown"),
            (signer.token("c", aud="other"), "invalid"),
            (Signer().token("c"), "invalid"),
        ):
            response = await client.ask(chat(), headers=bearer(bad))
            assert response.status == 401
            assert (await response.error())["code"] == "invalid_api_key"
            assert counted(gw.gateway, "warmroute_unauthenticated_total", reason=reason) >= 1
        gw.assert_at_rest()


async def test_keys_of_a_url_are_fetched_and_rotated() -> None:
    first, second = Signer("k1"), Signer("k2")
    served = [first.jwks]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 X\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(served[0]))
            writer.write(served[0])
            await writer.drain()
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/keys"
        jwt = {"jwks_url": url, "issuer": ISSUER, "audience": AUDIENCE, "jwks_refresh_s": 0.05}
        async with setting({"name": "c"}, auth={"jwt": jwt}) as (gw, _, client):
            kept = first.token("c")
            await assert_works(client, kept)
            served[0] = b"no key set"
            await gw.until(lambda gateway: counted(gateway, "warmroute_jwks_failures_total") > 0)
            await assert_works(client, kept)
            served[0] = second.jwks
            generation = gw.gateway.access.generation
            await gw.until(lambda gateway: gateway.access.generation > generation)
            await assert_works(client, second.token("c"))
            response = await client.ask(chat(), headers=bearer(kept))
            assert response.status == 401, "its key is gone, and what was remembered of it too"
            await response.read()
    finally:
        listener.close()
        await listener.wait_closed()

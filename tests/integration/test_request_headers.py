"""Which request headers get through the gateway, on real sockets."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import pytest

from tests.support.access import KEY_A, A, bearer, setting
from tests.support.gateway import chat, running_gateway
from tests.support.upstream import ScriptedUpstream


async def test_o73_the_clients_credential_does_not_go_to_a_backend_without_one() -> None:
    for auth in ({}, {"forward_credentials": False}):
        async with setting(A, auth=auth) as (gw, upstream, client):
            headers = {**bearer(KEY_A), "x-api-key": KEY_A, "api-key": KEY_A, "cookie": KEY_A}
            response = await client.ask(chat(), headers=headers)
            assert response.status == 200
            await response.read()
            assert KEY_A.encode() not in b"".join(value for _, value in upstream.requests[0].headers)
            gw.assert_at_rest()


async def test_o73_the_clients_credential_goes_on_when_asked_but_never_beside_the_backends_own() -> None:
    async with ScriptedUpstream() as bare, ScriptedUpstream(models=("n",)) as owned:
        backends = [
            {"name": "bare", "url": bare.url},
            {"name": "owned", "url": owned.url, "api_key": "backend-key-0123456789"},
        ]
        forward = {"forward_credentials": True}
        async with running_gateway(backends, tenants=[A], auth=forward) as gw, gw.client() as client:
            for model in ("m", "n"):
                headers = {**bearer(KEY_A), "x-api-key": KEY_A, "cookie": KEY_A}
                response = await client.ask(chat(model=model), headers=headers)
                assert response.status == 200
                await response.read()
            got = bare.requests[0]
            assert (got.header("authorization"), got.header("x-api-key")) == (f"Bearer {KEY_A}", KEY_A)
            assert got.header("cookie") is None
            got = owned.requests[0]
            assert got.header("authorization") == "Bearer backend-key-0123456789"
            assert KEY_A.encode() not in b"".join(value for _, value in got.headers)
            gw.assert_at_rest()


FORGED = [
    "x-warmroute-tenant",
    "X-Warmroute-Backend",
    "x_warmroute_backend",
    "x-data-parallel-rank",
    "X_Data_Parallel_Rank",
    "x-worker-instance-id",
    "x-gateway-destination-endpoint",
    "x-prefiller-host-port",
    "x-smg-routing-key",
    "x-vllm-priority",
    "forwarded",
    "x-forwarded-for",
    "x-forwarded-prefix",
    "x-real-ip",
    "x_forwarded_for",
]


@pytest.mark.parametrize("tenants", [[], [A]])
async def test_forged_internal_headers_do_not_get_in(tenants: list[dict[str, Any]]) -> None:
    async with setting(*tenants) as (gw, upstream, client):
        headers = {**bearer(KEY_A), **dict.fromkeys(FORGED, "forged"), "x-kept": "kept"}
        response = await client.ask(chat(), headers=headers)
        assert response.status == 200
        await response.read()
        got = upstream.requests[0]
        assert got.header("x-kept") == "kept"
        assert b"forged" not in b"".join(value for _, value in got.headers)
        gw.assert_at_rest()


async def test_forwarded_headers_of_a_trusted_proxy_go_on() -> None:
    for trusted in (["127.0.0.0/8"], ["10.0.0.0/8"]):
        async with setting(listen={"trusted_proxies": trusted}) as (_, upstream, client):
            headers = {"x-forwarded-for": "192.0.2.1", "x-forwarded-proto": "https"}
            await (await client.ask(chat(), headers=headers)).read()
            got = upstream.requests[0]
            if trusted[0].startswith("127"):
                assert got.header("x-forwarded-for") == "192.0.2.1, 127.0.0.1"
                assert got.header("x-forwarded-proto") == "https"
            else:
                assert got.header("x-forwarded-for") is got.header("x-forwarded-proto") is None


INJECTIONS = {
    "obs-fold": b"x-a: 1\r\n x-warmroute-backend: b\r\n",
    "obs-fold by tab": b"x-a: 1\r\n\tmore\r\n",
    "fold of an empty value": b"x-a:\r\n b\r\n",
    "bare CR": b"x-a: 1\rx-warmroute-backend: b\r\n",
    "bare LF": b"x-a: 1\nx-warmroute-backend: b\r\n",
    "CR CR LF": b"x-a: 1\r\r\n",
    "NUL in a value": b"x-a: 1\x00\r\n",
    "control in a value": b"x-a: 1\x01\r\n",
    "DEL in a value": b"x-a: \x7f\r\n",
    "space before the colon": b"x-a : 1\r\n",
    "tab before the colon": b"x-a\t: 1\r\n",
    "space in a name": b"x a: 1\r\n",
    "NUL in a name": b"x\x00a: 1\r\n",
    "no name": b": 1\r\n",
    "no colon": b"x-a\r\n",
    "space before the first name": b" x-a: 1\r\n",
}


@pytest.mark.parametrize("kind", INJECTIONS)
@pytest.mark.parametrize("whole", [True, False])
async def test_header_injection_is_refused(kind: str, whole: bool) -> None:
    body = json.dumps(chat()).encode()
    wire = b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nauthorization: Bearer %b\r\n%b" % (
        KEY_A.encode(),
        INJECTIONS[kind],
    )
    wire += b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    async with setting(A) as (gw, upstream, client):
        client.writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if whole:
            client.writer.write(wire)
        else:
            cut = wire.index(INJECTIONS[kind]) + len(INJECTIONS[kind]) // 2
            client.writer.write(wire[:cut])
            await asyncio.sleep(0.01)
            client.writer.write(wire[cut:])
        response = await client.receive()
        assert response.status == 400
        assert (await response.error())["code"] == "bad_http"
        assert await client.reader.read() == b""
        assert not upstream.requests
        gw.assert_at_rest()

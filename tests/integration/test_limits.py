"""Limits at the clients' edge: a clear error or a closed connection, counted, and no neighbour hurt."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest

from tests.support.edge import CHUNKED, assert_closed, assert_refused, assert_served, closed, edge
from tests.support.gateway import chat, request_bytes
from tests.support.scrape import counted

# Connections.


async def test_a_connection_too_many_is_told_so_and_closed() -> None:
    async with edge(max_connections=2) as (gw, _), gw.client() as one:
        async with gw.client() as other:
            for client in (one, other):
                await assert_served(client)
            async with gw.client() as third:
                response = await third.receive()
                assert response.status == 503
                assert response.header("retry-after") == "1"
                assert (await response.error())["code"] == "too_many_connections"
                await assert_closed(third)
            for client in (one, other):
                await assert_served(client)
            assert closed(gw, "too_many_connections") == 1
            assert counted(gw.gateway, "warmroute_connections") == 2
        await gw.until(lambda g: len(g.connections) == 1)
        async with gw.client() as again:
            await assert_served(again)


async def test_a_flood_of_connections_costs_the_others_nothing() -> None:
    """Refused ones that send, read or leave nothing: bounded in number and in time."""
    async with edge(max_connections=1) as (gw, _), gw.client() as client:
        await assert_served(client)
        crowd = [await gw.connect() for _ in range(200)]
        await gw.until(lambda _: closed(gw, "too_many_connections") == 200)
        await assert_served(client)
        for one in crowd:
            one.writer.write(request_bytes(chat()))
        async with asyncio.timeout(10):
            for one in crowd:
                with contextlib.suppress(ConnectionError):
                    while await one.reader.read(65536):
                        pass
        for one in crowd:
            await one.close()
        await assert_served(client)


async def test_limits_of_a_reloaded_config_hold_for_open_connections() -> None:
    async with edge() as (gw, _), gw.client() as client:
        await assert_served(client)
        assert (await gw.reload(listen={"max_connections": 1, "keep_alive_s": 0.2})).applied
        async with gw.client() as other:
            await assert_refused(other, 503, "too_many_connections")
        await assert_closed(client)
        assert closed(gw, "keep_alive_timeout") == 1


# Heads.

LINE = b"x-filler: " + b"y" * 1000 + b"\r\n"
ENDLESS = {
    "endless header line": b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nx: ",
    "endless request line": b"POST /v1/chat/completions?",
    "endless method": b"",
    "endless header name": b"GET /livez HTTP/1.1\r\nhost: g\r\n",
}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/livez"], ids=["hot", "asgi"])
@pytest.mark.parametrize("kind", ["one line", "many lines", "tiny lines", "target"])
async def test_a_head_over_the_limit_is_431_and_one_below_it_passes(path: str, kind: str) -> None:
    head = f"POST {path}".encode()

    def wire(size: int) -> bytes:
        lines = {
            "one line": b"x: " + b"y" * size + b"\r\n",
            "many lines": b"x: 0123456789\r\n" * (size // 44),
            "tiny lines": b"x:\r\n" * (size // 33),
            "target": b"",
        }[kind]
        query = b"?" + b"q" * size if kind == "target" else b""
        body = json.dumps(chat()).encode()
        return b"%b%b HTTP/1.1\r\nhost: g\r\n%bcontent-length: %d\r\n\r\n%b" % (head, query, lines, len(body), body)

    async with edge(max_header_kb=8) as (gw, upstream):
        async with gw.client() as client:
            client.writer.write(wire(7_000))
            assert (await client.receive()).status == (200 if path != "/livez" else 405)
        asked = len(upstream.requests)
        for size in (8_600, 20_000, 500_000):
            async with gw.client() as client:
                client.writer.write(wire(size))
                await assert_refused(client, 431, "headers_too_large")
        assert len(upstream.requests) == asked
        assert closed(gw, "headers_too_large") == 3


@pytest.mark.parametrize("kind", ENDLESS)
async def test_a_head_without_end_is_refused(kind: str) -> None:
    async with edge(max_header_kb=8) as (gw, _), gw.client() as client:
        client.writer.write(ENDLESS[kind])

        async def pour() -> None:
            with contextlib.suppress(ConnectionError):
                for _ in range(1000):
                    client.writer.write(b"A" * 4_096)
                    await client.writer.drain()
                    await asyncio.sleep(0)

        pouring = asyncio.create_task(pour())
        response = await client.receive()
        assert response.status in (400, 431)
        pouring.cancel()
        await asyncio.wait([pouring])


@pytest.mark.parametrize(
    ("start", "more"),
    [
        (b"5;" + b"e" * 1000, b"e" * 4096),
        (b"5;a=1\r\nhello\r\n0\r\n", b"x-trailer: " + b"y" * 1000 + b"\r\n"),
        (b"5\r\nhello\r\n0\r\nx: ", b"y" * 4096),
        (b"", b"1;" + b"e" * 1000 + b"\r\nx\r\n"),
    ],
    ids=["extension", "trailers", "trailer line", "extension of every chunk"],
)
@pytest.mark.parametrize("path", [b"/v1/chat/completions", b"/livez"], ids=["hot", "asgi"])
async def test_framing_without_end_is_refused(path: bytes, start: bytes, more: bytes) -> None:
    async with edge(max_header_kb=8) as (gw, upstream), gw.client() as client:
        client.writer.write(CHUNKED.replace(b"/v1/chat/completions", path) + start)
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(10):
                while not closed(gw, "bad_http"):
                    client.writer.write(more)
                    await client.writer.drain()
                    await asyncio.sleep(0)
        response = await client.receive()
        assert response.status == 400 if path != b"/livez" else response.status in (400, 405)
        assert not upstream.requests


async def test_a_body_in_chunks_of_one_byte_is_no_attack() -> None:
    body = json.dumps(chat("x" * 20_000)).encode()
    wire = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    async with edge(max_header_kb=1) as (gw, upstream), gw.client() as client:
        client.writer.write(CHUNKED)
        for at in range(0, len(wire), 1000):
            client.writer.write(wire[at : at + 1000])
            await asyncio.sleep(0)
        assert (await client.receive()).status == 200
        assert upstream.requests[0].body == body

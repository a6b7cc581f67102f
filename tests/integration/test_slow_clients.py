"""Clients that send or read too slowly: told so or cut off, counted, and no neighbour hurt."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING

import pytest

from tests.support.edge import assert_closed, assert_refused, assert_served, closed, edge, small_buffers
from tests.support.gateway import RunningGateway, chat, request_bytes
from tests.support.scrape import counted
from tests.support.upstream import DONE, SSE_HEAD, Served, answer, chunk, token

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@contextlib.asynccontextmanager
async def neighbour(gw: RunningGateway) -> AsyncIterator[None]:
    """Another client's stream, which must be whole whatever happens in between."""
    async with gw.client() as client:
        response = await client.ask(chat(stream=True))
        assert response.status == 200
        yield
        assert await response.read() == b"".join(token(str(i)) for i in range(25)) + DONE
        assert response.complete


async def slow_stream(served: Served) -> None:
    if served.json.get("stream"):
        await served.stream(*(token(str(i)) for i in range(25)), gap_s=0.05)
    else:
        await answer(served)


SLOW_HEADS = [b"", b"\r\n", b"POST", b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nx: "]


@pytest.mark.parametrize("start", SLOW_HEADS, ids=["nothing", "line end", "method", "line"])
@pytest.mark.parametrize("drips", [False, True], ids=["silent", "drips"])
async def test_a_head_that_is_not_complete_in_time_ends_the_connection(start: bytes, drips: bool) -> None:
    async with edge(slow_stream, header_timeout_s=0.3) as (gw, _), neighbour(gw), gw.client() as client:
        client.writer.write(start)
        begun_s = asyncio.get_running_loop().time()
        while drips and not closed(gw, "header_timeout"):
            client.writer.write(b"\r\n" if not start.strip() else b"O" if start == b"POST" else b"y")
            await asyncio.sleep(0.02)
            if start == b"POST":
                break  # no longer method
            assert asyncio.get_running_loop().time() < begun_s + 5
        if start.strip() and not (drips and start == b"POST"):
            await assert_refused(client, 408, "request_timeout")
        elif drips and start == b"POST":
            await assert_refused(client, 400, "bad_http")
        else:
            await assert_closed(client)
        if not (drips and start == b"POST"):
            assert closed(gw, "header_timeout") == 1


async def test_a_later_head_must_be_complete_in_time_too() -> None:
    async with edge(header_timeout_s=0.2) as (gw, _), gw.client() as client:
        await assert_served(client)
        await asyncio.sleep(0.4)  # idle is not slow
        await assert_served(client)
        client.writer.write(b"POST /v1/chat")
        await assert_refused(client, 408, "request_timeout")


@pytest.mark.parametrize("framing", ["length", "chunked"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/nowhere"], ids=["hot", "asgi"])
async def test_a_body_that_pauses_too_long_ends_the_connection(framing: str, path: str) -> None:
    body = json.dumps(chat()).encode()
    if framing == "length":
        wire = request_bytes(body, path=path)[:-5]
    else:
        wire = request_bytes(chunk(body), path=path, headers={"transfer-encoding": "chunked"})
    async with edge(slow_stream, body_timeout_s=0.3) as (gw, upstream), neighbour(gw), gw.client() as client:
        client.writer.write(wire)
        if path == "/nowhere":
            assert (await (await client.receive()).error())["code"] == "not_found"
            await assert_closed(client)
        else:
            response = await client.receive()
            assert response.header("x-request-id")
            assert response.status == 408
            assert (await response.error())["code"] == "request_timeout"
            await assert_closed(client)
            assert counted(gw.gateway, "warmroute_requests_total", status="408") == 1
        assert closed(gw, "body_timeout") == 1
        assert len(upstream.requests) == 1


async def test_a_body_that_comes_slowly_but_comes_is_served() -> None:
    body = json.dumps(chat()).encode()
    wire = request_bytes(body)
    async with edge(body_timeout_s=0.4) as (gw, upstream), gw.client() as client:
        client.writer.write(wire[: -len(body)])
        for byte in body[:40]:
            client.writer.write(bytes((byte,)))
            await asyncio.sleep(0.03)
        client.writer.write(body[40:])
        assert (await client.receive()).status == 200
        assert upstream.requests[0].body == body


async def test_a_client_that_was_not_asked_for_its_body_yet_is_not_slow() -> None:
    """The second of two pipelined requests waits for 100 Continue while the first is answered."""
    body = json.dumps(chat("2")).encode()
    head = request_bytes(body, headers={"expect": "100-continue"})[: -len(body)]

    async def script(served: Served) -> None:
        if served.number == 0:
            await asyncio.sleep(0.8)
        await answer(served)

    async with edge(script, body_timeout_s=0.2) as (gw, _), gw.client() as client:
        client.writer.write(request_bytes(chat("1")) + head)
        await (await client.receive()).read()
        async with asyncio.timeout(5):
            assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.writer.write(body)
        assert (await client.receive()).status == 200


async def test_an_answer_that_takes_its_time_is_not_cut() -> None:
    async def script(served: Served) -> None:
        await asyncio.sleep(0.6)
        await served.write(SSE_HEAD)
        await asyncio.sleep(0.6)
        await served.write(chunk(DONE) + b"0\r\n\r\n")

    times = {"header_timeout_s": 0.1, "body_timeout_s": 0.1, "write_timeout_s": 0.1, "keep_alive_s": 0.1}
    async with edge(script, **times) as (gw, _), gw.client() as client:
        response = await client.ask(chat(stream=True))
        assert await response.read() == DONE
        await assert_closed(client)
        assert closed(gw, "keep_alive_timeout") == 1


async def large(served: Served) -> None:
    if served.json.get("stream"):
        await slow_stream(served)
        return
    await served.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 50000000\r\n\r\n")
    with contextlib.suppress(ConnectionError):
        for _ in range(500):
            await served.write(b"x" * 100_000)
        return
    served.upstream.count_closed()


async def test_o27_a_client_that_takes_nothing_is_cut_off_and_its_backend_stopped() -> None:
    async with edge(large, write_timeout_s=0.4) as (gw, upstream):
        small_buffers(gw)
        async with neighbour(gw), gw.client() as client:
            small_buffers(gw, client)
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await client.send(chat())
            await upstream.until(lambda u: u.closed == 1)
            assert closed(gw, "write_timeout") == 1
            assert counted(gw.gateway, "warmroute_client_cancelled_total", phase="stream") == 1
            client.writer.transport.resume_reading()  # type: ignore[attr-defined]
            with contextlib.suppress(ConnectionError):
                assert len(await client.reader.read()) < 50_000_000


async def test_a_client_that_reads_slowly_but_reads_is_served() -> None:
    async def script(served: Served) -> None:
        await served.respond(b"y" * 3_000_000)

    async with edge(script, write_timeout_s=0.4) as (gw, _):
        small_buffers(gw)
        async with gw.client() as client:
            small_buffers(gw, client)
            transport = client.writer.transport
            await client.send(chat())
            response = await client.receive()
            read = 0
            async with asyncio.timeout(30):
                async for data in response.chunks():
                    read += len(data)
                    transport.pause_reading()  # type: ignore[attr-defined]
                    await asyncio.sleep(0.1)
                    transport.resume_reading()  # type: ignore[attr-defined]
                    if read > 1_500_000:
                        break
            assert not closed(gw, "write_timeout")
            assert read + len(await client.reader.readexactly(3_000_000 - read)) == 3_000_000
            assert not closed(gw, "write_timeout")


async def test_a_closing_connection_whose_client_does_not_read_goes_too() -> None:
    async def script(served: Served) -> None:
        await served.respond(b"y" * 3_000_000)

    async with edge(script, write_timeout_s=0.3) as (gw, _):
        small_buffers(gw)
        async with gw.client() as client:
            small_buffers(gw, client)
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await client.send(chat(), headers={"connection": "close"})
            await gw.until(lambda g: closed(gw, "write_timeout") == 1 and not g.connections)
            client.reset()

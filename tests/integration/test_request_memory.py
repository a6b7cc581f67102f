"""What requests hold in memory: bounded, counted exactly, and let go as soon as it may be."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json

import pytest

from gateway.exchange import Exchange
from gateway.hot import HotProtocol
from tests.support.edge import CHUNKED, assert_refused, assert_served, closed, edge
from tests.support.gateway import chat, request_bytes, running_gateway
from tests.support.scrape import counted
from tests.support.upstream import DONE, SSE_HEAD, ScriptedUpstream, Served, answer, chunk


def upload(size: int) -> bytes:
    return json.dumps(chat("x" * (size - 80))).encode()


async def test_bodies_beyond_what_memory_may_hold_are_refused_and_the_connection_works_on() -> None:
    body = upload(60_000)
    async with (
        edge(max_buffered_mb=0.1, max_body_mb=0.1) as (gw, upstream),
        gw.client() as first,
        gw.client() as second,
    ):
        first.writer.write(request_bytes(body)[:-10])
        await gw.until(lambda g: g.request_buffer.used > 59_000)
        response = await second.ask(body)
        assert response.status == 503
        assert response.header("retry-after") == "1"
        error = await response.error()
        assert error["code"] == "request_buffer_full"
        assert "listen.max_buffered_mb" in error["message"]
        await assert_served(second)
        held = len(request_bytes(body)) - 10
        assert 0 < counted(gw.gateway, "warmroute_request_bytes_buffered") <= held, "what was refused is not kept"
        first.writer.write(request_bytes(body)[-10:])
        assert (await first.receive()).status == 200
        assert upstream.requests[-1].body == body
        response = await second.ask(body)
        assert response.status == 200


async def test_a_body_is_let_go_once_no_retry_is_possible() -> None:
    release = asyncio.Event()

    async def script(served: Served) -> None:
        await served.write(SSE_HEAD)
        await release.wait()
        await served.write(chunk(DONE) + b"0\r\n\r\n")

    async with edge(script) as (gw, _), gw.client() as client:
        response = await client.ask(upload(100_000))
        assert response.status == 200
        assert gw.gateway.request_buffer.used == 0
        release.set()
        assert await response.read() == DONE


async def test_a_body_is_kept_for_a_second_attempt() -> None:
    body = upload(90_000)

    async def fails_first(served: Served) -> None:
        await (served.respond({}, 503) if served.number == 0 else served.respond({"size": len(served.body)}))

    async with (
        ScriptedUpstream(fails_first) as one,
        ScriptedUpstream(fails_first) as other,
        running_gateway([one.url, other.url]) as gw,
        gw.client() as client,
    ):
        await client.ask(chat())  # uses up the first failure of one
        asked = [*one.requests, *other.requests]
        response = await client.ask(body)
        assert response.status in (200, 503)
        assert all(served.body == body for served in (*one.requests, *other.requests) if served not in asked)
        assert gw.gateway.request_buffer.used == 0


@pytest.mark.parametrize("end", ["reset", "close", "malformed", "refused", "queued", "encoding"])
async def test_every_outcome_gives_its_bytes_back(end: str) -> None:
    body = upload(150_000)
    framed = CHUNKED + b"%x\r\n%b" % (len(body), body)

    async def silent(served: Served) -> None:
        await served.until_closed()

    async with edge(silent if end in ("queued", "encoding") else answer) as (gw, _):
        client = await gw.connect()
        if end == "queued":
            client.writer.write(request_bytes(chat()) + 3 * request_bytes(body) + request_bytes(body)[:-9])
            await gw.until(lambda g: g.request_buffer.used > 4 * 140_000)
        elif end == "encoding":
            client.writer.write(request_bytes(upload(3_000_000)))
            await gw.until(lambda g: g.request_buffer.used > 2_900_000)
        elif end == "refused":
            response = await client.ask(b"{" + body)
            assert response.status == 400
            assert gw.gateway.request_buffer.used == 0
        else:
            client.writer.write(framed[:-1])
            await gw.until(lambda g: g.request_buffer.used >= len(body) - 1)
        if end == "malformed":
            client.writer.write(b"}XX")
            await assert_refused(client, 400, "bad_http")
            assert gw.gateway.request_buffer.used == 0
        elif end in ("reset", "queued", "encoding"):
            client.reset()
        await client.close()
        await gw.until(lambda g: g.request_buffer.used == 0)
        if end in ("reset", "close"):
            assert counted(gw.gateway, "warmroute_client_cancelled_total", phase="receive") == 1


async def test_pipelined_bodies_are_not_read_ahead_without_bound() -> None:
    release = asyncio.Event()

    async def script(served: Served) -> None:
        if served.number == 0:
            await release.wait()
        await served.respond({"size": len(served.body)})

    body = upload(700_000)
    async with edge(script) as (gw, upstream), gw.client() as client:
        client.writer.write(request_bytes(chat()) + 10 * request_bytes(body))
        await upstream.until(lambda u: len(u.requests) == 1)
        before = -1
        while before != gw.gateway.request_buffer.used:
            before = gw.gateway.request_buffer.used
            await asyncio.sleep(0.05)
        assert 1 << 20 < before < 3 << 20
        release.set()
        await (await client.receive()).read()
        for _ in range(10):
            assert await (await client.receive()).json() == {"size": len(body)}


async def test_a_body_for_nobody_is_not_read_without_end() -> None:
    """A path that is not served is answered at once; what its client still sends is bounded like any body."""
    async with edge(max_body_mb=0.1, keep_alive_s=0.4) as (gw, _), gw.client() as client:
        client.writer.write(request_bytes(b"", path="/nowhere", headers={"content-length": "100000000"}))
        response = await client.receive()
        assert response.status == 404
        await response.read()
        with contextlib.suppress(ConnectionError):
            for _ in range(1000):
                client.writer.write(b"x" * 100_000)
                await client.writer.drain()
        await gw.until(lambda g: closed(gw, "body_too_large") == 1 and not g.connections)


@pytest.mark.parametrize("end", ["answered", "refused", "reset", "silent"])
async def test_o67_a_connection_that_ends_is_freed_at_once(end: str) -> None:
    """Not when the collector comes by, which is rarely."""

    async def script(served: Served) -> None:
        await (served.until_closed() if end == "reset" else answer(served))

    async with edge(script) as (gw, upstream):
        gc.collect()
        gc.disable()
        try:
            for number in range(20):
                client = await gw.connect()
                if end == "reset":
                    await client.send(chat())
                    await upstream.until(lambda u, asked=number: len(u.requests) > asked)  # type: ignore[misc]
                    client.reset()
                elif end != "silent":
                    await (await client.ask(chat() if end == "answered" else b"{")).read()
                await client.close()
            await gw.until(lambda g: not g.connections)
            await asyncio.sleep(0.05)
            left = [one for one in gc.get_objects() if isinstance(one, HotProtocol | Exchange)]
            assert left == []
        finally:
            gc.enable()

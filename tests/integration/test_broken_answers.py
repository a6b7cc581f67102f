"""Answers of a backend that could mean two things: an error or a closed connection, and never another's answer."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from tests.support.gateway import chat, request_bytes, running_gateway
from tests.support.upstream import DONE, SSE_HEAD, ScriptedUpstream, Served, chunk, token

INNER = request_bytes(chat("smuggled"))
TE = b"transfer-encoding: chunked\r\n"

GOOD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
FORGED = b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nforged"
OK = b"HTTP/1.1 200 OK\r\n"
BROKEN_HEADS = {
    "length and chunks": OK + b"content-length: 5\r\n" + TE + b"\r\n5\r\nhello\r\n0\r\n\r\n",
    "chunks and length": OK + TE + b"content-length: 5\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "two lengths": OK + b"content-length: 5\r\ncontent-length: 6\r\n\r\nhello!",
    "equal lengths": OK + b"content-length: 5\r\ncontent-length: 5\r\n\r\nhello",
    "signed length": OK + b"content-length: +5\r\n\r\nhello",
    "huge length": OK + b"content-length: 99999999999999999999999\r\n\r\n",
    "foreign coding": OK + b"transfer-encoding: gzip, chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "unknown coding": OK + b"transfer-encoding: xchunked\r\n\r\nhello",
    "coding after chunks": OK + b"transfer-encoding: chunked, gzip\r\n\r\nhello",
    "two codings": OK + TE + b"transfer-encoding: identity\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "CR in a value": OK + b"x: a\rset-cookie: b\r\ncontent-length: 0\r\n\r\n",
    "LF in a value": OK + b"x: a\nset-cookie: b\r\ncontent-length: 0\r\n\r\n",
    "NUL in a value": OK + b"x: a\0b\r\ncontent-length: 0\r\n\r\n",
    "folded": OK + b"x: a\r\n b\r\ncontent-length: 0\r\n\r\n",
    "LF in the reason": b"HTTP/1.1 200 a\nx: b\r\ncontent-length: 0\r\n\r\n",
    "space before the colon": OK + b"content-length : 5\r\n\r\nhello",
    "switches protocols": b"HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: x\r\n\r\nraw",
    "switches without a word": b"HTTP/1.1 101 Switching\r\n\r\n" + GOOD,
    "status 0": b"HTTP/1.1 000 X\r\ncontent-length: 0\r\n\r\n",
    "status 99": b"HTTP/1.1 99 X\r\ncontent-length: 0\r\n\r\n",
    "status 1000": b"HTTP/1.1 1000 X\r\ncontent-length: 0\r\n\r\n",
    "a request": INNER,
    "huge head": OK + b"x: " + b"y" * 300_000 + b"\r\ncontent-length: 0\r\n\r\n",
    "many lines": OK + b"x: y\r\n" * 300_000 + b"content-length: 0\r\n\r\n",
    "interim flood": b"HTTP/1.1 100 Continue\r\n\r\n" * 20_000 + GOOD,
    "interim flood with fields": (b"HTTP/1.1 103 Hints\r\nlink: " + b"y" * 1000 + b"\r\n\r\n") * 500 + GOOD,
    "endless line": OK + b"x: " + b"y" * 3_000_000,
}


@pytest.mark.parametrize("name", BROKEN_HEADS)
async def test_a_broken_answer_is_502_and_the_next_answer_is_its_own(name: str) -> None:
    async def script(served: Served) -> None:
        if served.number == 0:
            with contextlib.suppress(ConnectionError):
                await served.write(BROKEN_HEADS[name])
                await served.until_closed()
        else:
            await served.write(GOOD)

    async with ScriptedUpstream(script) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        response = await client.ask(chat())
        assert response.status == 502
        assert (await response.error())["code"] == "upstream_protocol_error"
        response = await client.ask(chat())
        assert (response.status, await response.read()) == (200, b"{}")
        gw.assert_at_rest()


BROKEN_BODIES = {
    "bad size": b"zz\r\n",
    "signed size": b"+5\r\nhello\r\n",
    "size ended by LF": b"5\nhello\r\n",
    "data too long": b"5\r\nhelloX\r\n",
    "size too large": b"fffffffffffffffff\r\n",
    "LF in a trailer": b"0\r\nx: a\n\n",
    "endless trailer": b"0\r\nx: " + b"y" * 3_000_000,
    "endless extension": b"5;" + b"y" * 3_000_000,
    "cut": b"5\r\nhel",
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("name", BROKEN_BODIES)
async def test_an_answer_that_breaks_in_its_body_never_ends_cleanly(name: str, stream: bool) -> None:
    async def script(served: Served) -> None:
        kind = SSE_HEAD if stream else OK + b"content-type: text/plain\r\n" + TE + b"\r\n"
        first = token("a")
        with contextlib.suppress(ConnectionError):
            await served.write(kind + chunk(first))
            await asyncio.sleep(0.02)
            await served.write(BROKEN_BODIES[name])
            served.writer.close()

    async with ScriptedUpstream(script) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        response = await client.ask(chat(stream=stream))
        body = await response.read()
        assert body.startswith(token("a"))
        if stream:
            assert response.complete
            assert b"upstream_" in body
            assert DONE not in body
        else:
            assert not response.complete
        await gw.until(lambda _: gw.in_flight == 0)
        gw.assert_at_rest()


@pytest.mark.parametrize(
    "first",
    [
        b"HTTP/1.1 204 No Content\r\ncontent-length: %d\r\n\r\n" % len(FORGED) + FORGED,
        b"HTTP/1.1 304 Not Modified\r\ncontent-length: %d\r\n\r\n" % len(FORGED) + FORGED,
        b"HTTP/1.1 204 No Content\r\n" + TE + b"\r\n" + chunk(FORGED) + b"0\r\n\r\n",
        GOOD + FORGED,
        OK + TE + b"\r\n" + chunk(b"{}") + b"0\r\n\r\n" + FORGED,
        b"HTTP/1.1 100 Continue\r\n\r\n" + GOOD + FORGED,
    ],
    ids=["204 with length", "304 with length", "204 with chunks", "length", "chunks", "interim"],
)
async def test_bytes_behind_an_answer_are_never_another_requests_answer(first: bytes) -> None:
    async def script(served: Served) -> None:
        await served.write(first if served.number == 0 else GOOD)

    async with ScriptedUpstream(script) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        await client.send(chat())
        answer = await client.receive()
        assert b"forged" not in (b"" if answer.status in (204, 304) else await answer.read())
        if answer.status in (204, 304):
            assert answer.header("content-length") is None
            assert answer.header("transfer-encoding") is None
        for _ in range(2):
            response = await client.ask(chat())
            assert (response.status, await response.read()) == (200, b"{}")
        gw.assert_at_rest()


async def test_a_head_that_dribbles_in_does_not_put_off_the_timeout() -> None:
    async def script(served: Served) -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                await served.write(b"HTTP/1.1 102 Processing\r\n\r\n")
                await asyncio.sleep(0.02)
                if served.reader.at_eof():
                    served.upstream.count_closed()
                    return

    async with (
        ScriptedUpstream(script) as upstream,
        running_gateway([upstream.url], limits={"first_byte_timeout_s": 0.3}) as gw,
        gw.client() as client,
    ):
        response = await client.ask(chat())
        assert response.status == 504
        assert (await response.error())["code"] == "upstream_first_byte_timeout"
        gw.assert_at_rest()

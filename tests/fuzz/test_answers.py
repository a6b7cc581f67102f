"""Answers of a backend, spoilt at random: the client gets a whole answer, an error, or the end of its connection, and
the next answer is its own."""

from __future__ import annotations

import asyncio
import contextlib

from hypothesis import given, note
from hypothesis import strategies as st

from tests.support.fuzz import CUTS, ErrorLog, Stage, examples, faults, pieces, spoil
from tests.support.gateway import RawClient, chat, running_gateway
from tests.support.upstream import DONE, SSE_HEAD, ScriptedUpstream, Served, chunk, token

GOOD = b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 12\r\n\r\n{"own": 123}'
ANSWERS = [
    GOOD,
    b"HTTP/1.1 103 Hints\r\nlink: </x>\r\n\r\n" + GOOD,
    SSE_HEAD + chunk(token("a")) + chunk(token("b")) + chunk(DONE) + b"0\r\n\r\n",
    SSE_HEAD + chunk(token("a") + DONE) + b"0\r\nx-took: 1\r\n\r\n",
    b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\n{}",
    b"HTTP/1.1 204 No Content\r\n\r\n",
]
TOKENS = [
    *(b"\r", b"\n", b"\r\n", b"\r\n\r\n", b"\0", b" ", b":", b";", b"0", b"-", b"\xff"),
    b"transfer-encoding: chunked\r\n",
    b"content-length: 3\r\n",
    b"connection: close\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nforged",
    b"HTTP/1.1 100 Continue\r\n\r\n",
    b"HTTP/1.1 101 Switching\r\n\r\n",
    b"0\r\n\r\n",
]


def test_whatever_a_backend_answers_the_next_answer_is_its_own() -> None:
    plan: list[bytes] = []

    async def script(served: Served) -> None:
        if b"spoilt" not in served.body:
            await served.write(GOOD)
            return
        with contextlib.suppress(ConnectionError):
            for part in plan:
                await served.write(part)
                await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        served.writer.close()

    with Stage() as stage:
        upstream = stage.enter(ScriptedUpstream(script))
        gw = stage.enter(running_gateway([upstream.url], health={"eject_after_failures": 10_000}))
        log = ErrorLog(gw.gateway)

        async def ask(client: RawClient) -> None:
            response = await client.ask(chat("spoilt", stream=True))
            assert 200 <= response.status <= 999
            bodiless = response.status in (204, 304)
            if not bodiless:
                async with asyncio.timeout(5):
                    await response.read()
            if bodiless or response.complete:
                with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                    response = await client.ask(chat("own"))
                    assert (response.status, await response.read()) == (200, b'{"own": 123}')

        async def example() -> None:
            async with gw.client() as client:
                await ask(client)
            async with gw.client() as client:
                response = await client.ask(chat("own"))
                assert (response.status, await response.read()) == (200, b'{"own": 123}')
            await gw.until(lambda g: not g.connections and gw.in_flight == 0)
            gw.assert_at_rest()
            assert log.errors == []

        @examples(60)
        @given(st.sampled_from(ANSWERS), faults(TOKENS), CUTS)
        def check(answer: bytes, found: list[tuple[str, int, int, bytes]], cuts: list[int]) -> None:
            wire = spoil(answer, found)
            note(repr(wire))
            plan[:] = pieces(wire, cuts)
            stage.run(example())

        check()

"""Random event streams, cut anywhere: the client gets the very bytes, and the gateway reads of them what a reader by
the letter does."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.openai import ChatStream
from tests.support.fuzz import CUTS, Stage, examples, pieces
from tests.support.gateway import chat, running_gateway
from tests.support.reading import read_events
from tests.support.scrape import counted
from tests.support.upstream import SSE_HEAD, ScriptedUpstream, Served, chunk

if TYPE_CHECKING:
    from collections.abc import Callable

ENDS = [b"\n", b"\r\n", b"\r"]
TEXTS = ["tok", "é🙂", "data: [DONE]", '"usage": {', "\n\ndata: x", "\u2028\x85\x0b\x1c", "z" * 5000, "[DONE]"]


@st.composite
def events(draw: Callable[[Any], Any]) -> bytes:
    """Of one kind of line ends mostly, some of another, with everything that the format allows around the data."""
    usual = draw(st.sampled_from(ENDS))
    mixed = draw(st.booleans())
    lines: list[bytes] = []

    def line(text: bytes) -> None:
        lines.append(text + (draw(st.sampled_from(ENDS)) if mixed else usual))

    for _ in range(draw(st.integers(0, 8))):
        if draw(st.integers(0, 3)) == 0:
            line(
                draw(st.sampled_from([b": ping", b":", b"event: message", b"id: 7", b"retry: 10", b"data", b"dat: x"]))
            )
        document: dict[str, Any] = {"choices": [{"delta": {"content": draw(st.sampled_from(TEXTS))}}]}
        if draw(st.integers(0, 2)) == 0:
            document["usage"] = draw(st.sampled_from([None, {"prompt_tokens": draw(st.integers(0, 9))}]))
        space = draw(st.sampled_from([b" ", b""]))
        line(b"data:" + space + json.dumps(document, ensure_ascii=draw(st.booleans())).encode())
        line(b"")
    if draw(st.booleans()):
        line(b"data: [DONE]")
        if draw(st.integers(0, 3)):
            line(b"")
    return b"".join(lines)


def observed(parts: list[bytes]) -> tuple[int | None, bool]:
    observer = ChatStream()
    for part in parts:
        observer.feed(part)
    observer.finish()
    return (observer.usage.prompt_tokens if observer.usage is not None else None), observer.done


def expected(stream: bytes) -> tuple[int | None, bool]:
    usage, done = read_events(stream)
    return (None if usage is None else int(usage["prompt_tokens"])), done


@examples(300)
@given(events(), CUTS)
def test_usage_and_end_are_read_as_by_the_letter(stream: bytes, cuts: list[int]) -> None:
    assert observed(pieces(stream, cuts)) == expected(stream)


@examples(100)
@given(events())
def test_every_byte_may_come_alone(stream: bytes) -> None:
    assert observed([stream[at : at + 1] for at in range(len(stream))]) == expected(stream)


@examples(200)
@given(st.lists(st.sampled_from([b"data:", b" ", b"\n", b"\r", b"[DONE]", b'"usage":', b"{", b"}", b"\xff"])), CUTS)
def test_no_bytes_break_the_reader(tokens: list[bytes], cuts: list[int]) -> None:
    observed(pieces(b"".join(tokens), cuts))


def test_the_client_gets_the_very_bytes() -> None:
    plan: list[bytes] = []

    async def script(served: Served) -> None:
        await served.write(SSE_HEAD)
        for part in plan:
            await served.write(chunk(part))
            await asyncio.sleep(0)
        await served.write(b"0\r\n\r\n")

    with Stage() as stage:
        upstream = stage.enter(ScriptedUpstream(script))
        gw = stage.enter(running_gateway([upstream.url]))
        client = stage.enter(gw.client())

        async def ask() -> bytes:
            response = await client.ask(chat(stream=True))
            assert response.status == 200
            body = await response.read()
            assert response.complete
            return body

        @examples(40)
        @given(events(), CUTS)
        def check(stream: bytes, cuts: list[int]) -> None:
            plan[:] = pieces(stream, cuts) if stream else []
            unfinished = counted(gw.gateway, "warmroute_streams_without_done_total")
            assert stage.run(ask()) == stream
            more = counted(gw.gateway, "warmroute_streams_without_done_total") - unfinished
            assert more == (0 if expected(stream)[1] else 1)

        check()

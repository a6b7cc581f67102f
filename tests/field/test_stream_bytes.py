"""Field cases C: streams and bodies that the network cuts anywhere, and usage in each of its shapes."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.gateway import chat, request_bytes, running_gateway
from tests.support.scrape import counted
from tests.support.upstream import DONE, SSE_HEAD, ScriptedUpstream, Served, chunk, event, token

if TYPE_CHECKING:
    from tests.support.gateway import RawClient, RunningGateway

TEXT = "naïve Ωμέγα 漢字かな 한국어 🙂👩‍🚀 e\u0301 \u202eעברית \u2028 \ufeff"
ROUTES = ["/v1/chat/completions", "/v1/completions"]
_KINDS = ["cached_tokens_reported", "prompt_tokens", "completion_tokens"]


def spoken(text: str) -> bytes:
    """An event with its text as raw UTF-8."""
    payload = {"choices": [{"index": 0, "delta": {"content": text}}]}
    return event(json.dumps(payload, ensure_ascii=False).encode())


def body_of(path: str, text: str, **fields: Any) -> bytes:
    body = {"model": "m", "prompt": text, **fields} if path == ROUTES[1] else chat(text, **fields)
    return json.dumps(body, ensure_ascii=False).encode()


async def trickle(served: Served, data: bytes) -> None:
    """One byte per write, each a segment of its own as far as the system lets us."""
    for i in range(len(data)):
        await served.write(data[i : i + 1])
        await asyncio.sleep(0)


@pytest.mark.parametrize("cut", ["chunks", "segments"])
@pytest.mark.parametrize("version", ["1.1", "1.0"])
async def test_o17_characters_cut_anywhere_arrive_whole(cut: str, version: str) -> None:
    whole = spoken(TEXT) + spoken("ж") + DONE
    assert {len(character.encode()) for character in TEXT} == {1, 2, 3, 4}

    async def script(served: Served) -> None:
        await served.write(SSE_HEAD)
        pieces = [whole[i : i + 1] for i in range(len(whole))]
        if cut == "chunks":
            for piece in pieces:
                await served.write(chunk(piece))
        else:
            await trickle(served, chunk(whole))
        await served.write(b"0\r\n\r\n")

    async with ScriptedUpstream(script) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        response = await client.ask(chat(stream=True), version=version)
        assert await response.read() == whole
        assert response.complete
        gw.assert_at_rest()


@pytest.mark.parametrize("framing", ["content-length", "chunked", "end of connection"])
async def test_o17_whole_answers_and_errors_too(framing: str) -> None:
    whole = json.dumps({"choices": [{"message": {"content": TEXT}}]}, ensure_ascii=False).encode()

    async def script(served: Served) -> None:
        head = f"HTTP/1.1 {served.json['status']} X\r\ncontent-type: application/json\r\n"
        if framing == "content-length":
            head += f"content-length: {len(whole)}\r\n"
        elif framing == "chunked":
            head += "transfer-encoding: chunked\r\n"
        await served.write(head.encode() + b"\r\n")
        if framing == "chunked":
            for i in range(len(whole)):
                await served.write(chunk(whole[i : i + 1]))
            await served.write(b"0\r\n\r\n")
        else:
            await trickle(served, whole)
        if framing == "end of connection":
            served.writer.close()

    async with ScriptedUpstream(script) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        for status in (200, 400):
            response = await client.ask(chat(status=status))
            assert response.status == status
            assert await response.read() == whole
        gw.assert_at_rest()


async def test_o17_requests_cut_anywhere_arrive_whole() -> None:
    async with ScriptedUpstream() as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        for path in ROUTES:
            for framing in ("content-length", "chunked"):
                body = body_of(path, TEXT)
                if framing == "chunked":
                    framed = b"".join(chunk(body[i : i + 1]) for i in range(len(body))) + b"0\r\n\r\n"
                    wire = request_bytes(framed, path, headers={"transfer-encoding": "chunked"})
                else:
                    wire = request_bytes(body, path)
                for i in range(len(wire)):
                    client.writer.write(wire[i : i + 1])
                    await asyncio.sleep(0)
                response = await client.receive()
                assert response.status == 200
                await response.read()
                assert upstream.requests[-1].body == body
        gw.assert_at_rest()


async def test_o17_death_inside_a_character_leaves_what_came_as_it_was() -> None:
    whole = spoken("🙂")
    cut = whole.index("🙂".encode()) + 2

    async def script(served: Served) -> None:
        await served.write(SSE_HEAD + chunk(whole + whole[:cut]))
        served.reset()

    async with ScriptedUpstream(script) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        response = await client.ask(chat(stream=True))
        body = await response.read()
        assert body.startswith(whole + whole[:cut] + b"\n\ndata: ")
        error = json.loads(body[len(whole) + cut :].strip().removeprefix(b"data: "))["error"]
        assert error["code"] == "upstream_truncated"


# Usage.

USAGE = {
    "prompt_tokens": 1234,
    "completion_tokens": 56,
    "total_tokens": 1290,
    "prompt_tokens_details": {"cached_tokens": 789},
}


def figures(gw: RunningGateway) -> list[float]:
    return [counted(gw.gateway, f"warmroute_{kind}_total") for kind in _KINDS]


async def through(client: RawClient, gate: asyncio.Event, first: int, body: bytes) -> bytes:
    """The answer to `body`, whose backend sends `first` bytes of its body and waits until the client has them."""
    response = await client.ask(body)
    got = b""
    async with asyncio.timeout(10):
        async for piece in response.chunks():
            got += piece
            if len(got) >= first:
                gate.set()
    assert response.complete
    return got


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"], ids=["lf", "crlf"])
async def test_o18_usage_is_recorded_for_every_cut_and_nothing_waits_for_it(newline: bytes) -> None:
    head, usage = token("a"), event({"choices": [], "usage": USAGE}) + DONE
    head, usage = head.replace(b"\n", newline), usage.replace(b"\n", newline)
    gate = asyncio.Event()

    async def script(served: Served) -> None:
        cut = served.json["cut"]
        await served.write(SSE_HEAD + chunk(head + usage[:cut]))
        await gate.wait()  # the client has all that was sent: two reads, and nothing was held back
        await served.write(chunk(usage[cut:]) + b"0\r\n\r\n")

    async with ScriptedUpstream(script) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        cuts = range(len(usage))
        for cut in cuts:
            gate.clear()
            body = body_of(ROUTES[0], "x", stream=True, cut=cut, stream_options={"include_usage": True})
            assert await through(client, gate, len(head) + cut, body) == head + usage
        assert figures(gw) == [789 * len(cuts), 1234 * len(cuts), 56 * len(cuts)]
        assert counted(gw.gateway, "warmroute_streams_without_done_total") == 0
        gw.assert_at_rest()


async def test_o18_usage_of_a_whole_answer_is_recorded_for_every_cut() -> None:
    whole = json.dumps({"choices": [], "usage": USAGE, "x": TEXT}, ensure_ascii=False).encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(whole)
    gate = asyncio.Event()

    async def script(served: Served) -> None:
        cut = served.json["cut"]
        await served.write(head + whole[:cut])
        await gate.wait()
        await served.write(whole[cut:])

    async with ScriptedUpstream(script) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        cuts = range(1, len(whole))
        for cut in cuts:
            gate.clear()
            assert await through(client, gate, cut, body_of(ROUTES[0], "x", cut=cut)) == whole
        assert figures(gw) == [789 * len(cuts), 1234 * len(cuts), 56 * len(cuts)]
        gw.assert_at_rest()


def delta(text: str, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}}], **more}


_CONTINUOUS = {"prompt_tokens": 1234, "completion_tokens": 1, "total_tokens": 1235}
SHAPES: dict[str, list[dict[str, Any]]] = {
    "chunk with empty choices": [delta("a", usage=None), delta("b", usage=None), {"choices": [], "usage": USAGE}],
    "last content chunk": [delta("a"), delta("b", usage=USAGE)],
    "chunk without choices": [delta("a"), delta("b"), {"usage": USAGE}],
    "every chunk": [delta("a", usage=_CONTINUOUS), delta("b", usage=USAGE)],
    "said twice": [delta("a"), delta("b", usage=USAGE), {"choices": [], "usage": USAGE}],
    "amid the text": [delta('"usage": {"prompt_tokens": 9}'), delta("b", usage=USAGE)],
    "none": [delta('"usage": {'), delta("b")],
}


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("shape", SHAPES)
async def test_o22_usage_is_read_from_every_shape_and_forwarded_as_asked(shape: str, path: str) -> None:
    """What the client says of it stands; where it says nothing the gateway asks, and takes out the extra event."""
    whole = b"".join(event(payload) for payload in SHAPES[shape]) + DONE
    unasked = b"".join(event(one) for one in SHAPES[shape] if one.get("choices", 1) or not one.get("usage")) + DONE

    async def script(served: Served) -> None:
        await served.stream(*(event(payload) for payload in SHAPES[shape]))

    async with ScriptedUpstream(script) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        options: list[dict[str, Any]] = [{}, {"include_usage": True}, {"include_usage": False}]
        for stream_options in options:
            body = body_of(path, "x", stream=True, **({"stream_options": stream_options} if stream_options else {}))
            response = await client.ask(body, path=path)
            assert await response.read() == (whole if stream_options else unasked)
            assert response.complete
            if stream_options:
                assert upstream.requests[-1].body == body, "and asked for as the client asks"
            else:
                assert upstream.requests[-1].body == b'{"stream_options":{"include_usage":true},' + body[1:]
        cached, prompt, completion = figures(gw)
        if shape == "none":
            assert (cached, completion) == (0, 2 * len(options)), "as many as there were chunks"
        else:
            assert [cached, prompt, completion] == [n * len(options) for n in (789, 1234, 56)]
        gw.assert_at_rest()

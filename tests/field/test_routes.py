"""Field cases O14, O20 and O22 on the routes beside chat."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.gateway import RunningGateway, running_gateway
from tests.support.upstream import DONE, ScriptedUpstream, Served, chunk, event

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

SOUND = bytes(range(256)) * 400
FORM = (
    b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
    + SOUND
    + b'\r\n--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--x--\r\n'
)
UPLOAD = {"content-type": "multipart/form-data; boundary=x"}
KEY = "key-of-the-backend"


def counted(gw: RunningGateway, name: str) -> float:
    lines = gw.gateway.metrics.render().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name + "{"))


def guarded(answer: Callable[[Served], Awaitable[None]]) -> Callable[[Served], Awaitable[None]]:
    """Refuses what does not carry the backend's own key."""

    async def script(served: Served) -> None:
        if served.header("authorization") == f"Bearer {KEY}":
            await answer(served)
        else:
            await served.respond({"error": {"message": "no key"}}, 401)

    return script


async def ok(served: Served) -> None:
    await served.respond({"text": "ok"})


ROUTES: list[tuple[str, str, bytes, dict[str, str]]] = [
    ("POST", "/v1/audio/transcriptions", FORM, UPLOAD),
    ("POST", "/v1/audio/translations", FORM, UPLOAD),
    ("POST", "/v1/images/edits", FORM, UPLOAD),
    *(
        ("POST", path, b'{"model": "m"}', {})
        for path in ("/v1/messages", "/v1/responses", "/v1/embeddings", "/v1/rerank", "/v1/audio/speech")
    ),
    ("DELETE", "/v1/responses/resp_1", b"", {}),
    ("DELETE", "/v1/images/1", b"", {}),
]


@pytest.mark.parametrize(("method", "path", "body", "headers"), ROUTES, ids=[f"{r[0]} {r[1]}" for r in ROUTES])
async def test_o20_one_header_policy_on_every_route(
    method: str, path: str, body: bytes, headers: dict[str, str]
) -> None:
    sent = {
        **headers,
        "authorization": "Bearer client",
        "x-api-key": "client",
        "cookie": "c=1",
        "x-warmroute-backend": "z",
        "x-trace": "t",
        "connection": "x-hop, keep-alive",
        "x-hop": "1",
    }
    async with ScriptedUpstream(guarded(ok)) as upstream:
        entry = {"name": "a", "url": upstream.url, "api_key": KEY}
        async with running_gateway([entry], listen={"paths": ["/v1/images/*"]}) as gw, gw.client() as client:
            answer = await client.ask(body, path=path, method=method, headers=sent)
            assert answer.status == 200
            assert await answer.json() == {"text": "ok"}
            served = upstream.requests[0]
            assert served.body == body
            assert served.header("content-length") == str(len(body))
            assert served.header("x-trace") == "t"
            assert [v for n, v in served.headers if n.lower() == b"authorization"] == [f"Bearer {KEY}".encode()]
            for name in ("x-api-key", "cookie", "x-warmroute-backend", "x-hop"):
                assert served.header(name) is None, name
            if headers:
                assert served.header("content-type") == headers["content-type"]


async def test_o20_an_upload_in_chunks_is_framed_anew() -> None:
    async with ScriptedUpstream(ok) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        wire = b"".join(chunk(FORM[at : at + 1000]) for at in range(0, len(FORM), 1000)) + b"0\r\n\r\n"
        headers = {**UPLOAD, "transfer-encoding": "chunked"}
        answer = await client.ask(wire, path="/v1/audio/transcriptions", headers=headers)
        assert answer.status == 200
        assert upstream.requests[0].body == FORM
        assert upstream.requests[0].header("transfer-encoding") is None
        assert upstream.requests[0].header("content-length") == str(len(FORM))


@pytest.mark.parametrize("framing", ["chunked", "to the end", "gzip"])
async def test_o20_an_answer_is_framed_anew(framing: str) -> None:
    text = json.dumps({"text": "hello " * 1000}).encode()

    async def reframe(served: Served) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
        if framing == "chunked":
            await served.write(head + b"transfer-encoding: chunked\r\n\r\n" + chunk(text) + b"0\r\n\r\n")
        elif framing == "gzip":
            packed = gzip.compress(text)
            await served.write(head + b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(packed) + packed)
        else:
            await served.write(head + b"connection: close\r\n\r\n" + text)
            served.writer.close()

    async with ScriptedUpstream(reframe) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        for _ in range(2):
            answer = await client.ask(FORM, path="/v1/audio/transcriptions", headers=UPLOAD)
            body = await answer.read()
            assert answer.complete
            assert (gzip.decompress(body) if answer.header("content-encoding") == "gzip" else body) == text


ODD: list[tuple[str, dict[str, Any]]] = [
    ("/v1/messages", {"messages": [{"role": "user", "content": None}], "tools": [{"name": "no schema"}]}),
    ("/v1/messages", {"messages": [{"role": "critic", "content": [{"type": "new"}, "text", 5]}], "system": 5}),
    ("/v1/messages", {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": {"a": 1}}]}]}),
    ("/v1/messages", {"messages": [], "system": [], "max_tokens": "many"}),
    ("/v1/messages", {"system": [{"type": "text", "text": None}], "messages": [["not an object"]]}),
    ("/v1/messages", {"messages": "text"}),
    ("/v1/messages", {}),
    ("/v1/responses", {"input": [{"type": "new_item"}, {"type": ["odd"]}, 5, None], "instructions": ["odd"]}),
    ("/v1/responses", {"input": [], "tools": [{"type": "web_search"}, {"type": "mcp", "server_label": "x"}]}),
    ("/v1/responses", {"input": {"a": 1}, "previous_response_id": 5, "conversation": {"id": None}}),
    ("/v1/responses", {"prompt": {"id": "pmpt_1"}, "background": True}),
    ("/v1/embeddings", {"input": [[1, 2], [3]], "dimensions": "many"}),
    ("/v1/rerank", {"query": {"image": "x"}, "documents": None, "top_n": -1}),
]


@pytest.mark.parametrize(("path", "fields"), ODD)
@pytest.mark.parametrize("odd", [{}, {"vendor": {"x": 1e-7, "y": "\ud83d"}}], ids=["proper", "lone surrogate"])
async def test_o14_odd_but_legal_bodies_are_the_engines_to_judge(
    path: str, fields: dict[str, Any], odd: dict[str, Any]
) -> None:
    body = json.dumps({"model": "m", **fields, **odd}).encode()
    async with ScriptedUpstream(ok) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        for _ in range(2):
            answer = await client.ask(body, path=path)
            assert answer.status == 200
            await answer.read()
        assert [served.body for served in upstream.requests] == [body, body]
        assert counted(gw, "warmroute_encode_fallback_total") == 0


def _named(kind: str, **fields: Any) -> bytes:
    return b"event: " + kind.encode() + b"\n" + event({"type": kind, **fields})


DETAILS = {"input_tokens": 100, "input_tokens_details": {"cached_tokens": 64}, "output_tokens": 7}
SPLIT = {"input_tokens": 36, "cache_read_input_tokens": 64, "output_tokens": 7}
CHAT = {"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 64}, "completion_tokens": 7}
TEXT = _named("content_block_delta", index=0, delta={"type": "text_delta", "text": "x"})
STOP = _named("message_stop")
USAGE_SHAPES: list[tuple[str, list[bytes]]] = [
    ("/v1/messages", [_named("message_start", message={"usage": SPLIT}), TEXT, STOP]),
    (
        "/v1/messages",
        [
            _named("message_start", message={"usage": {**SPLIT, "output_tokens": 0}}),
            TEXT,
            _named("message_delta", delta={}, usage={"output_tokens": 7}),
            STOP,
        ],
    ),
    (
        "/v1/messages",
        [_named("message_start", message={}), TEXT, _named("message_delta", delta={}, usage=SPLIT), STOP],
    ),
    ("/v1/responses", [_named("response.completed", response={"id": "r", "usage": DETAILS})]),
    ("/v1/responses", [_named("response.incomplete", response={"id": "r", "usage": DETAILS}), DONE]),
    ("/v1/audio/transcriptions", [event({"text": "x", "usage": CHAT}), DONE]),
]


@pytest.mark.parametrize(("path", "events"), USAGE_SHAPES)
@pytest.mark.parametrize("cut", [None, 3, 17])
async def test_o22_usage_is_read_from_every_shape_and_passed_unchanged(
    path: str, events: list[bytes], cut: int | None
) -> None:
    stream = b"".join(events)
    pieces = [stream] if cut is None else [stream[at : at + cut] for at in range(0, len(stream), cut)]

    async def tell(served: Served) -> None:
        await served.stream(*pieces, done=False)

    async with ScriptedUpstream(tell) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        answer = await client.ask({"model": "m", "stream": True, "messages": [], "input": "x"}, path=path)
        assert await answer.read() == stream
        await gw.until(lambda _: gw.in_flight == 0)
        assert counted(gw, "warmroute_prompt_tokens_total") == 100
        assert counted(gw, "warmroute_cached_tokens_reported_total") == 64
        assert counted(gw, "warmroute_completion_tokens_total") == 7
        assert counted(gw, "warmroute_streams_without_done_total") == 0

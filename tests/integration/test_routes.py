"""The routes beside chat and messages through a whole gateway, read by OpenAI's own client where it has them."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import openai
import pytest

from tests.support.gateway import RawClient, RunningGateway, running_gateway
from tests.support.upstream import SSE_HEAD, ScriptedUpstream, Served, chunk, event

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

USAGE = {
    "input_tokens": 100,
    "input_tokens_details": {"cached_tokens": 64},
    "output_tokens": 7,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 107,
}
SOUND = bytes(range(256)) * 2000


def response(number: object, status: str = "completed", text: str = "hello") -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    item = {"type": "message", "id": "msg", "status": status, "role": "assistant", "content": [part]}
    whole = {"id": f"resp_{number}", "object": "response", "created_at": 1, "model": "m", "status": status}
    done = status == "completed"
    return {
        **whole,
        "output": [item] if done else [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": USAGE if done else None,
    }


def named(kind: str, **fields: Any) -> bytes:
    return b"event: " + kind.encode() + b"\n" + event({"type": kind, "sequence_number": 0, **fields})


def response_events(number: object) -> list[bytes]:
    delta = {"item_id": "msg", "output_index": 0, "content_index": 0, "logprobs": []}
    return [
        named("response.created", response=response(number, "in_progress")),
        named("response.output_text.delta", **delta, delta="he"),
        named("response.output_text.delta", **delta, delta="llo"),
        named("response.completed", response=response(number)),
    ]


class Upstream(ScriptedUpstream):
    """Answers GET of other paths than the probes' by its script too."""

    async def _probe(self, served: Served) -> None:
        if served.target.startswith("/v1/") and served.target != "/v1/models":
            self.requests.append(served)
            await self.script(served)
        else:
            await super()._probe(served)


async def responses(served: Served) -> None:
    """Ids tell the port of the backend that made them."""
    number = f"{served.upstream.port}_{served.number}"
    if served.method != "POST":
        await served.respond({"id": "resp_x", "object": "response", "deleted": True})
    elif served.json.get("stream"):
        await served.stream(*response_events(number), done=False)
    else:
        await served.respond(response(number))


async def say_back(served: Served) -> None:
    await served.respond({"target": served.target, "method": served.method, "size": len(served.body)})


@contextlib.asynccontextmanager
async def gpt(gw: RunningGateway) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{gw.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def counted(gw: RunningGateway, name: str) -> float:
    lines = gw.gateway.metrics.render().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name + "{"))


def assert_nothing_learned(gw: RunningGateway) -> None:
    """Of requests that only load has routed."""
    gateway = gw.gateway
    assert gateway.index.stats().blocks == 0
    assert gateway.sessions.stats().sessions == 0
    assert gateway.models.any().tokens_per_unit() == 0.25
    for backend in gateway.registry:
        assert gateway.fleet.of(backend.instance).fit.samples == 0
    gw.assert_at_rest()


# /v1/responses


@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_is_matched_like_a_chat_and_its_usage_counted(stream: bool) -> None:
    instructions = "You are kind. " * 50
    async with (
        Upstream(responses) as a,
        Upstream(responses) as b,
        running_gateway([a.url, b.url]) as gw,
        gpt(gw) as sdk,
    ):
        backends = []
        for text in ("hello", "other"):
            asked: dict[str, Any] = {"model": "m", "input": text, "instructions": instructions}
            if stream:
                events = [each async for each in await sdk.responses.create(**asked, stream=True)]
                assert [each.type for each in events][-1] == "response.completed"
                assert "".join(each.delta for each in events if each.type == "response.output_text.delta") == "hello"
            else:
                raw = await sdk.responses.with_raw_response.create(**asked)
                assert raw.parse().output_text == "hello"
                backends.append(raw.headers["x-warmroute-backend"])
                decision = raw.headers["x-warmroute-decision"]
        await gw.until(lambda _: gw.in_flight == 0)
        assert counted(gw, "warmroute_prompt_tokens_total") == 200
        assert counted(gw, "warmroute_cached_tokens_reported_total") == 128
        assert counted(gw, "warmroute_completion_tokens_total") == 14
        assert counted(gw, "warmroute_streams_without_done_total") == 0
        if not stream:
            assert backends[0] == backends[1]
            assert decision == "prefix"
        assert {len(a.requests), len(b.requests)} == {0, 2}
        gw.assert_at_rest()


@pytest.mark.parametrize("stream", [False, True])
async def test_what_one_backend_keeps_is_asked_for_there(stream: bool) -> None:
    ups = [Upstream(responses) for _ in range(3)]
    async with ups[0], ups[1], ups[2], running_gateway([up.url for up in ups]) as gw, gpt(gw) as sdk:
        for n in range(6):
            asked: dict[str, Any] = {"model": "m", "input": f"session {n}", "extra_headers": {"x-session-id": f"s{n}"}}
            answer = await _answer(sdk, asked, stream)
            home = next(up for up in ups if str(up.port) in answer)
            for _ in range(2):
                before = len(home.requests)
                follow = {"model": "m", "input": "go on", "previous_response_id": answer}
                answer = await _answer(sdk, follow, stream)
                assert len(home.requests) == before + 1
            await sdk.responses.retrieve(answer)
            await sdk.responses.delete(answer)
            assert [served.method for served in home.requests[-2:]] == ["GET", "DELETE"]
            assert home.requests[-1].target == f"/v1/responses/{answer}"
        await gw.until(lambda _: gw.in_flight == 0)
        gw.assert_at_rest()


async def _answer(sdk: openai.AsyncOpenAI, asked: dict[str, Any], stream: bool) -> str:
    if not stream:
        return str((await sdk.responses.create(**asked)).id)
    events = [each async for each in await sdk.responses.create(**asked, stream=True)]
    return str(events[-1].response.id)


async def test_an_answer_that_nobody_knows_may_be_anywhere() -> None:
    async with Upstream(responses) as upstream, running_gateway([upstream.url]) as gw, gpt(gw) as sdk:
        await sdk.responses.retrieve("resp_of_an_earlier_gateway")
        follow = await sdk.responses.create(model="m", input="x", previous_response_id="resp_unknown")
        assert follow.output_text == "hello"
        assert gw.gateway.index.stats().blocks == 0, "what an engine remembers cannot be matched"


async def test_an_answer_whose_backend_is_down_is_not_asked_for_elsewhere() -> None:
    async with (
        Upstream(responses) as a,
        Upstream(responses) as b,
        running_gateway([a.url, b.url]) as gw,
        gpt(gw) as sdk,
    ):
        answer = (await sdk.responses.create(model="m", input="x")).id
        home, other = (a, b) if str(a.port) in answer else (b, a)
        await home.shut()
        with pytest.raises(openai.InternalServerError):
            await sdk.responses.create(model="m", input="y", previous_response_id=answer)
        assert not other.requests


@pytest.mark.parametrize("cut", ["boundary", "inside"])
async def test_o15_a_response_that_breaks_off_raises(cut: str) -> None:
    async def die(served: Served) -> None:
        sent = b"".join(response_events(1)[:2])
        await served.write(SSE_HEAD + chunk(sent if cut == "boundary" else sent[:-10]))
        served.writer.close()

    async with Upstream(die) as upstream, running_gateway([upstream.url]) as gw, gpt(gw) as sdk:
        stream = await sdk.responses.create(model="m", input="x", stream=True)
        with pytest.raises((openai.APIError, json.JSONDecodeError)) as caught:
            async for _ in stream:
                pass
        if cut == "boundary":
            assert isinstance(caught.value, openai.APIError)
            assert caught.value.code == "upstream_truncated"


# By load.


async def test_embeddings_pass_and_teach_nothing() -> None:
    async def embed(served: Served) -> None:
        data = [{"object": "embedding", "index": 0, "embedding": [0.5, 1e-7]}]
        usage = {"prompt_tokens": 5, "total_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}}
        await served.respond({"object": "list", "model": "m", "data": data, "usage": usage})

    async with Upstream(embed) as upstream, running_gateway([upstream.url]) as gw, gpt(gw) as sdk:
        asked: dict[str, Any] = {"model": "m", "input": "text " * 2000, "extra_headers": {"x-session-id": "s"}}
        for _ in range(3):
            answer = await sdk.embeddings.create(**asked, encoding_format="float")
            assert answer.data[0].embedding == [0.5, 1e-7]
        with pytest.raises(openai.NotFoundError, match="no backend serves"):
            await sdk.embeddings.create(model="other", input="x")
        assert counted(gw, "warmroute_prompt_tokens_total") == 15
        assert_nothing_learned(gw)


async def test_requests_by_load_spread() -> None:
    async with (
        Upstream(say_back) as a,
        Upstream(say_back) as b,
        running_gateway([a.url, b.url]) as gw,
        gw.client() as c,
    ):
        for _ in range(40):
            answer = await c.ask({"model": "m", "query": "q", "documents": ["d"]}, path="/v1/rerank")
            assert answer.header("x-warmroute-decision") == "load"
            await answer.read()
        assert len(a.requests) > 3
        assert len(b.requests) > 3
        assert_nothing_learned(gw)


@pytest.mark.parametrize(
    "path",
    ["/v1/rerank", "/v1/score", "/v1/moderations", "/v1/images/generations", "/v1/embeddings", "/v1/audio/speech"],
)
async def test_bodies_are_byte_for_byte_what_came(path: str) -> None:
    body = b'{ "model":"m","n":1e-7, "big":123456789012345678901234567890, "x":"\\u00e9", "x":2, "input":["\xc3\xa9"]}'
    async with Upstream(say_back) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        answer = await client.ask(body, path=path + "?api-version=1")
        assert answer.status == 200
        await answer.read()
        assert upstream.requests[0].body == body
        assert upstream.requests[0].target == path + "?api-version=1"
        for wrong, status in ((b"{", 400), (b"[]", 400), (b'{"model": "none"}', 404)):
            refused = await client.ask(wrong, path=path)
            assert refused.status == status
            assert "code" in await refused.error()
        assert len(upstream.requests) == 1


async def test_speech_is_passed_as_it_comes() -> None:
    async def speak(served: Served) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: audio/mpeg\r\ntransfer-encoding: chunked\r\n\r\n"
        await served.write(head + chunk(SOUND[:1000]))
        await served.write(chunk(SOUND[1000:]) + b"0\r\n\r\n")

    async with Upstream(speak) as upstream, running_gateway([upstream.url]) as gw, gpt(gw) as sdk:
        asked: dict[str, Any] = {"model": "m", "voice": "alloy", "input": "hello"}
        async with sdk.audio.speech.with_streaming_response.create(**asked) as answer:
            assert answer.headers["content-type"] == "audio/mpeg"
            assert b"".join([piece async for piece in answer.iter_bytes()]) == SOUND
        assert_nothing_learned(gw)


async def test_streams_without_an_end_mark_are_not_counted_as_broken() -> None:
    async def speak(served: Served) -> None:
        await served.stream(event({"type": "speech.audio.delta"}), event({"type": "speech.audio.done"}), done=False)

    async with Upstream(speak) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        answer = await client.ask({"model": "m", "input": "x", "stream_format": "sse"}, path="/v1/audio/speech")
        assert (await answer.read()).count(b"data:") == 2
        assert counted(gw, "warmroute_streams_without_done_total") == 0
        assert_nothing_learned(gw)


async def test_an_upload_is_routed_by_its_field() -> None:
    async def transcribe(served: Served) -> None:
        assert SOUND in served.body
        if b'name="stream"' in served.body:
            done = {"type": "transcript.text.done", "text": "hello"}
            await served.stream(event({"type": "transcript.text.delta", "delta": "he"}), event(done), done=True)
        else:
            await served.respond({"text": "hello"})

    async with (
        Upstream(transcribe, models=("other",)) as a,
        Upstream(transcribe, models=("whisper",)) as b,
        running_gateway([a.url, b.url]) as gw,
        gpt(gw) as sdk,
    ):
        file = ("é.wav", SOUND, "audio/wav")
        answer = await sdk.audio.transcriptions.create(model="whisper", file=file, language="en")
        assert answer.text == "hello"
        stream = await sdk.audio.transcriptions.create(model="whisper", file=file, stream=True)
        assert [each.type async for each in stream] == ["transcript.text.delta", "transcript.text.done"]
        field = b'--x\r\ncontent-disposition: form-data; name="model"\r\n\r\nother\r\n'
        form = field + b"--x\r\n\r\n\r\n" + SOUND + b"\r\n--x--\r\n"
        async with gw.client() as client:
            headers = {"content-type": "multipart/form-data; boundary=x"}
            assert (await client.ask(form, path="/v1/audio/translations", headers=headers)).status == 200
        assert (len(a.requests), len(b.requests)) == (1, 2)
        content_type = b.requests[0].header("content-type")
        assert content_type is not None
        assert content_type.partition("boundary=")[2].encode() in b.requests[0].body
        with pytest.raises(openai.NotFoundError):
            await sdk.audio.transcriptions.create(model="none", file=file)
        with pytest.raises(openai.BadRequestError, match="names no model"):
            await sdk.audio.transcriptions.create(model="", file=file)
        assert_nothing_learned(gw)


async def test_what_uploads_may_not_be() -> None:
    async with Upstream(say_back) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        for content_type, body, status in (
            ("multipart/form-data", b"--x--", 400),
            ("multipart/form-data; boundary=x", b"no boundary", 400),
            ("audio/wav", b"RIFF", 415),
            ("application/json", b'{"model": "m"}', 200),
        ):
            path = "/v1/audio/transcriptions"
            answer = await client.ask(body, path=path, headers={"content-type": content_type})
            assert answer.status == status, content_type
            await answer.read()


# Paths of the config.


async def test_paths_of_the_config_pass_with_and_without_a_model() -> None:
    paths = ["/v1/tokenize", "/v1/files*"]
    async with (
        Upstream(say_back) as a,
        Upstream(say_back, models=("other",)) as b,
        running_gateway([a.url, b.url], listen={"paths": paths}) as gw,
        gw.client() as client,
    ):
        for method, path, body in (
            ("GET", "/v1/files?limit=2", b""),
            ("DELETE", "/v1/files/file-1", b""),
            ("POST", "/v1/files", b""),
            ("POST", "/v1/tokenize", b'{"prompt": "x"}'),
        ):
            answer = await client.ask(body, path=path, method=method)
            assert await answer.json() == {"target": path, "method": method, "size": len(body)}
        for _ in range(8):
            answer = await client.ask({"model": "other", "prompt": "x"}, path="/v1/tokenize")
            assert answer.header("x-warmroute-backend") == "b"
            await answer.read()
        raw = await client.ask(b"\x00\xff", path="/v1/files", headers={"content-type": "application/octet-stream"})
        assert (await raw.json())["size"] == 2
        missing = await client.ask({"model": "none"}, path="/v1/tokenize")
        assert (missing.status, (await missing.error())["code"]) == (404, "model_not_found")
        assert_nothing_learned(gw)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/files/../admin", 404),
        ("GET", "/v1/files/..%2fadmin", 404),
        ("GET", "/v1/files/%2e%2e/x", 404),
        ("GET", "/v1/files//x", 404),
        ("POST", "/v1/tokenize/", 404),
        ("POST", "/v1/other", 404),
        ("POST", "/v2/embeddings", 404),
        ("POST", "//v1/embeddings", 404),
        ("PUT", "/v1/files/x", 405),
        ("GET", "/v1/embeddings", 405),
        ("DELETE", "/v1/chat/completions", 405),
        ("POST", "/v1/responses/resp_1", 405),
    ],
)
async def test_all_else_is_refused(method: str, path: str, status: int) -> None:
    allowed = {"/v1/files/x": "GET, POST, DELETE", "/v1/responses/resp_1": "GET, DELETE"}
    async with (
        Upstream(say_back) as upstream,
        running_gateway([upstream.url], listen={"paths": ["/v1/tokenize", "/v1/files*"]}) as gw,
        gw.client() as client,
    ):
        answer = await client.ask({"model": "m"}, path=path, method=method)
        assert answer.status == status
        assert (await answer.error())["code"] == ("not_found" if status == 404 else "method_not_allowed")
        if status == 405:
            assert answer.header("allow") == allowed.get(path, "POST")
        assert not upstream.requests


# explain


@pytest.mark.parametrize(
    ("path", "body", "matched"),
    [
        ("/v1/messages?beta=true", {"system": "s" * 100, "messages": [{"role": "user", "content": "x"}]}, True),
        ("/v1/responses", {"input": "x" * 100}, True),
        ("/v1/embeddings", {"input": "x" * 100}, True),
        ("/v1/responses", {"input": "x" * 100, "previous_response_id": "resp_unknown"}, False),
    ],
)
async def test_explain(path: str, body: dict[str, Any], matched: bool) -> None:
    async with Upstream(say_back) as a, Upstream(say_back) as b, running_gateway([a.url, b.url]) as gw:
        admin = urlsplit(gw.admin_url)
        client = RawClient(*await asyncio.open_connection(admin.hostname, admin.port))
        try:
            target = f"/admin/v1/explain?path={quote(path, safe='')}"
            answer = await client.ask({"model": "m", **body}, path=target, headers={"host": "localhost"})
            decision = await answer.json()
        finally:
            await client.close()
        assert answer.status == 200, decision
        assert len(decision["candidates"]) == 2
        assert decision["matched"] is matched
        assert decision["prompt_tokens"] >= 25
        assert not a.requests
        assert not b.requests

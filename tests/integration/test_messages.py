"""/v1/messages through a whole gateway, read by Anthropic's own client."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from typing import TYPE_CHECKING, Any

import anthropic
import pytest

from backends.engine.command import EngineOptions, SimulatedEngine
from tests.bench.transcripts import Message, load
from tests.support.gateway import RunningGateway, running_gateway
from tests.support.upstream import SSE_HEAD, ScriptedUpstream, Served, chunk

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PATH = "/v1/messages"
USAGE = {"input_tokens": 4, "cache_read_input_tokens": 60, "cache_creation_input_tokens": 36, "output_tokens": 7}
MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [{"type": "text", "text": "hello é🙂"}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": USAGE,
}
HELLO: dict[str, Any] = {"model": "m", "max_tokens": 16, "messages": [{"role": "user", "content": "hello"}]}


def event(payload: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (payload["type"].encode(), json.dumps(payload).encode())


def start() -> bytes:
    usage = {**USAGE, "output_tokens": 1}
    return event({"type": "message_start", "message": {**MESSAGE, "content": [], "stop_reason": None, "usage": usage}})


def block(index: int, kind: dict[str, Any], *deltas: dict[str, Any]) -> list[bytes]:
    return [
        event({"type": "content_block_start", "index": index, "content_block": kind}),
        *(event({"type": "content_block_delta", "index": index, "delta": delta}) for delta in deltas),
        event({"type": "content_block_stop", "index": index}),
    ]


def text(*pieces: str, index: int = 0) -> list[bytes]:
    deltas = [{"type": "text_delta", "text": piece} for piece in pieces]
    return block(index, {"type": "text", "text": ""}, *deltas)


def end(reason: str = "end_turn") -> list[bytes]:
    delta = {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}}
    return [event({**delta, "usage": {"output_tokens": 7}}), event({"type": "message_stop"})]


async def reply(served: Served) -> None:
    if served.json.get("stream"):
        await served.stream(start(), event({"type": "ping"}), *text("hello", " é🙂"), *end(), done=False)
    else:
        await served.respond(MESSAGE)


@contextlib.asynccontextmanager
async def claude(gw: RunningGateway, **options: Any) -> AsyncIterator[anthropic.AsyncAnthropic]:
    defaults: dict[str, Any] = {"api_key": "client-key", "max_retries": 0}
    async with anthropic.AsyncAnthropic(base_url=gw.url, **{**defaults, **options}) as client:
        yield client


def counted(gw: RunningGateway, name: str) -> float:
    """The sum of a counter over its labels."""
    lines = gw.gateway.metrics.render().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name + "{"))


async def test_a_message_passes_as_it_is_and_its_usage_is_counted() -> None:
    async with ScriptedUpstream(reply) as upstream, running_gateway([upstream.url]) as gw, claude(gw) as client:
        raw = await client.beta.messages.with_raw_response.create(
            **HELLO,
            betas=["tools-2026-01-01"],
            extra_query={"beta": "true"},
            extra_headers={"anthropic-version": "2023-06-01"},
        )
        message = await raw.parse()
        assert message.content[0].text == "hello é🙂"
        assert message.usage.cache_read_input_tokens == 60
        assert raw.headers["x-warmroute-backend"] == "a"
        served = upstream.requests[0]
        assert served.target == f"{PATH}?beta=true"
        assert served.header("anthropic-version") == "2023-06-01"
        assert served.header("anthropic-beta") == "tools-2026-01-01"
        assert served.header("x-api-key") is None
        assert counted(gw, "warmroute_prompt_tokens_total") == 100
        assert counted(gw, "warmroute_cached_tokens_reported_total") == 60
        assert counted(gw, "warmroute_completion_tokens_total") == 7
        gw.assert_at_rest()


async def test_a_stream_passes_as_it_is_and_its_usage_is_counted() -> None:
    async with ScriptedUpstream(reply) as upstream, running_gateway([upstream.url]) as gw, claude(gw) as client:
        async with client.messages.stream(**HELLO) as stream:
            pieces = [piece async for piece in stream.text_stream]
            message = await stream.get_final_message()
        assert pieces == ["hello", " é🙂"]
        assert message.stop_reason == "end_turn"
        assert message.usage.output_tokens == 7
        await gw.until(lambda _: gw.in_flight == 0)
        assert counted(gw, "warmroute_prompt_tokens_total") == 100
        assert counted(gw, "warmroute_cached_tokens_reported_total") == 60
        assert counted(gw, "warmroute_completion_tokens_total") == 7
        assert counted(gw, "warmroute_streams_without_done_total") == 0
        gw.assert_at_rest()


async def test_calls_of_tools_stream_in_pieces() -> None:
    async def call(served: Served) -> None:
        assert served.json["tools"][0]["name"] == "read"
        pieces = ['{"pa', 'th": "é', '.py"}']
        tool = {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {}}
        deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
        await served.stream(start(), *text("I will"), *block(1, tool, *deltas), *end("tool_use"), done=False)

    tools: list[Any] = [{"name": "read", "description": "reads", "input_schema": {"type": "object"}}]
    async with ScriptedUpstream(call) as upstream, running_gateway([upstream.url]) as gw, claude(gw) as client:
        async with client.messages.stream(**HELLO, tools=tools) as stream:
            message = await stream.get_final_message()
        assert message.stop_reason == "tool_use"
        assert message.content[1].input == {"path": "é.py"}  # type: ignore[union-attr]


async def test_count_tokens_goes_by_load_and_leaves_no_trace() -> None:
    async def count(served: Served) -> None:
        await served.respond({"input_tokens": 42})

    async with ScriptedUpstream(count) as upstream, running_gateway([upstream.url]) as gw, claude(gw) as client:
        long = [{"role": "user", "content": "word " * 1000}]
        counted_tokens = await client.messages.count_tokens(model="m", messages=long)  # type: ignore[arg-type]
        assert counted_tokens.input_tokens == 42
        assert upstream.requests[0].target == f"{PATH}/count_tokens"
        assert gw.gateway.index.stats().blocks == 0
        assert gw.gateway.sessions.stats().sessions == 0


async def test_http_1_0_clients_get_the_stream_to_the_end_of_the_connection() -> None:
    async with ScriptedUpstream(reply) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        response = await client.ask({**HELLO, "stream": True}, path=PATH, version="1.0")
        assert response.header("transfer-encoding") is None
        assert (await response.read()).endswith(b'data: {"type": "message_stop"}\n\n')


# Errors.


async def test_errors_of_the_gateway_are_typed() -> None:
    async with (
        ScriptedUpstream(reply) as upstream,
        running_gateway([upstream.url], listen={"max_body_mb": 0.01}) as gw,
        claude(gw) as client,
    ):
        with pytest.raises(anthropic.NotFoundError) as missing:
            await client.messages.create(**{**HELLO, "model": "other"})
        assert isinstance(missing.value.body, dict)
        assert missing.value.body["type"] == "error"
        assert missing.value.body["error"]["type"] == "not_found_error"
        assert missing.value.body["error"]["code"] == "model_not_found"
        assert missing.value.body["request_id"] == missing.value.response.headers["x-request-id"]
        with pytest.raises(anthropic.RequestTooLargeError, match=r"listen\.max_body_mb"):
            await client.messages.create(**{**HELLO, "system": "x" * 20_000})
        with pytest.raises(anthropic.BadRequestError):
            await client.messages.create(**{**HELLO, "model": 5})
        with pytest.raises(anthropic.NotFoundError) as no_path:
            await client.post("/v1/messages/none", cast_to=object, body={})
        assert no_path.value.body == {
            "type": "error",
            "error": {
                "type": "not_found_error",
                "message": "there is no such path on this gateway",
                "code": "not_found",
                "param": None,
            },
            "request_id": None,
        }
        async with gw.client() as raw:
            wrong = await raw.ask(b"", path=PATH, method="PUT")
            assert (wrong.status, wrong.header("allow")) == (405, "POST")
            assert (await wrong.json())["type"] == "error"
        assert not upstream.requests


async def test_no_backend_is_overloaded() -> None:
    async with ScriptedUpstream(reply, health_status=500) as upstream:
        entry = {"name": "a", "url": upstream.url, "models": ["m"]}
        async with running_gateway([entry], health={"fail_threshold": 1}) as gw, claude(gw) as client:
            with pytest.raises(anthropic.ServiceUnavailableError) as caught:
                await client.messages.create(**HELLO)
            assert caught.value.body["error"]["type"] == "overloaded_error"  # type: ignore[index]
            assert caught.value.response.headers["retry-after"] == "1"


async def test_a_credential_is_asked_for_and_limits_are_told() -> None:
    key = "key-of-the-tenant-0001"
    busy = asyncio.Event()

    async def wait(served: Served) -> None:
        await busy.wait()
        await served.respond(MESSAGE)

    digest = "sha256:" + hashlib.sha256(key.encode()).hexdigest()
    tenants = [{"name": "team", "api_keys": [digest], "max_concurrent_requests": 1}]
    async with (
        ScriptedUpstream(wait) as upstream,
        running_gateway([upstream.url], tenants=tenants) as gw,
        claude(gw) as stranger,
        claude(gw, api_key=key) as client,
    ):
        with pytest.raises(anthropic.AuthenticationError) as unknown:
            await stranger.messages.create(**HELLO)
        assert unknown.value.body["error"]["type"] == "authentication_error"  # type: ignore[index]
        first = asyncio.create_task(client.messages.create(**HELLO))
        await upstream.until(lambda up: len(up.requests) == 1)
        with pytest.raises(anthropic.RateLimitError) as limited:
            await client.messages.create(**HELLO)
        assert limited.value.body["error"]["type"] == "rate_limit_error"  # type: ignore[index]
        assert int(limited.value.response.headers["retry-after"]) >= 1
        busy.set()
        await first


async def test_errors_of_the_backend_pass_as_they_are() -> None:
    told = {"type": "error", "error": {"type": "invalid_request_error", "message": "max_tokens: é"}}

    async def refuse(served: Served) -> None:
        await served.respond(told, 400)

    async with ScriptedUpstream(refuse) as upstream, running_gateway([upstream.url]) as gw, claude(gw) as client:
        with pytest.raises(anthropic.BadRequestError) as caught:
            await client.messages.create(**HELLO)
        assert caught.value.body == told


WHOLE = b"".join([start(), *text("hello")])


@pytest.mark.parametrize("reset", [False, True], ids=["fin", "rst"])
@pytest.mark.parametrize("sent", [len(WHOLE), len(WHOLE) - 1, len(WHOLE) - 20, len(WHOLE) - 60, len(start()) + 10])
async def test_o15_a_backend_that_dies_in_the_stream_raises_wherever_it_was(sent: int, reset: bool) -> None:
    async def die(served: Served) -> None:
        await served.write(SSE_HEAD + chunk(WHOLE[:sent]))
        await gw.until(lambda _: counted(gw, "warmroute_ttft_seconds_count") == 1)
        if reset:
            served.reset()
        else:
            served.writer.close()

    async with ScriptedUpstream(die) as upstream, running_gateway([upstream.url]) as gw, claude(gw) as client:
        with pytest.raises(anthropic.APIStatusError) as caught:
            async with client.messages.stream(**HELLO) as stream:
                await stream.get_final_message()
        assert caught.value.body["error"]["type"] == "api_error"  # type: ignore[index]
        assert caught.value.body["error"]["code"] == "upstream_truncated"  # type: ignore[index]
        assert counted(gw, "warmroute_upstream_truncated_total") == 1
        gw.assert_at_rest()


async def test_a_client_that_leaves_stops_the_backend() -> None:
    async def endless(served: Served) -> None:
        await served.write(SSE_HEAD + chunk(WHOLE))
        await served.until_closed()

    async with ScriptedUpstream(endless) as upstream, running_gateway([upstream.url]) as gw, claude(gw) as client:
        async with client.messages.stream(**HELLO) as stream:
            async for _ in stream.text_stream:
                break
        await upstream.until(lambda up: up.closed == 1)
        await gw.until(lambda _: gw.in_flight == 0)
        gw.assert_at_rest()


# Routing.


def as_claude_code(messages: list[Message], nonce: str) -> dict[str, Any]:
    """A request as Claude Code sends it: attribution with a nonce, and marks of the cache that wander."""
    mark = {"cache_control": {"type": "ephemeral"}}
    attribution = {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1.0; cch={nonce};"}
    system = [attribution, {"type": "text", "text": messages[0]["content"], **mark}]
    turns: list[dict[str, Any]] = []
    for message in messages[1:]:
        if message["role"] == "tool":
            part = {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": message["content"]}
            turns.append({"role": "user", "content": [part]})
            continue
        parts: list[dict[str, Any]] = [{"type": "text", "text": message["content"]}] if message["content"] else []
        for call in message.get("tool_calls", ()):
            function = call["function"]
            given = json.loads(function["arguments"])
            parts.append({"type": "tool_use", "id": call["id"], "name": function["name"], "input": given})
        turns.append({"role": message["role"], "content": parts})
    turns[-1]["content"][-1] = {**turns[-1]["content"][-1], **mark}
    return {"model": "m", "max_tokens": 16, "system": system, "messages": turns}


@pytest.mark.parametrize("session", [True, False], ids=["session id", "no id"])
async def test_a_session_of_claude_code_stays_where_it_is_warm(session: bool) -> None:
    transcript = next(each for each in load() if len(each.turns) >= 5)
    user_id = {"metadata": {"user_id": "user_1_account_2_session_3"}} if session else {}
    async with (
        ScriptedUpstream(reply) as a,
        ScriptedUpstream(reply) as b,
        running_gateway([a.url, b.url]) as gw,
        claude(gw) as client,
    ):
        decisions, backends = [], set()
        for turn in range(5):
            body = {**as_claude_code(transcript.request(turn), nonce=f"{turn:05x}"), **user_id}
            raw = await client.messages.with_raw_response.create(**body)
            decisions.append(raw.headers["x-warmroute-decision"])
            backends.add(raw.headers["x-warmroute-backend"])
            cached = int(raw.headers["x-warmroute-cached-tokens"])
            if turn:
                assert cached > 0
        assert len(backends) == 1
        assert decisions[1:] == ["session"] * 4, "without an id it is found by what it extends"
        sent = [served.json for served in (*a.requests, *b.requests)]
        assert sent[0]["system"][0]["text"].endswith("cch=00000;"), "what is sent on is not changed"
        assert all("cache_control" in json.dumps(body) for body in sent)


async def test_what_is_predicted_is_what_an_engine_finds() -> None:
    """Turns with tools, most of whose text is in calls and results, on simulated engines with caches of their own."""
    transcript = next(each for each in load() if len(each.turns) >= 8 and any("tool_calls" in m for m in each.messages))
    options = EngineOptions(port=0, speed=1000.0)
    async with (
        SimulatedEngine(options) as a,
        SimulatedEngine(options) as b,
        running_gateway([a.url, b.url]) as gw,
        claude(gw) as client,
    ):
        for turn in range(8):
            body = {**as_claude_code(transcript.request(turn), nonce=f"{turn:05x}"), "model": "demo"}
            async with client.messages.stream(**body) as stream:
                usage = (await stream.get_final_message()).usage
                predicted = int(stream.response.headers["x-warmroute-cached-tokens"])
            found = usage.cache_read_input_tokens or 0
            assert predicted == pytest.approx(found, rel=0.02, abs=16)
            assert found > 0 or turn == 0
        await gw.until(lambda _: gw.in_flight == 0)
        assert gw.gateway.models.resolve("demo")[1].tokens_per_unit() == pytest.approx(0.25, rel=0.02)
        assert [gw.gateway.fleet.of(each.instance).capacity_factor for each in gw.gateway.registry] == [1.0, 1.0]


async def test_chat_and_messages_of_one_conversation_share_their_prefix() -> None:
    system = "You are kind. " * 50
    async with ScriptedUpstream(reply) as a, ScriptedUpstream(reply) as b, running_gateway([a.url, b.url]) as gw:
        async with gw.client() as client:
            messages = [{"role": "system", "content": system}, {"role": "user", "content": "hello"}]
            first = await client.ask({"model": "m", "messages": messages})
            await first.read()
            body = {**HELLO, "system": system, "messages": [{"role": "user", "content": "other"}]}
            second = await client.ask(body, path=PATH)
            await second.read()
        assert second.header("x-warmroute-backend") == first.header("x-warmroute-backend")
        assert second.header("x-warmroute-decision") == "prefix"

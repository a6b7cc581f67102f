"""Field cases B: status, errors, retries."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import openai
import pytest

from tests.field.test_cancellation import metric
from tests.support.gateway import chat, running_gateway
from tests.support.upstream import DONE, SSE_HEAD, ScriptedUpstream, Served, answer, chunk, token

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.prepare import Prepared
    from routing import Candidate, Decision


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("status", [400, 401, 404, 422, 429])
async def test_o08_backend_error_passes_as_it_is(stream: bool, status: int) -> None:
    body = json.dumps({"error": {"message": "prompt + max_tokens is over the limit", "code": status}}).encode()

    async def script(served: Served) -> None:
        await served.respond(body, status, b"retry-after: 30\r\nx-ratelimit-remaining: 0\r\n")

    async with ScriptedUpstream(script) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        response = await client.ask(chat(stream=stream))
        assert response.status == status
        assert response.header("content-type") == "application/json"
        assert (response.header("retry-after"), response.header("x-ratelimit-remaining")) == ("30", "0")
        assert await response.read() == body
        assert len(upstream.requests) == 1
        assert (await client.ask(chat())).status == status, "the connection stays usable"
        assert next(iter(gw.gateway.registry)).health.admits(gw.gateway.clock())


@pytest.mark.parametrize("stream", [False, True])
async def test_o09_all_connects_failed_is_no_200(stream: bool) -> None:
    far_apart = {"interval_s": 60, "metrics_interval_s": 60}  # the gateway still believes in both
    async with (
        ScriptedUpstream() as a,
        ScriptedUpstream() as b,
        running_gateway([a.url, b.url], health=far_apart) as gw,
    ):
        await a.shut()
        await b.shut()
        async with gw.client() as client:
            response = await client.ask(chat(stream=stream))
            assert response.status == 502
            assert response.header("content-type") == "application/json"
            assert (await response.error())["code"] in ("upstream_connect_failed", "upstream_reset")
        gw.assert_at_rest()
        async with openai.AsyncOpenAI(base_url=gw.url + "/v1", api_key="none", max_retries=0) as sdk:
            with pytest.raises(openai.APIStatusError):
                await sdk.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}], stream=stream)


@pytest.mark.parametrize("death", ["rst", "fin", "mid event"])
async def test_o15_death_in_the_middle_of_a_stream_is_told_in_band(death: str) -> None:
    async def script(served: Served) -> None:
        await served.write(SSE_HEAD + chunk(token("é")) * 3)
        if death == "mid event":
            await served.write(chunk(b'data: {"choices": [{"delta": {"conte'))
        if death == "fin":
            served.writer.close()
        else:
            served.reset()

    async with ScriptedUpstream(script) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        response = await client.ask(chat(stream=True))
        assert response.status == 200
        body = await response.read()
        assert response.complete, "a proper end of the chunked body"
        assert body.startswith(token("é") * 3)
        assert b"[DONE]" not in body
        assert b"finish_reason" not in body
        last = body.rstrip().rsplit(b"\n\n", 1)[1]
        error = json.loads(last.removeprefix(b"data: "))["error"]
        assert error["code"] == "upstream_truncated"
        assert {"message", "type"} <= error.keys()
        assert metric(gw.gateway, "warmroute_upstream_truncated_total") == 1
        await gw.until(lambda _: gw.in_flight == 0)
        gw.assert_at_rest()
        assert (await client.ask(b"", path="/livez", method="GET")).status == 200, "the connection stays usable"


async def test_o15_the_sdk_sees_an_error_not_a_short_answer() -> None:
    async def script(served: Served) -> None:
        await served.write(SSE_HEAD + chunk(token()) * 3)
        served.reset()

    async with (
        ScriptedUpstream(script) as upstream,
        running_gateway([upstream.url]) as gw,
        openai.AsyncOpenAI(base_url=gw.url + "/v1", api_key="none", max_retries=0) as sdk,
    ):
        stream = await sdk.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}], stream=True)
        with pytest.raises(openai.APIError):
            async for _ in stream:
                pass


async def test_o15_clean_end_without_done_passes_as_it_came_and_is_counted() -> None:
    async def script(served: Served) -> None:
        await served.stream(token("a"), token("b"), done=False)

    async with ScriptedUpstream(script) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        response = await client.ask(chat(stream=True))
        assert await response.read() == token("a") + token("b")
        assert response.complete
        assert metric(gw.gateway, "warmroute_streams_without_done_total") == 1


async def test_o15_finished_stream_is_byte_identical() -> None:
    events = [token("a"), b": comment\n\n", token("b"), b"event: x\ndata: 1\n\n", DONE]

    async def script(served: Served) -> None:
        await served.stream(*events, done=False)

    async with ScriptedUpstream(script) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        response = await client.ask(chat(stream=True))
        assert await response.read() == b"".join(events)
        assert metric(gw.gateway, "warmroute_streams_without_done_total") == 0


@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_o15_a_whole_answer_cut_short_closes_the_connection(framing: str) -> None:
    async def script(served: Served) -> None:
        if framing == "length":
            await served.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{")
        else:
            await served.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n" + chunk(b"{")
            )
        served.reset()

    async with ScriptedUpstream(script) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        response = await client.ask(chat())
        assert await response.read() == b"{"
        assert not response.complete
        gw.assert_at_rest()


@pytest.mark.parametrize("chunks", [3, 0], ids=["three chunks", "only the head"])
async def test_o16_no_retry_after_partial_output(chunks: int) -> None:
    async def dies(served: Served) -> None:
        await served.write(SSE_HEAD + chunk(token("from the first")) * chunks)
        await head_seen.wait()
        served.reset()

    head_seen = asyncio.Event()

    async with ScriptedUpstream(dies) as a, ScriptedUpstream(dies) as b, running_gateway([a.url, b.url]) as gw:
        async with gw.client() as client:
            response = await client.ask(chat(stream=True))
            head_seen.set()
            body = await response.read()
            assert body.count(b"from the first") == chunks
            assert b"upstream_truncated" in body
            assert len(a.requests) + len(b.requests) == 1
        gw.assert_at_rest()


@pytest.mark.parametrize("fault", ["reset", "503", "502"])
@pytest.mark.parametrize("stream", [False, True])
async def test_o16_a_retry_is_legal_while_nothing_was_sent(fault: str, stream: bool) -> None:
    seen: list[str] = []

    async def script(served: Served) -> None:
        seen.append(served.upstream.url)
        if len(seen) > 1:
            await answer(served)
        elif fault == "reset":
            served.reset()
        else:
            await served.respond({"error": {}}, int(fault))

    async with ScriptedUpstream(script) as a, ScriptedUpstream(script) as b, running_gateway([a.url, b.url]) as gw:
        async with gw.client() as client:
            response = await client.ask(chat(stream=stream))
            assert response.status == 200
            assert response.header("x-warmroute-decision") == "retry"
            await response.read()
            assert response.complete
        assert len(set(seen)) == 2
        assert metric(gw.gateway, "warmroute_retries_total") == 1
        gw.assert_at_rest()


async def test_o16_a_503_passes_when_no_other_backend_is_left() -> None:
    async def script(served: Served) -> None:
        await served.respond({"error": {"message": "busy"}}, 503, b"retry-after: 7\r\n")

    async with ScriptedUpstream(script) as a, ScriptedUpstream(script) as b, running_gateway([a.url, b.url]) as gw:
        async with gw.client() as client:
            response = await client.ask(chat())
            assert (response.status, response.header("retry-after")) == (503, "7")
            assert (await response.error())["message"] == "busy"
        assert len(a.requests) == len(b.requests) == 1
        gw.assert_at_rest()


@pytest.mark.parametrize("how", ["status", "reset", "connect"])
async def test_a_fault_of_ours_in_a_second_attempt_is_an_answer_and_no_silence(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script(served: Served) -> None:
        if how == "reset":
            served.reset()
        else:
            await served.respond({}, 503)

    async with (
        ScriptedUpstream(script) as a,
        ScriptedUpstream(script) as b,
        running_gateway([a.url, b.url], health={"interval_s": 600}) as gw,
        gw.client() as client,
    ):
        router = gw.gateway.router
        decide = router.decide

        def broken(prepared: Prepared, attempt: int, candidates: Sequence[Candidate]) -> Decision:
            if attempt:
                raise RuntimeError("a fault")
            return decide(prepared, attempt, candidates)

        monkeypatch.setattr(router, "decide", broken)
        if how == "connect":
            await a.shut()
            await b.shut()
        response = await client.ask(chat(stream=True))
        assert (response.status, (await response.error())["code"]) == (500, "internal_error")
        monkeypatch.undo()
        assert (await client.ask(b"", path="/livez", method="GET")).status == 200
        gw.assert_at_rest()

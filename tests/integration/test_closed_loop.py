"""The closed loop on real sockets: usage asked for and taken out again, and what is wrong with a cache, by name."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import httpx2
import openai
import pytest

from backends.engine.command import EngineOptions, SimulatedEngine
from gateway.status import status
from tests.support.gateway import chat, running_gateway
from tests.support.scrape import counted
from tests.support.token_engine import write_model
from tests.support.upstream import DONE, SSE_HEAD, ScriptedUpstream, Served, chunk, event, token

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.gateway import RawClient, RunningGateway
    from tests.support.upstream import Script

USAGE = {"prompt_tokens": 100, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 64}}
USAGE_EVENT = event({"id": "x", "choices": [], "usage": USAGE})
ASKED = {"include_usage": True}
LLAMACPP = "llamacpp:requests_processing 0\nllamacpp:requests_deferred 0\n"


async def engine(served: Served) -> None:
    """As vLLM: usage for those who ask."""
    asked = (served.json.get("stream_options") or {}).get("include_usage")
    await served.stream(token("a"), token("b"), *([USAGE_EVENT] if asked else []))


async def told(gw: RunningGateway, name: str) -> float:
    await gw.until(lambda _: gw.in_flight == 0)
    return counted(gw.gateway, f"warmroute_{name}_tokens_total" if "cached" not in name else f"warmroute_{name}_total")


# Asking, and taking the answer out.


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("version", ["1.1", "1.0"])
async def test_o22_who_did_not_ask_sees_the_stream_as_it_would_be(path: str, version: str) -> None:
    async with ScriptedUpstream(engine) as upstream, running_gateway([upstream.url]) as gw:
        async with gw.client() as client:
            body = json.dumps({**chat(stream=True), "prompt": "hello", "stream_options": None}).encode()
            headers = {"accept-encoding": "gzip"}
            response = await client.ask(body, path=path, version=version, headers=headers)
            assert await response.read() == token("a") + token("b") + DONE
            assert response.complete
        assert upstream.requests[0].json == {**json.loads(body), "stream_options": ASKED}
        assert upstream.requests[0].header("accept-encoding") is None, "what is to be sifted must be readable"
        assert await told(gw, "cached_tokens_reported") == 64
        assert await told(gw, "completion") == 2
        gw.assert_at_rest()


async def test_o22_who_asks_or_forbids_gets_what_was_wanted() -> None:
    async with ScriptedUpstream(engine) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        for options, shown in ((ASKED, USAGE_EVENT), ({"include_usage": False}, b""), ({"more": 1}, b"")):
            body = json.dumps(chat(stream=True, stream_options=options)).encode()
            response = await client.ask(body, headers={"accept-encoding": "gzip"})
            assert await response.read() == token("a") + token("b") + shown + DONE
            assert upstream.requests[-1].body == body
            assert upstream.requests[-1].header("accept-encoding") == "gzip"
        body = json.dumps(chat()).encode()
        await (await client.ask(body)).read()
        assert upstream.requests[-1].body == body, "what does not stream tells it anyway"


@pytest.mark.parametrize("size", [1, 7, 64, 10_000])
async def test_o22_however_the_stream_is_cut(size: int) -> None:
    whole = token("é🙂") + USAGE_EVENT + token("b") + USAGE_EVENT + DONE

    async def script(served: Served) -> None:
        await served.write(SSE_HEAD)
        for i in range(0, len(whole), size):
            await served.write(chunk(whole[i : i + size]))
        await served.write(b"0\r\n\r\n")

    async with ScriptedUpstream(script) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        response = await client.ask(chat(stream=True))
        assert await response.read() == token("é🙂") + token("b") + DONE
        assert response.complete
        assert await told(gw, "cached_tokens_reported") == 64


@pytest.mark.parametrize("version", ["1.1", "1.0"])
async def test_a_stream_of_known_length_is_framed_anew(version: str) -> None:
    whole = token("a") + USAGE_EVENT + DONE

    async def script(served: Served) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(whole)
        await served.write(head + whole)

    async with ScriptedUpstream(script) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        response = await client.ask(chat(stream=True), version=version)
        assert response.header("content-length") is None
        assert await response.read() == token("a") + DONE
        assert response.complete


async def test_a_stream_that_dies_loses_nothing_that_came() -> None:
    async def script(served: Served) -> None:
        await served.write(SSE_HEAD + chunk(token("a") + b'data: {"choi'))
        served.reset()

    async with ScriptedUpstream(script) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        body = await (await client.ask(chat(stream=True))).read()
        assert body.startswith(token("a") + b'data: {"choi\n\ndata: {"error"')
        assert b"upstream_truncated" in body


async def test_events_are_not_held_back() -> None:
    release = asyncio.Event()

    async def script(served: Served) -> None:
        await served.write(SSE_HEAD + chunk(token("a")))
        await release.wait()
        await served.write(chunk(USAGE_EVENT) + chunk(DONE) + b"0\r\n\r\n")

    async with ScriptedUpstream(script) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        chunks = (await client.ask(chat(stream=True))).chunks()
        assert await anext(chunks) == token("a")
        release.set()
        assert [piece async for piece in chunks] == [DONE]


async def test_engines_that_are_not_asked() -> None:
    """One of another kind may refuse what it does not know; llama.cpp tells as much without."""
    last = event({"choices": [{"index": 0, "delta": {}}], "timings": {"cache_n": 30, "prompt_n": 12, "predicted_n": 2}})

    async def script(served: Served) -> None:
        await served.stream(token("a"), last)

    async with ScriptedUpstream(engine) as foreign, ScriptedUpstream(script, metrics=LLAMACPP) as llama:
        for entry in (
            {"name": "foreign", "url": foreign.url, "engine": "openai"},
            {"name": "llama", "url": llama.url, "engine": "llamacpp"},
        ):
            async with running_gateway([entry]) as gw, gw.client() as client:
                body = json.dumps(chat(stream=True)).encode()
                text = await (await client.ask(body)).read()
                upstream = foreign if entry["name"] == "foreign" else llama
                assert upstream.requests[-1].body == body
                assert text == token("a") + (last if upstream is llama else token("b")) + DONE
                if upstream is llama:
                    assert await told(gw, "cached_tokens_reported") == 30
                    assert await told(gw, "prompt") == 42


async def test_it_can_be_switched_off() -> None:
    async with ScriptedUpstream(engine) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        assert (await gw.reload(telemetry={"ask_usage": False})).applied
        body = json.dumps(chat(stream=True)).encode()
        await (await client.ask(body)).read()
        assert upstream.requests[-1].body == body
        assert (await gw.reload(telemetry={"ask_usage": True})).applied
        await (await client.ask(body)).read()
        assert upstream.requests[-1].json["stream_options"] == ASKED


async def test_a_tenants_salt_and_the_ask_go_together() -> None:
    tenants = [{"name": "t", "api_keys": ["key-of-tenant-t-one"], "cache_salt": "gateway"}]
    async with (
        ScriptedUpstream(engine) as upstream,
        running_gateway([upstream.url], tenants=tenants) as gw,
        gw.client() as client,
    ):
        headers = {"authorization": "Bearer key-of-tenant-t-one"}
        response = await client.ask(chat(stream=True), headers=headers)
        assert await response.read() == token("a") + token("b") + DONE
        sent = upstream.requests[0].json
        assert sent["stream_options"] == ASKED
        assert sent["cache_salt"]


async def test_the_real_client_sees_what_it_would_see_without_us() -> None:
    async with SimulatedEngine(EngineOptions(speed=1000.0)) as simulated, running_gateway([simulated.url]) as gw:
        seen: list[list[dict[str, Any]]] = []
        for url in (simulated.url, gw.url):
            async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="none", max_retries=0) as sdk:
                stream = await sdk.chat.completions.create(
                    model="demo", messages=[{"role": "user", "content": "hello " * 40}], max_tokens=5, stream=True
                )
                chunks = [one.model_dump(exclude={"id", "created"}) async for one in stream]
                seen.append(chunks)
        assert seen[0] == seen[1]
        assert all(one["choices"] for one in seen[1])
        assert await told(gw, "completion") == 5
        assert await told(gw, "cached_tokens_reported") > 0, "the first one had filled the cache"


# What is wrong, by name.


async def ask_turns(client: RawClient, sessions: int, turns: int, **body: Any) -> None:
    for turn in range(turns):
        for number in range(sessions):
            text = f"session {number} " + "some words of it " * (60 + 10 * turn)
            request = {**chat(text, stream=True, max_tokens=1), **body}
            response = await client.ask(request, headers={"x-session-id": f"s{number}"})
            assert response.status == 200, await response.read()
            await response.read()


async def named(gw: RunningGateway, cause: str) -> None:
    await gw.until(lambda _: gw.in_flight == 0)
    (shown,) = status(gw.gateway)["backends"]
    assert shown["suspect"] is not None, shown
    assert shown["suspect"]["cause"] == cause, shown["suspect"]
    assert shown["suspect"]["detail"]
    assert counted(gw.gateway, "warmroute_index_suspect", backend="a", cause=cause) == 1
    assert counted(gw.gateway, "warmroute_index_suspect") == 1, "one cause at a time"


async def test_o42_a_cache_that_was_emptied_is_noticed_and_forgotten() -> None:
    async with (
        SimulatedEngine(EngineOptions(models=("m",), speed=1000.0)) as simulated,
        running_gateway([simulated.url]) as gw,
        gw.client() as client,
    ):
        await ask_turns(client, 9, 3)
        held = gw.gateway.index.stats().entries
        assert status(gw.gateway)["backends"][0]["suspect"] is None
        async with httpx2.AsyncClient() as http:
            await http.post(simulated.url + "/reset_prefix_cache")
        await ask_turns(client, 9, 1)
        await named(gw, "cold_restart")
        assert counted(gw.gateway, "warmroute_index_drops_total", backend="a") == 1
        assert gw.gateway.index.stats().entries < held / 2
        reported = counted(gw.gateway, "warmroute_cached_tokens_reported_total", backend="a")
        predicted = counted(gw.gateway, "warmroute_cached_tokens_predicted_total", backend="a")
        assert predicted > reported > 0, "and both are exported"


async def test_an_engine_that_restarts_is_named() -> None:
    async with (
        SimulatedEngine(EngineOptions(models=("m",), speed=1000.0)) as simulated,
        running_gateway([simulated.url]) as gw,
        gw.client() as client,
    ):
        await ask_turns(client, 2, 2)
        before = next(iter(gw.gateway.registry)).instance.id
        await asyncio.sleep(1.1)  # start times a second apart are another process
        simulated.set_fault("restart")
        await gw.until(lambda g: next(iter(g.registry)).instance.id != before)
        await named(gw, "cold_restart")


async def test_an_engine_that_does_not_report_is_named() -> None:
    async def silent(served: Served) -> None:
        usage = {"prompt_tokens": 300, "completion_tokens": 1, "prompt_tokens_details": None}
        await served.stream(token("a"), event({"choices": [], "usage": usage}))

    async with ScriptedUpstream(silent) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        await ask_turns(client, 1, 6)
        await asyncio.sleep(1.0)  # judged once a second
        await ask_turns(client, 1, 1)
        await named(gw, "not_reporting")
        assert "--enable-prompt-tokens-details" in status(gw.gateway)["backends"][0]["suspect"]["detail"]


async def test_a_cache_that_is_off_is_named() -> None:
    async def cold(served: Served) -> None:
        usage = {"prompt_tokens": 300, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 0}}
        await served.stream(token("a"), event({"choices": [], "usage": usage}))

    async with ScriptedUpstream(cold) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        await ask_turns(client, 1, 10)
        await named(gw, "cache_off")


async def test_an_alias_that_the_engine_takes_for_another_model_is_named() -> None:
    options = EngineOptions(models=("base",), adapters=("adapter",), speed=1000.0)
    models = [{"name": "base", "aliases": ["adapter"]}]
    async with (
        SimulatedEngine(options) as simulated,
        running_gateway([simulated.url], models=models) as gw,
        gw.client() as client,
    ):
        for name in ("base", "base", "adapter"):
            await ask_turns(client, 6, 1, model=name)
        await asyncio.sleep(1.0)  # judged once a second
        await ask_turns(client, 1, 1, model="base")
        await named(gw, "model_alias")


def counting(extra: int, cached_block: int) -> Script:
    """An engine whose tokens are characters, with so many more before every chat than the template says."""
    longest: dict[str, int] = {}

    async def script(served: Served) -> None:
        text = served.json["messages"][0]["content"]
        session = text[:20]
        prompt = len(f"[user]{text}>") + extra
        cached = min(longest.get(session, 0), prompt) // cached_block * cached_block
        longest[session] = prompt
        usage = {"prompt_tokens": prompt, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": cached}}
        await served.stream(token("a"), event({"choices": [], "usage": usage}))

    return script


@pytest.mark.parametrize(("cause", "extra", "block_size"), [("template", 1, 16), ("block_size", 0, 32), (None, 0, 16)])
async def test_tokens_or_blocks_that_differ_are_named(
    tmp_path: Path, cause: str | None, extra: int, block_size: int
) -> None:
    metrics = f'vllm:cache_config_info{{block_size="{block_size}",num_gpu_blocks="9000"}} 1\n'
    async with (
        ScriptedUpstream(counting(extra, block_size), metrics=metrics) as upstream,
        running_gateway([upstream.url], models=[write_model(tmp_path / "m")]) as gw,
        gw.client() as client,
    ):
        await ask_turns(client, 2, 4)
        await asyncio.sleep(1.0)  # judged once a second
        await ask_turns(client, 1, 1)
        if cause is not None:
            await named(gw, cause)
        else:
            assert status(gw.gateway)["backends"][0]["suspect"] is None

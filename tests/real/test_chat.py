"""The OpenAI client through the gateway to a real engine, and what the gateway sees of one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import openai

from tests.real.llama import NAME
from tests.real.seen import shown
from tests.support.gateway import chat
from tests.support.scrape import counted

if TYPE_CHECKING:
    from tests.real.conftest import Front, StartEngine
    from tests.real.llama import LlamaCpp

ENDLESS_TOKENS = 30_000


async def test_the_openai_client_reads_the_same_answer_in_both_forms(
    engines: tuple[LlamaCpp, LlamaCpp], in_front: Front
) -> None:
    messages: Any = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    async with (
        in_front(*engines) as gw,
        openai.AsyncOpenAI(base_url=gw.url + "/v1", api_key="none", max_retries=0) as sdk,
    ):
        assert [entry.id async for entry in await sdk.models.list()] == [NAME]
        whole = await sdk.chat.completions.create(model=NAME, messages=messages, max_tokens=12, temperature=0)
        assert whole.usage is not None
        assert whole.usage.completion_tokens == 12
        stream = await sdk.chat.completions.create(
            model=NAME,
            messages=messages,
            max_tokens=12,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        text, usage = "", None
        async for chunk in stream:
            usage = chunk.usage or usage
            text += chunk.choices[0].delta.content or "" if chunk.choices else ""
        assert len(text.split()) == 12
        assert text == whole.choices[0].message.content
        assert usage is not None
        assert usage.prompt_tokens == whole.usage.prompt_tokens
        gw.assert_at_rest()


async def test_a_client_that_leaves_stops_the_engine(start_engine: StartEngine, in_front: Front) -> None:
    engine = await asyncio.to_thread(start_engine)
    async with in_front(engine) as gw:
        body = chat(stream=True, model=NAME, max_tokens=ENDLESS_TOKENS)
        async with gw.client() as client:
            response = await client.ask(body)
            await anext(response.chunks())
            assert await engine.busy_slots() == 1
            client.reset()
        async with asyncio.timeout(30):
            while await engine.busy_slots():
                await asyncio.sleep(0.01)
        assert await engine.metric("tokens_predicted_total") < ENDLESS_TOKENS / 2
        await gw.until(lambda _: gw.in_flight == 0)
        gw.assert_at_rest()


async def test_what_the_gateway_sees_of_an_engine(engines: tuple[LlamaCpp, LlamaCpp], in_front: Front) -> None:
    async with in_front(*engines) as gw:
        for seen in (shown(gw, "a"), shown(gw, "b")):
            assert (seen["state"], seen["models"], seen["last_error"]) == ("up", [NAME], None)
            assert (seen["engine"]["name"], seen["engine"]["waiting"]) == ("llamacpp", 0)
        async with gw.client() as client:
            await (await client.ask(chat("a prompt of several words", model=NAME, max_tokens=5))).read()
        assert counted(gw.gateway, "warmroute_completion_tokens_total") == 5
        before = counted(gw.gateway, "warmroute_prompt_tokens_total")
        async with gw.client() as client:
            answer = await (await client.ask(chat("another prompt", model=NAME, max_tokens=1))).json()
        after = counted(gw.gateway, "warmroute_prompt_tokens_total")
        assert after - before == answer["usage"]["prompt_tokens"], "the engine's own count"


async def test_the_engine_judges_what_it_cannot_do(engines: tuple[LlamaCpp, LlamaCpp], in_front: Front) -> None:
    """Its own words reach the client, and it is not thought ill of for them."""
    async with in_front(*engines) as gw, gw.client() as client:
        response = await client.ask(chat("x 1 " * 20_000, model=NAME))
        assert response.status == 400
        assert (await response.json())["error"]["type"] == "exceed_context_size_error"
        assert all(shown(gw, name)["state"] == "up" for name in ("a", "b"))
        gw.assert_at_rest()

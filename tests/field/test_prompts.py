"""Field cases C and D: shapes of prompts, and any text that JSON can hold."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.gateway import chat, running_gateway
from tests.support.upstream import ScriptedUpstream, Served

if TYPE_CHECKING:
    from tests.support.gateway import RawClient, RunningGateway

UNROUTABLE: list[Any] = [[], None, "absent", "", [[]], [None], 7, {"a": 1}, [1, "two"], [-1, 2], [1 << 40]]
LONG = " and so it went on for a while, word for word" * 20


async def silent(served: Served) -> None:
    """Without usage: the gateway learns no token ratio, so equal prompts have equal figures."""
    await served.respond({"choices": []})


async def ask(client: RawClient, body: bytes | dict[str, Any], path: str) -> tuple[str, int, str]:
    """Backend, predicted cached tokens and kind of decision."""
    response = await client.ask(body, path=path)
    assert response.status == 200, await response.read()
    await response.read()
    found = [response.header(f"x-warmroute-{name}") for name in ("backend", "cached-tokens", "decision")]
    backend, cached, kind = found
    assert backend is not None
    assert cached is not None
    assert kind is not None
    return backend, int(cached), kind


async def four(stack: AsyncExitStack) -> tuple[list[ScriptedUpstream], RunningGateway, RawClient]:
    upstreams = [await stack.enter_async_context(ScriptedUpstream(silent)) for _ in range(4)]
    gw = await stack.enter_async_context(running_gateway([upstream.url for upstream in upstreams]))
    return upstreams, gw, await stack.enter_async_context(gw.client())


async def second_sends_hit(client: RawClient, prompts: list[dict[str, Any]], path: str) -> None:
    """By chance alone, four backends would pass this once in 4 to the number of prompts."""
    assert len(prompts) >= 6
    firsts = [await ask(client, body, path) for body in prompts]
    assert [cached for _, cached, _ in firsts] == [0] * len(prompts), "different prompts look alike"
    assert len({backend for backend, _, _ in firsts}) > 1
    for body, (backend, _, _) in list(zip(prompts, firsts, strict=True))[::-1]:  # or taking turns would pass
        again, cached, kind = await ask(client, body, path)
        assert again == backend
        assert cached > 0
        assert kind in ("session", "prefix")


@pytest.mark.parametrize("shape", ["string", "strings", "ids", "nested ids"])
async def test_o24_prompts_of_all_shapes_are_routed_to_their_cache(shape: str) -> None:
    def prompt(number: int) -> Any:
        text, ids = f"{number}{LONG}", [(number * 1009 + i * 7) % 50_000 for i in range(400)]
        return {"string": text, "strings": [text, "another"], "ids": ids, "nested ids": [ids, [1]]}[shape]

    async with AsyncExitStack() as stack:
        upstreams, gw, client = await four(stack)
        bodies = [{"model": "m", "prompt": prompt(number)} for number in range(8)]
        await second_sends_hit(client, bodies, "/v1/completions")
        got = [served.json["prompt"] for upstream in upstreams for served in upstream.requests]
        assert sorted(got, key=str) == sorted([prompt(number) for number in range(8)] * 2, key=str)
        gw.assert_at_rest()


async def test_o24_ids_are_no_text() -> None:
    ids = list(range(1000, 1400))
    async with AsyncExitStack() as stack:
        _, _, client = await four(stack)
        await ask(client, {"model": "m", "prompt": ids}, "/v1/completions")
        for other in (str(ids), json.dumps(ids, separators=(",", ":")), [str(number) for number in ids]):
            assert (await ask(client, {"model": "m", "prompt": other}, "/v1/completions"))[1] == 0
        _, cached, _ = await ask(client, {"model": "m", "prompt": [*ids, 5, 6, 7]}, "/v1/completions")
        assert cached > 0, "ids that go on share the head"


@pytest.mark.parametrize("prompt", UNROUTABLE, ids=repr)
async def test_o24_unroutable_prompts_are_forwarded_by_load(prompt: Any) -> None:
    fields = {} if prompt == "absent" else {"prompt": prompt}
    body = json.dumps({"model": "m", **fields}).encode()
    async with AsyncExitStack() as stack:
        upstreams, gw, client = await four(stack)
        for _ in range(2):
            _, cached, kind = await ask(client, body, "/v1/completions")
            assert (cached, kind) == (0, "fallback")
        assert [served.body for upstream in upstreams for served in upstream.requests] == [body, body]
        gw.assert_at_rest()


def parts(text: str, **extra: Any) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text, **extra}]


def image(number: int) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{number:04d}" + "A" * 400}}


def call(number: int) -> list[dict[str, Any]]:
    function = {"name": "look_up", "arguments": json.dumps({"number": number, "why": LONG})}
    return [{"id": f"call_{number}", "type": "function", "function": function}]


def chat_of(kind: str, number: int) -> list[dict[str, Any]]:
    match kind:
        case "text parts":
            content: Any = parts(f"{number}") + parts(LONG)
        case "parts without text":
            # more than one block, and nothing but parts that are no text
            content = [image(number), image(number + 1000), {"type": "input_audio", "input_audio": {"data": "B" * 90}}]
        case _:
            content = f"use the tool for {number}"
    messages: list[dict[str, Any]] = [{"role": "user", "content": content}]
    if kind == "null content with tool calls":
        messages.append({"role": "assistant", "content": None, "tool_calls": call(number)})
        messages.append({"role": "tool", "tool_call_id": f"call_{number}", "content": "found " * 20})
    return messages


@pytest.mark.parametrize("kind", ["text parts", "parts without text", "null content with tool calls"])
async def test_o25_chats_in_parts_are_told_apart_and_found_again(kind: str) -> None:
    async with AsyncExitStack() as stack:
        _, gw, client = await four(stack)
        bodies = [{"model": "m", "messages": chat_of(kind, number)} for number in range(8)]
        await second_sends_hit(client, bodies, "/v1/chat/completions")
        gw.assert_at_rest()


async def test_o25_a_string_and_the_same_text_in_a_part_are_one_prompt() -> None:
    async with AsyncExitStack() as stack:
        _, _, client = await four(stack)
        for number in range(6):
            text = f"{number}{LONG}"
            first, _, _ = await ask(client, chat(text), "/v1/chat/completions")
            whole = (await ask(client, chat(text), "/v1/chat/completions"))[1]
            for content in (
                parts(text),
                parts(text, cache_control={"type": "ephemeral"}),
                parts(text[:9]) + parts(text[9:]),
            ):
                body = {"model": "m", "messages": [{"role": "user", "content": content}]}
                assert (await ask(client, body, "/v1/chat/completions"))[:2] == (first, whole)


ODD_TEXT = st.text(
    st.one_of(
        st.characters(exclude_categories=()),  # lone surrogates too
        st.sampled_from("é🙂\ud83d\ude00\0\u0301\u202e\u05d0\ufeff\u2028\uffff"),
    ),
    min_size=1,
    max_size=40,
)


@settings(max_examples=6, deadline=None)
@given(texts=st.lists(ODD_TEXT, min_size=1, max_size=12))
def test_o29_any_text_passes_and_equal_text_is_found_again(texts: list[str]) -> None:
    async def run() -> None:
        async with ScriptedUpstream(silent) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
            for number, text in enumerate(texts):
                await _check(upstream, client, f"{number:064d}" + text * 4)
            gw.assert_at_rest()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


async def _check(upstream: ScriptedUpstream, client: RawClient, text: str) -> None:
    for path, body in (
        ("/v1/chat/completions", chat(text)),
        ("/v1/completions", {"model": "m", "prompt": text}),
    ):
        escaped = json.dumps(body).encode()
        spellings = [escaped, json.dumps(body, separators=(",", ":")).encode()]
        if text.encode("utf-8", "surrogatepass") == text.encode("utf-8", "replace"):
            spellings.append(json.dumps(body, ensure_ascii=False).encode())
        await ask(client, escaped, path)
        found = [(await ask(client, spelling, path))[1] for spelling in spellings]
        assert [served.body for served in upstream.requests[-len(spellings) :]] == spellings
        assert len(set(found)) == 1, "the same text, whatever its JSON looks like"
        assert found[0] >= 16, "the first block at least"
        longer = json.loads(escaped)
        if "prompt" in longer:
            longer["prompt"] += "\u0301 goes on"
        else:
            longer["messages"][0]["content"] += "\u0301 goes on"
        assert (await ask(client, longer, path))[1] >= found[0] - 16, "what follows does not move the edges before it"

"""Prompts whose tokens are asked from a backend: `encoding: engine`, on real sockets."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from backends.token_client import NotAnswered
from gateway.engine_tokens import token_body
from prefix_index.encoding.protocol import Prompt
from tests.support.gateway import RunningGateway, chat, running_gateway
from tests.support.scrape import counted
from tests.support.token_engine import TokenEngine
from tests.support.upstream import ScriptedUpstream

if TYPE_CHECKING:
    from tests.support.upstream import Served

MODEL = {"name": "m", "encoding": "engine", "block_size": 4, "encode_timeout_ms": 10_000}
ANTHROPIC = [
    {"role": "user", "content": [{"type": "text", "text": "hi"}]},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "text"}]},
]


def body(prompt: Prompt) -> Any:
    kind, found = asyncio.run(token_body(prompt))
    return kind, json.loads(msgspec.json.encode(found))


def prompt(messages: Any, tools: Any = None, arguments: Any = None) -> Prompt:
    raw = [None if value is None else json.dumps(value).encode() for value in (messages, tools, arguments)]
    return Prompt(raw[0], None, raw[1], raw[2])


def test_a_chat_goes_as_it_is() -> None:
    messages = [{"role": "user", "content": "thinking of tool_use"}]
    tools = [{"type": "function", "function": {"name": "f", "strict": True}}]
    assert body(prompt(messages, tools)) == ("chat", {"messages": messages, "tools": tools})
    assert body(prompt(messages, [])) == ("chat", {"messages": messages})


def test_arguments_of_the_template_and_fields_of_the_body() -> None:
    arguments = {"a": 1, "add_generation_prompt": False, "continue_final_message": True}
    _, found = body(prompt([], None, arguments))
    assert found == {
        "messages": [],
        "chat_template_kwargs": {"a": 1},
        "add_generation_prompt": False,
        "continue_final_message": True,
    }


@pytest.mark.parametrize("padding", [0, 40_000])
def test_messages_of_another_api_go_as_a_chat(padding: int) -> None:
    tools = [{"name": "f", "input_schema": {"type": "object"}}]
    messages = [*ANTHROPIC, {"role": "user", "content": "x" * padding}]
    _, found = body(prompt(messages, tools))
    assert [message["role"] for message in found["messages"]] == ["user", "assistant", "tool", "user"]
    assert found["messages"][1]["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a": 1}'}
    assert found["tools"][0]["function"]["parameters"] == {"type": "object"}


def test_a_text_goes_alone_and_the_first_of_several() -> None:
    assert body(Prompt(None, b'"some text"')) == ("completions", {"prompt": "some text"})
    assert body(Prompt(None, b'["a", "b"]')) == ("completions", {"prompt": "a"})


@pytest.mark.parametrize(
    "odd", [Prompt(None, b"[1, 2]"), Prompt(None, None), Prompt(b"[]", None, None, b'{"chat_template": "x"}')]
)
def test_what_no_engine_can_tell_is_not_asked(odd: Prompt) -> None:
    with pytest.raises(NotAnswered):
        body(odd)


async def ask(gw: RunningGateway, text: str, status: int = 200) -> None:
    async with gw.client() as client:
        response = await client.ask(chat(text))
        await response.read()
        assert response.status == status


def tokens_asked(tokens: TokenEngine) -> int:
    return len(tokens.asked)


def indexed(gw: RunningGateway) -> int:
    return gw.gateway.index.stats().blocks


async def until_known(gw: RunningGateway) -> None:
    await gw.until(lambda gateway: all(one.instance.engine is not None for one in gateway.registry))


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llamacpp"])
async def test_prompts_get_the_keys_of_the_engines_tokens(engine: Any) -> None:
    tokens = TokenEngine(engine)
    async with tokens.upstream() as upstream, running_gateway([upstream.url], models=[MODEL]) as gw:
        await until_known(gw)
        await ask(gw, "x" * 100)
        assert indexed(gw) == (100 + len("[user]>")) // 4
        asked = tokens_asked(tokens)
        await ask(gw, "x" * 100)
        assert tokens_asked(tokens) == asked, "the same prompt is known"
        await ask(gw, "x" * 104)
        assert tokens_asked(tokens) > asked
        assert counted(gw.gateway, "warmroute_encode_fallback_total") == 0
        gw.assert_at_rest()


async def test_an_engine_that_is_too_slow_is_not_waited_for() -> None:
    release = asyncio.Event()
    tokens = TokenEngine()

    async def slow(served: Served) -> None:
        if served.target.endswith("/render"):
            await release.wait()
        await tokens.serve(served)

    model = {**MODEL, "encode_timeout_ms": 20}
    async with (
        ScriptedUpstream(slow, owner="vllm") as upstream,
        running_gateway([upstream.url], models=[model]) as gw,
    ):
        await until_known(gw)
        await ask(gw, "x" * 100)
        assert counted(gw.gateway, "warmroute_encode_fallback_total", reason="timeout") == 1
        assert indexed(gw) == 0
        release.set()


async def test_an_engine_that_cannot_tell_costs_the_prediction_only() -> None:
    async with (
        TokenEngine(gives=False).upstream() as upstream,
        running_gateway([upstream.url], models=[MODEL]) as gw,
    ):
        await until_known(gw)
        await ask(gw, "x" * 100)
        assert counted(gw.gateway, "warmroute_encode_fallback_total", reason="error") == 1


@pytest.mark.parametrize("answer", [b"{}", b"no json", b'{"token_ids": ["a"]}', b'{"token_ids": [-1]}', b"[]"])
async def test_an_answer_that_is_no_list_of_ids_costs_the_prediction_only(answer: bytes) -> None:
    async def odd(served: Served) -> None:
        await (served.respond(answer) if served.target.endswith("/render") else TokenEngine().serve(served))

    async with ScriptedUpstream(odd, owner="vllm") as upstream, running_gateway([upstream.url], models=[MODEL]) as gw:
        await until_known(gw)
        await ask(gw, "x" * 100)
        assert counted(gw.gateway, "warmroute_encode_fallback_total", reason="error") == 1


async def test_the_backend_with_the_least_to_do_is_asked_and_none_that_drains() -> None:
    one, two = TokenEngine(), TokenEngine()
    async with (
        one.upstream() as a,
        two.upstream() as b,
        running_gateway([a.url, b.url], models=[MODEL]) as gw,
    ):
        await until_known(gw)
        gw.gateway.control.drain("a")
        await ask(gw, "x" * 100)
        assert (tokens_asked(one), tokens_asked(two)) == (0, 1)


async def test_a_reload_changes_how_prompts_are_encoded() -> None:
    tokens = TokenEngine()
    async with tokens.upstream() as upstream, running_gateway([upstream.url], models=[MODEL]) as gw:
        await until_known(gw)
        await ask(gw, "x" * 100)
        asked = tokens_asked(tokens)
        assert (await gw.reload(limits={"max_attempts": 5})).applied
        await ask(gw, "x" * 100)
        assert tokens_asked(tokens) == asked, "what is known stays"
        assert (await gw.reload(models=[{"name": "m"}])).applied
        await ask(gw, "y" * 100)
        assert tokens_asked(tokens) == asked


async def test_the_credential_of_a_backend_goes_with_the_question() -> None:
    seen: list[str | None] = []

    async def noted(served: Served) -> None:
        if served.target.endswith("/render"):
            seen.append(served.header("authorization"))
        await TokenEngine().serve(served)

    async with ScriptedUpstream(noted, owner="vllm") as upstream:
        entry = {"name": "a", "url": upstream.url, "api_key": "secret-key"}
        async with running_gateway([entry], models=[MODEL]) as gw:
            await until_known(gw)
            await ask(gw, "x" * 100)
    assert seen == ["Bearer secret-key"]

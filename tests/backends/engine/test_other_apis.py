"""Messages, Responses and embeddings of the simulated engine, read by the vendors' own clients."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import anthropic
import httpx2
import openai
import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from backends.engine.command import SimulatedEngine
    from tests.backends.engine.conftest import StartEngine

TEXT = "a sentence that goes on and on. " * 20
TOOLS: list[dict[str, Any]] = [{"name": "read", "description": "reads", "input_schema": {"type": "object"}}]


@pytest.fixture
async def engine(start_engine: StartEngine) -> SimulatedEngine:
    return await start_engine(output_tokens=5)


@pytest.fixture
async def claude(engine: SimulatedEngine) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=engine.url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
async def gpt(engine: SimulatedEngine) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{engine.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def asked(**fields: Any) -> dict[str, Any]:
    return {"model": "demo", "max_tokens": 8, "messages": [{"role": "user", "content": TEXT}], **fields}


async def test_a_message_and_its_stream_are_the_same(claude: anthropic.AsyncAnthropic) -> None:
    whole = await claude.messages.create(**asked())
    assert (whole.role, whole.stop_reason, whole.usage.output_tokens) == ("assistant", "max_tokens", 8)
    assert whole.usage.cache_read_input_tokens == 0
    async with claude.messages.stream(**asked()) as stream:
        kinds = [event.type async for event in stream]
        streamed = await stream.get_final_message()
    assert streamed.content[0].text == whole.content[0].text  # type: ignore[union-attr]
    assert streamed.stop_reason == "max_tokens"
    assert streamed.usage.output_tokens == 8
    assert (streamed.usage.cache_read_input_tokens or 0) > 0
    tokens = whole.usage.input_tokens
    assert streamed.usage.input_tokens + (streamed.usage.cache_read_input_tokens or 0) == tokens
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")
    assert kinds.count("content_block_delta") == 8


async def test_a_message_counts_as_its_chat_does(engine: SimulatedEngine, claude: anthropic.AsyncAnthropic) -> None:
    system = [
        {"type": "text", "text": "x-anthropic-billing-header: cch=abcde;"},
        {"type": "text", "text": "be "},
        {"type": "text", "text": "kind"},
    ]
    message = await claude.messages.create(**asked(system=system, tools=TOOLS))
    question: dict[str, Any] = {"messages": asked()["messages"], "system": "be kind", "tools": TOOLS}
    counted = await claude.messages.count_tokens(model="demo", **question)
    assert message.usage.input_tokens == counted.input_tokens
    nested = [
        {"type": "function", "function": {"name": "read", "description": "reads", "parameters": {"type": "object"}}}
    ]
    chat = [{"role": "system", "content": "be kind"}, {"role": "user", "content": TEXT}]
    async with httpx2.AsyncClient() as http:
        body = {"model": "demo", "messages": chat, "tools": nested, "max_tokens": 1}
        usage = (await http.post(f"{engine.url}/v1/chat/completions", json=body)).json()["usage"]
    assert usage["prompt_tokens"] == counted.input_tokens
    assert usage["prompt_tokens_details"]["cached_tokens"] > 0, "one cache for both"


async def test_calls_and_results_of_tools_are_part_of_the_prompt(claude: anthropic.AsyncAnthropic) -> None:
    messages: list[Any] = [
        {"role": "user", "content": TEXT},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "read", "input": {"path": "a"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "r" * 400}]},
    ]
    counts = [(await claude.messages.count_tokens(model="demo", messages=messages[:n])).input_tokens for n in (1, 2, 3)]
    assert counts[1] > counts[0] + 10
    assert counts[2] >= counts[1] + 100


async def test_errors_of_messages(claude: anthropic.AsyncAnthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as missing:
        await claude.messages.create(**asked(model="other"))
    assert missing.value.body == {
        "type": "error",
        "error": {"type": "not_found_error", "message": "The model `other` does not exist."},
    }
    with pytest.raises(anthropic.BadRequestError, match="messages"):
        await claude.messages.create(**asked(messages=[]))


async def test_a_response_and_its_stream_are_the_same(gpt: openai.AsyncOpenAI) -> None:
    whole = await gpt.responses.create(model="demo", input=TEXT, instructions="be kind")
    assert (whole.status, whole.usage and whole.usage.output_tokens) == ("completed", 5)
    async with gpt.responses.stream(model="demo", input=TEXT, instructions="be kind") as stream:
        events = [event async for event in stream]
        final = await stream.get_final_response()
    assert final.output_text == whole.output_text
    assert final.usage is not None
    assert whole.usage is not None
    assert final.usage.input_tokens == whole.usage.input_tokens
    assert final.usage.input_tokens_details.cached_tokens > 0
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert (kinds[0], kinds[-1], kinds.count("response.output_text.delta")) == (
        "response.created",
        "response.completed",
        5,
    )


async def test_a_response_that_is_cut_is_incomplete(gpt: openai.AsyncOpenAI) -> None:
    items: list[Any] = [
        {"role": "user", "content": [{"type": "input_text", "text": TEXT}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "r" * 400},
    ]
    cut = await gpt.responses.create(model="demo", input=items, max_output_tokens=2)
    assert cut.status == "incomplete"
    assert cut.incomplete_details is not None
    assert cut.incomplete_details.reason == "max_output_tokens"
    first = await gpt.responses.create(model="demo", input=items[:1], max_output_tokens=2)
    assert cut.usage is not None
    assert first.usage is not None
    assert cut.usage.input_tokens > first.usage.input_tokens + 100
    with pytest.raises(openai.NotFoundError, match="keeps no responses"):
        await gpt.responses.create(model="demo", input="x", previous_response_id=cut.id)
    with pytest.raises(openai.BadRequestError, match="input"):
        await gpt.responses.create(model="demo", input=[])


async def test_embeddings(engine: SimulatedEngine, gpt: openai.AsyncOpenAI) -> None:
    one = await gpt.embeddings.create(model="demo", input=["abcd", "abcdefgh", "abcd"], dimensions=16)
    vectors = [each.embedding for each in one.data]
    assert [len(vector) for vector in vectors] == [16] * 3
    assert vectors[0] == vectors[2] != vectors[1]
    assert sum(value * value for value in vectors[0]) == pytest.approx(1.0, abs=1e-5)
    assert one.usage.prompt_tokens == 4
    as_numbers = await gpt.embeddings.create(model="demo", input=[1, 2, 3], encoding_format="float")
    assert len(as_numbers.data[0].embedding) == 64
    bad: list[dict[str, Any]] = [{}, {"input": []}, {"input": "x", "dimensions": 0}, {"input": "x", "dimensions": "8"}]
    async with httpx2.AsyncClient() as http:
        for wrong in bad:
            answer = await http.post(f"{engine.url}/v1/embeddings", content=json.dumps(wrong))
            assert answer.status_code == 400, wrong

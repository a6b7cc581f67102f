"""The OpenAI surface over real sockets."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import openai
import pytest

if TYPE_CHECKING:
    import httpx2

    from backends.engine.command import SimulatedEngine
    from tests.backends.engine.conftest import StartEngine

TEXT = "a sentence that goes on and on. " * 20
CHAT = {"model": "demo", "messages": [{"role": "user", "content": TEXT}], "max_tokens": 8}


async def chat(http: httpx2.AsyncClient, engine: SimulatedEngine, **fields: Any) -> dict[str, Any]:
    answer = await http.post(f"{engine.url}/v1/chat/completions", json={**CHAT, **fields})
    assert answer.status_code == 200, answer.text
    value: dict[str, Any] = answer.json()
    return value


def cached(answer: dict[str, Any]) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


async def test_a_chat_answer(start_engine: StartEngine, http: httpx2.AsyncClient) -> None:
    engine = await start_engine()
    answer = await chat(http, engine)
    tokens = -(-len(f"user\0{TEXT}\0") // 4)
    assert answer["object"] == "chat.completion"
    assert answer["usage"] == {
        "prompt_tokens": tokens,
        "completion_tokens": 8,
        "total_tokens": tokens + 8,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "length"
    assert len(choice["message"]["content"].encode()) == 32
    assert (await chat(http, engine))["choices"] == answer["choices"]


async def test_the_second_time_is_cached_and_the_next_turn_goes_past_the_prompt(
    start_engine: StartEngine, http: httpx2.AsyncClient
) -> None:
    engine = await start_engine()
    first = await chat(http, engine, max_tokens=100)
    prompt = first["usage"]["prompt_tokens"]
    assert cached(first) == 0
    assert cached(await chat(http, engine)) == (prompt - 1) // 16 * 16
    reply = first["choices"][0]["message"]["content"]
    messages = [*CHAT["messages"], {"role": "assistant", "content": reply}, {"role": "user", "content": "more"}]  # type: ignore[misc]
    assert cached(await chat(http, engine, messages=messages)) == (prompt + 99) // 16 * 16


async def test_salts_and_adapters_share_no_cache(start_engine: StartEngine, http: httpx2.AsyncClient) -> None:
    engine = await start_engine(models=("demo", "alias"), adapters=("lora",))
    await chat(http, engine)
    assert cached(await chat(http, engine, model="alias")) > 0
    assert cached(await chat(http, engine, model="lora")) == 0
    assert cached(await chat(http, engine, cache_salt="tenant")) == 0
    assert cached(await chat(http, engine, cache_salt="tenant")) > 0


async def test_without_max_tokens_the_reply_has_the_default_length(
    start_engine: StartEngine, http: httpx2.AsyncClient
) -> None:
    engine = await start_engine(output_tokens=5)
    answer = await http.post(f"{engine.url}/v1/completions", json={"prompt": "hello"})
    assert answer.json()["usage"]["completion_tokens"] == 5
    assert answer.json()["choices"][0]["finish_reason"] == "stop"


async def test_streams_have_vllms_shape(start_engine: StartEngine) -> None:
    engine = await start_engine()
    async with openai.AsyncOpenAI(base_url=f"{engine.url}/v1", api_key="none") as client:
        whole = await client.chat.completions.create(**CHAT)  # type: ignore[call-overload]
        stream = await client.chat.completions.create(**CHAT, stream=True, stream_options={"include_usage": True})  # type: ignore[call-overload]
        chunks = [chunk async for chunk in stream]
    deltas = [chunk.choices[0].delta for chunk in chunks[:-1]]
    assert len({chunk.id for chunk in chunks}) == 1
    assert (deltas[0].role, deltas[0].content) == ("assistant", "")
    assert "".join(delta.content for delta in deltas) == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * 8 + ["length"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 8
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens > 0


async def test_the_bytes_of_a_stream(start_engine: StartEngine, http: httpx2.AsyncClient) -> None:
    engine = await start_engine()
    body = {**CHAT, "stream": True, "max_tokens": 1}
    answer = await http.post(f"{engine.url}/v1/chat/completions", json=body, headers={"x-request-id": "my-id"})
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["transfer-encoding"] == "chunked"
    assert answer.headers["x-request-id"] == "my-id"
    events = answer.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    role, last = (json.loads(event.removeprefix("data: ")) for event in events[:-2])
    assert role["id"] == "chatcmpl-my-id"
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert last["choices"][0]["finish_reason"] == "length"
    assert len(last["choices"][0]["delta"]["content"]) == 4


@pytest.mark.parametrize(
    ("prompt", "tokens", "choices"),
    [
        ("abcdefgh", 2, 1),
        (["abcd", "abcdefghi"], 4, 2),
        ([1, 2, 3], 3, 1),
        ([[1, 2, 3], [4]], 4, 2),
        (["text", [5, 6]], 3, 2),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_prompts_of_all_kinds(
    start_engine: StartEngine, prompt: object, tokens: int, choices: int, stream: bool
) -> None:
    engine = await start_engine()
    async with openai.AsyncOpenAI(base_url=f"{engine.url}/v1", api_key="none") as client:
        answer = await client.completions.create(  # type: ignore[call-overload]
            model="demo",
            prompt=prompt,
            max_tokens=3,
            stream=stream,
            **({"stream_options": {"include_usage": True}} if stream else {}),
        )
        parts = [part async for part in answer] if stream else [answer]
    texts = [""] * choices
    for part in parts:
        for choice in part.choices:
            texts[choice.index] += choice.text
    assert [len(text) for text in texts] == [12] * choices
    assert (parts[-1].usage.prompt_tokens, parts[-1].usage.completion_tokens) == (tokens, 3 * choices)


async def test_token_ids_are_the_text_they_encode(start_engine: StartEngine, http: httpx2.AsyncClient) -> None:
    engine = await start_engine()
    ids = (await http.post(f"{engine.url}/tokenize", json={"prompt": TEXT})).json()
    assert ids["count"] == len(ids["tokens"]) == len(TEXT) // 4
    assert ids["max_model_len"] == 131_072
    body = {"model": "demo", "prompt": TEXT, "max_tokens": 1}
    await http.post(f"{engine.url}/v1/completions", json=body)
    again = await http.post(f"{engine.url}/v1/completions", json={**body, "prompt": ids["tokens"]})
    assert cached(again.json()) > 0


async def test_tokenize_of_messages_counts_as_chat_does(start_engine: StartEngine, http: httpx2.AsyncClient) -> None:
    engine = await start_engine()
    fields = {"messages": CHAT["messages"], "tools": [{"type": "function", "function": {"name": "f"}}]}
    counted = (await http.post(f"{engine.url}/tokenize", json=fields)).json()["count"]
    assert counted == (await chat(http, engine, **fields))["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    "content",
    [
        "plain",
        None,
        "",
        "lone \ud800 surrogate",
        "nul \0 inside",
        [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}],
        [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}],
        ["bare strings"],
    ],
)
async def test_odd_contents_pass(start_engine: StartEngine, http: httpx2.AsyncClient, content: object) -> None:
    engine = await start_engine()
    body = {**CHAT, "messages": [{"role": "user", "content": content}, {"role": "assistant"}], "unknown": 1}
    answer = await http.post(
        f"{engine.url}/v1/chat/completions", content=json.dumps(body), headers={"content-type": "application/json"}
    )
    assert answer.status_code == 200, answer.text


async def test_text_parts_are_the_same_prompt_as_a_string(start_engine: StartEngine, http: httpx2.AsyncClient) -> None:
    engine = await start_engine()
    await chat(http, engine)
    parts = [{"type": "text", "text": TEXT[:100]}, {"type": "text", "text": TEXT[100:]}]
    assert cached(await chat(http, engine, messages=[{"role": "user", "content": parts}])) > 0


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/v1/chat/completions", "{", 400, None),
        ("/v1/chat/completions", "[1]", 400, None),
        ("/v1/chat/completions", '"\\ud8"', 400, None),
        ("/v1/chat/completions", "[" * 100_000, 400, None),
        ("/v1/chat/completions", {"model": "demo"}, 400, "messages"),
        ("/v1/chat/completions", {"model": "demo", "messages": []}, 400, "messages"),
        ("/v1/chat/completions", {"model": "demo", "messages": ["x"]}, 400, "messages"),
        ("/v1/chat/completions", {"model": "demo", "messages": [{"content": 7}]}, 400, "messages"),
        ("/v1/chat/completions", {**CHAT, "model": "other"}, 404, "model"),
        ("/v1/chat/completions", {**CHAT, "model": "\ud800"}, 404, "model"),
        ("/v1/chat/completions", {**CHAT, "model": 3}, 400, "model"),
        ("/v1/chat/completions", {**CHAT, "max_tokens": 0}, 400, "max_tokens"),
        ("/v1/chat/completions", {**CHAT, "max_tokens": "many"}, 400, "max_tokens"),
        ("/v1/chat/completions", {**CHAT, "max_tokens": 131_072}, 400, "messages"),
        ("/v1/chat/completions", {**CHAT, "priority": 1.5}, 400, "priority"),
        ("/v1/chat/completions", {**CHAT, "cache_salt": ""}, 400, "cache_salt"),
        ("/v1/completions", {"prompt": ""}, 400, "prompt"),
        ("/v1/completions", {"prompt": []}, 400, "prompt"),
        ("/v1/completions", {"prompt": [1, "x"]}, 400, "prompt"),
        ("/v1/completions", {"prompt": [-1]}, 400, "prompt"),
        ("/v1/completions", {"prompt": {"x": 1}}, 400, "prompt"),
        ("/v1/completions", {"prompt": [1] * 131_072}, 400, "prompt"),
        ("/v1/nothing", {}, 404, None),
        ("/health", {}, 405, None),
    ],
)
async def test_bad_requests_are_told_apart(
    start_engine: StartEngine, http: httpx2.AsyncClient, path: str, body: Any, status: int, param: str | None
) -> None:
    engine = await start_engine()
    answer = await http.post(engine.url + path, content=body if isinstance(body, str) else json.dumps(body))
    assert answer.status_code == status
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == (status, param)
    assert (await http.get(f"{engine.url}/health")).status_code == 200
    assert engine.connections == 1  # the connection goes on


async def test_the_priority_header_must_be_a_number(start_engine: StartEngine, http: httpx2.AsyncClient) -> None:
    engine = await start_engine()
    for value, status in (("-3", 200), ("--3", 400), ("high", 400)):
        answer = await http.post(f"{engine.url}/v1/chat/completions", json=CHAT, headers={"x-vllm-priority": value})
        assert answer.status_code == status


async def test_nesting_of_any_depth_is_judged(start_engine: StartEngine, http: httpx2.AsyncClient) -> None:
    engine = await start_engine()
    for depth in (10, 300, 900, 990, 2000, 50_000):
        part = '{"x":' * depth + "1" + "}" * depth
        body = '{"max_tokens":1,"messages":[{"role":"user","content":[' + part + "]}]}"
        answer = await http.post(f"{engine.url}/v1/chat/completions", content=body)
        assert answer.status_code in ((200,) if depth < 500 else (200, 400))


async def test_max_completion_tokens_wins_in_chats(start_engine: StartEngine, http: httpx2.AsyncClient) -> None:
    engine = await start_engine()
    assert (await chat(http, engine, max_completion_tokens=3))["usage"]["completion_tokens"] == 3


async def test_models_version_and_health(start_engine: StartEngine, http: httpx2.AsyncClient) -> None:
    engine = await start_engine(models=("m", "alias"), adapters=("lora",), max_model_len=4096)
    models = (await http.get(f"{engine.url}/v1/models")).json()["data"]
    assert [(model["id"], model["parent"], model["max_model_len"]) for model in models] == [
        ("m", None, 4096),
        ("alias", None, 4096),
        ("lora", "m", 4096),
    ]
    assert "version" in (await http.get(f"{engine.url}/version")).json()
    health = await http.get(f"{engine.url}/health?verbose=1")
    assert (health.status_code, health.content) == (200, b"")


async def test_a_small_cache_limits_the_model_length(start_engine: StartEngine, http: httpx2.AsyncClient) -> None:
    engine = await start_engine(kv_tokens=170)
    assert (await http.get(f"{engine.url}/v1/models")).json()["data"][0]["max_model_len"] == 160
    answer = await http.post(f"{engine.url}/v1/chat/completions", json={**CHAT, "max_tokens": 1})
    assert answer.status_code == 400
    assert "160 tokens" in answer.json()["error"]["message"]


async def test_metrics_are_vllms(start_engine: StartEngine, http: httpx2.AsyncClient) -> None:
    engine = await start_engine(kv_tokens=16_000)
    prompt = (await chat(http, engine))["usage"]["prompt_tokens"]
    hit = cached(await chat(http, engine))
    text = (await http.get(f"{engine.url}/metrics")).text
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    labels = '{engine="0",model_name="demo"}'
    for name, value in {
        "num_requests_running": 0,
        "num_requests_waiting": 0,
        "kv_cache_usage_perc": 0,
        "prefix_cache_queries_total": 2 * prompt,
        "prefix_cache_hits_total": hit,
        "prompt_tokens_total": 2 * prompt,
        "generation_tokens_total": 16,
        "num_preemptions_total": 0,
        "time_to_first_token_seconds_count": 2,
    }.items():
        assert float(values[f"vllm:{name}{labels}"]) == value, name
    assert 'block_size="16"' in text
    assert 'num_gpu_blocks="1000"' in text
    assert 'enable_prefix_caching="True"' in text
    assert float(values["process_start_time_seconds"]) > 1e9


async def test_reset_prefix_cache(start_engine: StartEngine, http: httpx2.AsyncClient) -> None:
    engine = await start_engine()
    await chat(http, engine)
    assert (await http.post(f"{engine.url}/reset_prefix_cache")).json() == {"success": True}
    assert cached(await chat(http, engine)) == 0


async def test_options_that_cannot_be(start_engine: StartEngine) -> None:
    for options in (
        {"setup": "tpu"},
        {"speed": 0},
        {"models": ()},
        {"block_size": 0},
        {"kv_tokens": 8},
        {"kv_events_replay_port": 0},
    ):
        with pytest.raises(ValueError):
            await start_engine(**options)

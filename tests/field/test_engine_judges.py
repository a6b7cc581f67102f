"""Field case C: the engine judges what is valid; the gateway reads what routing needs and forwards the bytes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.gateway import chat, running_gateway
from tests.support.scrape import counted
from tests.support.upstream import ScriptedUpstream, Served, token

if TYPE_CHECKING:
    from collections.abc import Callable

CALL = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
ODD: dict[str, dict[str, Any]] = {
    "tool without parameters": {"tools": [{"type": "function", "function": {"name": "now"}}]},
    "tool of an unknown type": {"tools": [{"type": "web_search_preview", "x": [1]}], "tool_choice": {"type": "x"}},
    "tool that is no object": {"tools": ["now", None]},
    "null content with tool calls": {
        "messages": [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "12:00"}]},
        ]
    },
    "tool calls without content": {"messages": [{"role": "assistant", "tool_calls": [CALL]}]},
    "unknown role": {"messages": [{"role": "critic", "content": "x"}, {"role": "developer", "content": "y"}]},
    "no role": {"messages": [{"content": "x"}]},
    "unknown part": {"messages": [{"role": "user", "content": [{"type": "smell", "smell": {"of": "rain"}}]}]},
    "extra fields": {"reasoning_effort": "max", "vllm_xargs": {"a": None}, "n": "two", "logit_bias": {"50256": -100}},
    "fields of another type": {"max_tokens": "12", "temperature": None, "stop": {"a": 1}, "stream_options": "x"},
    "empty messages": {"messages": []},
    "response format": {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": True}}},
}
SPELLINGS: dict[str, Callable[[dict[str, Any]], str]] = {
    "pretty": lambda body: json.dumps(body, indent=3, ensure_ascii=False),
    "tight": lambda body: json.dumps(body, separators=(",", ":")),
    "reversed": lambda body: json.dumps(dict(reversed(body.items()))),
    "escaped names": lambda body: json.dumps(body).replace('"model"', '"\\u006dodel"').replace("/", "\\/"),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_o14_odd_but_legal_bodies_reach_the_engine_byte_for_byte(path: str, stream: bool) -> None:
    async def script(served: Served) -> None:
        await (served.stream(token()) if stream else served.respond({"choices": []}))

    telemetry = {"ask_usage": False}  # else a stream's body gets one member more
    async with (
        ScriptedUpstream(script) as upstream,
        running_gateway([upstream.url], telemetry=telemetry) as gw,
        gw.client() as client,
    ):
        for fields in ODD.values():
            for spell in SPELLINGS.values():
                body = spell({**chat("é", stream=stream), "prompt": "é", **fields}).encode()
                response = await client.ask(body, path=path)
                assert response.status == 200, await response.read()
                await response.read()
                assert upstream.requests[-1].body == body
        assert counted(gw.gateway, "warmroute_encode_fallback_total") == 0, "and nothing failed on the way"
        gw.assert_at_rest()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_o14_the_engines_verdict_is_the_clients(stream: bool) -> None:
    """Asked once: another engine would say the same."""
    verdict = {"object": "error", "message": "tools.0.function.parameters: Field required", "code": 422}

    async def script(served: Served) -> None:
        await served.respond(verdict, 422)

    async with (
        ScriptedUpstream(script) as a,
        ScriptedUpstream(script) as b,
        running_gateway([a.url, b.url]) as gw,
        gw.client() as client,
    ):
        for fields in ODD.values():
            response = await client.ask({**chat(stream=stream), **fields})
            assert response.status == 422
            assert await response.json() == verdict
        assert len(a.requests) + len(b.requests) == len(ODD)
        gw.assert_at_rest()

from __future__ import annotations

import json

import pytest

from backends.engines import ENGINES, Ask, EngineName, EventPublisher, Page
from backends.load import EngineLoad

SGLANG = ENGINES[EngineName.SGLANG]
METRICS = b"""sglang:num_running_reqs{model_name="tiny"} 1.0
sglang:num_queue_reqs{model_name="tiny"} 4.0
sglang:token_usage{model_name="tiny"} 0.5
sglang:max_total_num_tokens{model_name="tiny"} 20000.0
sglang:cache_config_info{num_pages="1250",page_size="16"} 1.0
"""
LOADS = {
    "timestamp": "2026-11-29T10:00:00Z",
    "version": "0.5.23",
    "loads": [
        {"dp_rank": 0, "num_running_reqs": 2, "num_waiting_reqs": 1, "max_total_num_tokens": 1000, "token_usage": 0.5},
        {"dp_rank": 1, "num_running_reqs": 1, "num_waiting_reqs": 0, "max_total_num_tokens": 1000, "token_usage": 1},
    ],
}


def test_metrics() -> None:
    assert SGLANG.read_load("/metrics", Page(200, {}, METRICS)) == EngineLoad(1, 4, 0.5, 20000, 16)


def test_the_size_from_the_pages_where_the_total_is_missing() -> None:
    page = Page(200, {}, b'sglang:page_size 16\nsglang:cache_config_info{num_pages="10",page_size="16"} 1.0\n')
    assert SGLANG.read_load("/metrics", page) == EngineLoad(capacity_tokens=160, block_size=16)


@pytest.mark.parametrize("body", [b"", b"<html>", b"vllm:num_requests_running 1\n"])
def test_a_page_without_its_names_is_none_of_it(body: bytes) -> None:
    with pytest.raises(ValueError):
        SGLANG.read_load("/metrics", Page(200, {}, body))


def test_loads_of_all_ranks() -> None:
    page = Page(200, {}, json.dumps(LOADS).encode())
    assert SGLANG.read_load("/v1/loads", page) == EngineLoad(3, 1, 0.75, 2000)


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"loads": []}'])
def test_no_loads(body: bytes) -> None:
    with pytest.raises(ValueError):
        SGLANG.read_load("/v1/loads", Page(200, {}, body))


def test_tokens() -> None:
    chat = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "tools": [{"type": "function"}], "n": 1}
    (ask,) = SGLANG.token_asks("chat", chat)
    assert ask == Ask("/v1/tokenize", {name: chat[name] for name in ("model", "messages", "tools")})
    assert SGLANG.token_asks("completions", {"model": "m", "prompt": "hi"}) == (
        Ask("/v1/tokenize", {"model": "m", "prompt": "hi"}),
    )
    assert SGLANG.token_asks("completions", {"prompt": [1, 2]}) == ()
    assert SGLANG.read_tokens({"tokens": [1, 2], "count": 2, "max_model_len": 9}) == [1, 2]
    with pytest.raises(ValueError):
        SGLANG.read_tokens({"tokens": [[1], [2]], "count": [1, 1]})


def test_event_publishers_follow_the_first_rank() -> None:
    told = {"publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": 5557, "topic": "kv", "block_size": 64}
    assert SGLANG.event_publishers({"kv_events": {**told, "dp_size": 2, "replay_endpoint_port_base": 6557}}) == (
        EventPublisher(0, "tcp://*:5557", "tcp://*:6557", "kv", 64),
        EventPublisher(1, "tcp://*:5558", "tcp://*:6558", "kv", 64),
    )
    (one,) = SGLANG.event_publishers({"kv_events": told})
    assert one.replay_endpoint is None


@pytest.mark.parametrize("answer", [{}, {"kv_events": None}, {"kv_events": {"publisher": "null"}}])
def test_no_events_are_published(answer: object) -> None:
    assert SGLANG.event_publishers(answer) == ()


@pytest.mark.parametrize("answer", [None, [], {"kv_events": {"publisher": "zmq", "endpoint_host": "*"}}])
def test_publishers_that_cannot_be_read(answer: object) -> None:
    with pytest.raises(ValueError):
        SGLANG.event_publishers(answer)


def test_cached_tokens() -> None:
    assert SGLANG.cached_tokens({"usage": {"prompt_tokens_details": {"cached_tokens": 16}}}) == 16
    assert SGLANG.cached_tokens({"usage": {"prompt_tokens": 20, "prompt_tokens_details": None}}) is None

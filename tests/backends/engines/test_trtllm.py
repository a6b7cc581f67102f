from __future__ import annotations

import json
from typing import Any

import pytest

from backends.engines import ENGINES, Ask, EngineName, Page
from backends.load import EngineLoad

TRTLLM = ENGINES[EngineName.TRTLLM]
ITERATION: dict[str, Any] = {
    "iter": 154,
    "iterLatencyMS": 7.0,
    "kvCacheStats": {"freeNumBlocks": 75, "maxNumBlocks": 100, "tokensPerBlock": 32, "usedNumBlocks": 25},
    "numActiveRequests": 5,
    "numQueuedRequests": 3,
}
METRICS = b"""# TYPE trtllm_num_requests_running gauge
trtllm_num_requests_running{model_name="undefined"} 5.0
trtllm_num_requests_waiting{model_name="undefined"} 3.0
trtllm_kv_cache_utilization{model_name="undefined"} 0.25
trtllm_kv_cache_tokens_per_block{model_name="undefined"} 32.0
trtllm_kv_cache_max_blocks{model_name="undefined"} 100.0
"""


def load(path: str, body: bytes) -> EngineLoad | None:
    return TRTLLM.read_load(path, Page(200, {}, body))


def test_prometheus_and_iterations_say_the_same() -> None:
    expected = EngineLoad(5, 3, 0.25, 3200, 32)
    assert load("/prometheus/metrics", METRICS) == expected
    before = {**ITERATION, "numQueuedRequests": 9}
    assert load("/metrics", json.dumps([before, ITERATION]).encode()) == expected


def test_prometheus_where_the_iterations_stand() -> None:
    found = load("/metrics", METRICS)
    assert found is not None
    assert found.waiting == 3


def test_no_iteration_since_the_last_time_is_no_news() -> None:
    assert load("/metrics", b"[]") is None


def test_iterations_without_a_cache() -> None:
    assert load("/metrics", b'[{"numActiveRequests": 1, "kvCacheStats": null}]') == EngineLoad(running=1)


@pytest.mark.parametrize(
    ("path", "body"),
    [("/prometheus/metrics", b"# nothing yet\n"), ("/metrics", b"[1]"), ("/metrics", b"[{"), ("/metrics", b"{}")],
)
def test_what_is_none_of_its_pages(path: str, body: bytes) -> None:
    with pytest.raises(ValueError):
        load(path, body)


def test_only_chats_have_a_salt() -> None:
    assert TRTLLM.takes_cache_salt(b"/v1/chat/completions")
    assert TRTLLM.takes_cache_salt(b"/v1/chat/completions?x=1")
    assert not TRTLLM.takes_cache_salt(b"/v1/completions")


def test_tokens_of_texts_only() -> None:
    assert TRTLLM.token_asks("chat", {"messages": []}) == ()
    body = {"model": "m", "prompt": "hi", "max_tokens": 1}
    assert TRTLLM.token_asks("completions", body) == (Ask("/_internal/tokenize", {"model": "m", "prompt": "hi"}),)
    assert TRTLLM.read_tokens({"count": 2, "tokens": [1, 2]}) == [1, 2]
    with pytest.raises(ValueError):
        TRTLLM.read_tokens({"count": 2, "tokens": None})


def test_events_are_drained() -> None:
    assert TRTLLM.events_drain == "/kv_cache_events"
    assert [name for name, engine in ENGINES.items() if engine.events_drain] == [EngineName.TRTLLM]

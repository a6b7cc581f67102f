from __future__ import annotations

import pytest

from backends.engines import ENGINES, Ask, EngineName, EventPublisher, Page
from backends.load import EngineLoad

VLLM = ENGINES[EngineName.VLLM]
METRICS = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 3.0
vllm:num_requests_running{engine="1",model_name="tiny"} 2.0
vllm:num_requests_waiting{engine="0",model_name="tiny"} 7.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"} 7.0
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="tiny"} 0.75
vllm:cache_config_info{block_size="32",enable_prefix_caching="True",engine="0",num_gpu_blocks="2048"} 1.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.001",model_name="tiny"} 0.0
process_start_time_seconds 1.7e+09
"""


def load(body: bytes) -> EngineLoad | None:
    return VLLM.read_load("/metrics", Page(200, {}, body))


def test_metrics_are_read_over_all_ranks() -> None:
    assert load(METRICS) == EngineLoad(5, 7, 0.5, 65536, 32, 1.7e9, True)


def test_an_older_name_of_the_usage_is_read() -> None:
    assert load(b"vllm:gpu_cache_usage_perc 0.125\n") == EngineLoad(kv_usage=0.125)


def test_a_page_without_known_names_says_nothing() -> None:
    assert load(b"<html>Not here</html>") == EngineLoad()


def test_sizes_that_are_not_known_yet_and_a_cache_that_is_off() -> None:
    found = load(b'vllm:cache_config_info{block_size="16",enable_prefix_caching="False",num_gpu_blocks="None"} 1.0\n')
    assert found == EngineLoad(block_size=16, prefix_cache=False)


def test_a_broken_line_is_a_value_error() -> None:
    with pytest.raises(ValueError):
        load(b"vllm:num_requests_running{ 3\n")


def test_cached_tokens() -> None:
    answer = {"usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 8, "created_cache_tokens": 1}}}
    assert VLLM.cached_tokens(answer) == 8
    assert VLLM.cached_tokens({"usage": {"prompt_tokens": 9, "prompt_tokens_details": None}}) is None
    assert VLLM.cached_tokens({"choices": []}) is None


def test_lower_priority_values_go_first() -> None:
    signs = {name: engine.priority.sign for name, engine in ENGINES.items() if engine.priority is not None}
    assert signs == {EngineName.VLLM: -1, EngineName.SGLANG: 1, EngineName.TRTLLM: 1}


def test_chats_are_rendered_or_else_tokenised() -> None:
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [],
        "stream": True,
        "chat_template_kwargs": {"thinking": False},
    }
    render, tokenize = VLLM.token_asks("chat", body)
    assert render == Ask("/v1/chat/completions/render", {**body, "mm_payload": "none"})
    assert tokenize.path == "/tokenize"
    assert tokenize.body == {name: body[name] for name in ("model", "messages", "tools", "chat_template_kwargs")}


def test_completions_are_rendered_or_else_tokenised() -> None:
    body = {"model": "m", "prompt": "hi", "max_tokens": 3}
    assert [ask.path for ask in VLLM.token_asks("completions", body)] == ["/v1/completions/render", "/tokenize"]
    assert VLLM.token_asks("completions", body)[1].body == {"model": "m", "prompt": "hi"}


@pytest.mark.parametrize(
    "answer",
    [{"token_ids": [1, 2], "features": None}, [{"token_ids": [1, 2]}], {"count": 2, "tokens": [1, 2]}],
)
def test_token_ids(answer: object) -> None:
    assert VLLM.read_tokens(answer) == [1, 2]


@pytest.mark.parametrize(
    "answer",
    [None, [], {}, {"tokens": None}, {"tokens": ["1"]}, {"tokens": [True]}, {"tokens": [-1]}, {"tokens": [1 << 32]}],
)
def test_no_token_ids(answer: object) -> None:
    with pytest.raises(ValueError):
        VLLM.read_tokens(answer)


def test_event_publishers_of_each_rank() -> None:
    answer = [
        {"data_parallel_rank": 0, "endpoint": "tcp://10.0.0.1:5557", "replay_endpoint": None, "topic": ""},
        {"data_parallel_rank": 1, "endpoint": "tcp://*:5558", "replay_endpoint": "tcp://*:6558", "topic": "kv"},
    ]
    assert VLLM.event_publishers(answer) == (
        EventPublisher(0, "tcp://10.0.0.1:5557", None, "", None),
        EventPublisher(1, "tcp://*:5558", "tcp://*:6558", "kv", None),
    )
    assert VLLM.event_publishers([]) == ()


@pytest.mark.parametrize("answer", [None, {"detail": "Not Found"}, [1], [{"endpoint": None}]])
def test_no_event_publishers(answer: object) -> None:
    with pytest.raises(ValueError):
        VLLM.event_publishers(answer)

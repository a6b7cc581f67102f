from __future__ import annotations

import pytest

from backends.load import EngineLoad, parse_load

VLLM = """# HELP vllm:num_requests_running Number of requests in model execution batches.
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
SGLANG = """sglang:num_running_reqs{model_name="tiny"} 1.0
sglang:num_queue_reqs{model_name="tiny"} 4.0
sglang:token_usage{model_name="tiny"} 0.5
sglang:max_total_num_tokens{model_name="tiny"} 20000.0
sglang:cache_config_info{num_pages="1250",page_size="16"} 1.0
"""


def test_vllm_names_are_read_over_all_ranks() -> None:
    assert parse_load(VLLM) == EngineLoad(5, 7, 0.5, 65536, 32, 1.7e9)


def test_sglang_names_are_read() -> None:
    assert parse_load(SGLANG) == EngineLoad(1, 4, 0.5, 20000, 16, None)


def test_an_older_vllm_name_of_the_usage_is_read() -> None:
    assert parse_load("vllm:gpu_cache_usage_perc 0.125\n").kv_usage == 0.125


def test_a_page_without_known_names_says_nothing() -> None:
    assert parse_load("llamacpp:requests_processing 1\n") == EngineLoad()


def test_a_cache_size_that_is_not_known_yet_is_none() -> None:
    load = parse_load('vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1.0\n')
    assert (load.capacity_tokens, load.block_size) == (None, 16)


def test_a_broken_line_is_a_value_error() -> None:
    with pytest.raises(ValueError):
        parse_load("vllm:num_requests_running{ 3\n")

"""TensorRT-LLM's `trtllm-serve`: `serve/openai_server.py`, `serve/openai_protocol.py`, `metrics/collector.py`.

Its request models refuse unknown fields, so a field is sent only where the model of that path has it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from backends.engines.protocol import (
    Ask,
    EngineName,
    EventPublisher,
    Page,
    PriorityField,
    integer,
    only,
    token_list,
    usage_cached_tokens,
)
from backends.load import EngineLoad, read_samples

if TYPE_CHECKING:
    from collections.abc import Mapping

    from backends.engines.protocol import PromptKind

_ITERATIONS: Final = "/metrics"
_NAMES: Final = (
    *("trtllm_num_requests_running", "trtllm_num_requests_waiting", "trtllm_kv_cache_utilization"),
    *("trtllm_kv_cache_tokens_per_block", "trtllm_kv_cache_max_blocks", "process_start_time_seconds"),
)


class TrtLlm:
    name = EngineName.TRTLLM
    health_path = "/health"
    load_pages = ("/prometheus/metrics", _ITERATIONS)
    """The first only with return_perf_metrics. The second hands out each iteration once, to whoever asks first."""
    cached_tokens_flag = None
    priority = PriorityField("priority", None, 1, "scheduler_config.waiting_queue_policy: priority")
    """A number from 0 to 1."""
    session_field = None
    session_header = None
    rank_header = None
    events_page = None
    events_drain = "/kv_cache_events"

    def read_load(self, path: str, page: Page) -> EngineLoad | None:
        if path == _ITERATIONS and page.body.lstrip()[:1] == b"[":
            return _last_iteration(json.loads(page.body))
        samples = read_samples(page.body, _NAMES)
        if not samples.has_prefix("trtllm_"):
            raise ValueError("no metrics of TensorRT-LLM")
        block_size = samples.first("trtllm_kv_cache_tokens_per_block")
        blocks = samples.total("trtllm_kv_cache_max_blocks")
        return EngineLoad(
            running=samples.total("trtllm_num_requests_running"),
            waiting=samples.total("trtllm_num_requests_waiting"),
            kv_usage=samples.mean("trtllm_kv_cache_utilization"),
            capacity_tokens=int(block_size) * blocks if block_size and blocks else None,
            block_size=int(block_size) if block_size else None,
            start_time_s=samples.first("process_start_time_seconds"),
        )

    def takes_cache_salt(self, target: bytes) -> bool:
        return target.partition(b"?")[0] == b"/v1/chat/completions"

    def cached_tokens(self, answer: Mapping[str, Any]) -> int | None:
        return usage_cached_tokens(answer)

    def token_asks(self, kind: PromptKind, body: Mapping[str, Any]) -> tuple[Ask, ...]:
        """Text only: it has no endpoint that renders a chat."""
        if kind == "chat" or not isinstance(body.get("prompt"), str):
            return ()
        return (Ask("/_internal/tokenize", only(body, "model", "prompt")),)

    def read_tokens(self, answer: object) -> list[int] | Ask:
        return token_list(answer.get("tokens") if isinstance(answer, dict) else None)

    def event_publishers(self, answer: object) -> tuple[EventPublisher, ...]:
        return ()


def _last_iteration(iterations: object) -> EngineLoad | None:
    """None where none ran since the last time it was asked. Raises ValueError."""
    if not isinstance(iterations, list):
        raise ValueError("no list of iterations")
    if not iterations:
        return None
    last = iterations[-1]
    if not isinstance(last, dict):
        raise ValueError("no iteration")
    used, blocks = integer(last, "kvCacheStats", "usedNumBlocks"), integer(last, "kvCacheStats", "maxNumBlocks")
    block_size = integer(last, "kvCacheStats", "tokensPerBlock")
    return EngineLoad(
        running=integer(last, "numActiveRequests"),
        waiting=integer(last, "numQueuedRequests"),
        kv_usage=used / blocks if used is not None and blocks else None,
        capacity_tokens=block_size * blocks if block_size and blocks else None,
        block_size=block_size or None,
    )

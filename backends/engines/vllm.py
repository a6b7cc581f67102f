"""vLLM 0.33.0 (older names of metrics too): `v1/metrics/loggers.py`, `entrypoints/**`, `distributed/kv_events.py`."""

from __future__ import annotations

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

_CONFIG: Final = "vllm:cache_config_info"
_USAGE: Final = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
_NAMES: Final = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    *_USAGE,
    _CONFIG,
    "process_start_time_seconds",
)
_TOKENIZE_CHAT: Final = (
    *("model", "messages", "tools", "add_generation_prompt", "continue_final_message", "add_special_tokens"),
    *("chat_template_kwargs", "mm_processor_kwargs"),
)


class Vllm:
    name = EngineName.VLLM
    health_path = "/health"
    load_pages = ("/metrics",)
    cached_tokens_flag = "--enable-prompt-tokens-details"
    priority = PriorityField("priority", "x-vllm-priority", -1, "--scheduling-policy priority")
    session_field = "session_id"
    session_header = "x-session-id"
    rank_header = "x-data-parallel-rank"
    events_page = "/kv_event_sources"
    events_drain = None

    def read_load(self, path: str, page: Page) -> EngineLoad:
        samples = read_samples(page.body, _NAMES)
        configs = samples.labels(_CONFIG)
        sizes = [(_number(labels.get("block_size")), _number(labels.get("num_gpu_blocks"))) for labels in configs]
        capacities = [size * count for size, count in sizes if size is not None and count is not None]
        caching = [labels.get("enable_prefix_caching") for labels in configs]
        return EngineLoad(
            running=samples.total("vllm:num_requests_running"),
            waiting=samples.total("vllm:num_requests_waiting"),
            kv_usage=samples.mean(*_USAGE),
            capacity_tokens=sum(capacities) if capacities else None,
            block_size=next((size for size, _ in sizes if size is not None), None),
            start_time_s=samples.first("process_start_time_seconds"),
            prefix_cache=next((text == "True" for text in caching if text in ("True", "False")), None),
        )

    def takes_cache_salt(self, target: bytes) -> bool:
        return True

    def cached_tokens(self, answer: Mapping[str, Any]) -> int | None:
        return usage_cached_tokens(answer)

    def token_asks(self, kind: PromptKind, body: Mapping[str, Any]) -> tuple[Ask, ...]:
        render = dict(body, mm_payload="none")
        if kind == "chat":
            return (
                Ask("/v1/chat/completions/render", render),
                Ask("/tokenize", only(body, *_TOKENIZE_CHAT)),
            )
        return (
            Ask("/v1/completions/render", render),
            Ask("/tokenize", only(body, "model", "prompt", "add_special_tokens")),
        )

    def read_tokens(self, answer: object) -> list[int] | Ask:
        """Of `render` (one request, or one per prompt) and of `/tokenize`."""
        if isinstance(answer, list) and len(answer) == 1:
            answer = answer[0]
        if not isinstance(answer, dict):
            raise ValueError("no tokens in the answer")
        return token_list(next((answer[name] for name in ("token_ids", "tokens") if name in answer), None))

    def event_publishers(self, answer: object) -> tuple[EventPublisher, ...]:
        """[{data_parallel_rank, endpoint, replay_endpoint, topic}, ...]; ports are those of the rank already."""
        if not isinstance(answer, list):
            raise ValueError("no list of event sources")
        return tuple(_source(entry) for entry in answer)


def _source(entry: object) -> EventPublisher:
    if not isinstance(entry, dict) or not isinstance(entry.get("endpoint"), str):
        raise ValueError("no event source")
    replay = entry.get("replay_endpoint")
    topic = entry.get("topic")
    return EventPublisher(
        rank=integer(entry, "data_parallel_rank") or 0,
        endpoint=entry["endpoint"],
        replay_endpoint=replay if isinstance(replay, str) and replay else None,
        topic=topic if isinstance(topic, str) else "",
        block_size=integer(entry, "block_size"),
    )


def _number(text: str | None) -> int | None:
    """An engine that does not know a size yet says `None`."""
    return int(text) if text is not None and text.isdecimal() else None

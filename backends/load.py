"""Reads an engine's own load figures from its Prometheus `/metrics` text (names: vLLM and SGLang)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """None where the engine does not say."""

    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    """Share of the KV cache in use, 0 to 1."""
    capacity_tokens: int | None = None
    block_size: int | None = None
    """Tokens per KV block (SGLang: per page)."""
    start_time_s: float | None = None
    """Unix time at which the engine's process began: a change is a restart."""


_RUNNING: Final = ("vllm:num_requests_running", "sglang:num_running_reqs")
_WAITING: Final = ("vllm:num_requests_waiting", "sglang:num_queue_reqs")
_USAGE: Final = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage")
_CONFIG: Final = ("vllm:cache_config_info", "sglang:cache_config_info")
_PREFIXES: Final = (
    *(*_RUNNING, *_WAITING, *_USAGE, *_CONFIG),
    "sglang:max_total_num_tokens",
    "process_start_time_seconds",
)


def parse_load(text: str) -> EngineLoad:
    """Values of several engine ranks or models in one process are summed (usage: their mean). Raises ValueError on text
    that is no Prometheus exposition."""
    values: dict[str, list[float]] = {}
    configs: list[Mapping[str, str]] = []
    # an engine's page has thousands of lines; the library's parser sees only the few that matter
    lines = [line for line in text.splitlines() if line.startswith(_PREFIXES)]
    for family in text_string_to_metric_families("\n".join([*lines, ""])):
        for sample in family.samples:
            if sample.name in _CONFIG:
                configs.append(sample.labels)
            elif math.isfinite(sample.value):
                values.setdefault(sample.name, []).append(sample.value)
    usage = _first(values, _USAGE)
    capacity, block_size = _cache_size(configs)
    if (total := values.get("sglang:max_total_num_tokens")) is not None:
        capacity = int(sum(total))
    start = values.get("process_start_time_seconds")
    return EngineLoad(
        running=_total(_first(values, _RUNNING)),
        waiting=_total(_first(values, _WAITING)),
        kv_usage=sum(usage) / len(usage) if usage else None,
        capacity_tokens=capacity,
        block_size=block_size,
        start_time_s=start[0] if start else None,
    )


def _first(values: Mapping[str, list[float]], names: tuple[str, ...]) -> list[float] | None:
    return next((values[name] for name in names if name in values), None)


def _total(values: list[float] | None) -> int | None:
    return None if values is None else int(sum(values))


def _cache_size(configs: list[Mapping[str, str]]) -> tuple[int | None, int | None]:
    """(capacity in tokens, block size) from the info labels; an engine that does not know them yet says `None`."""
    capacity: int | None = None
    block_size: int | None = None
    for labels in configs:
        size = labels.get("block_size") or labels.get("page_size")
        count = labels.get("num_gpu_blocks") or labels.get("num_pages")
        if size is not None and size.isdigit():
            block_size = int(size)
            if count is not None and count.isdigit():
                capacity = (capacity or 0) + int(size) * int(count)
    return capacity, block_size

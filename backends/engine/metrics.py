"""The engine's /metrics under vLLM's names, rendered by hand."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from backends.engine.core import EngineCore

_TTFT_BUCKETS_S: Final = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)


class Histogram:
    """Counts per upper bound, in seconds."""

    def __init__(self, bounds: tuple[float, ...] = _TTFT_BUCKETS_S) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def lines(self, name: str, labels: str) -> Iterator[str]:
        count = 0
        for bound, n in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            count += n
            yield f'{name}_bucket{{{labels},le="{bound}"}} {count}'
        yield f"{name}_count{{{labels}}} {count}"
        yield f"{name}_sum{{{labels}}} {self._sum}"


def render(core: EngineCore, model: str, ttft: Histogram, started_at_s: float) -> bytes:
    """Prometheus text format 0.0.4."""
    labels = f'engine="0",model_name="{_escape(model)}"'
    lines: list[str] = []

    def add(kind: str, name: str, value: float) -> None:
        lines.extend((f"# TYPE {name} {kind}", f"{name}{{{labels}}} {value}"))

    add("gauge", "vllm:num_requests_running", core.running)
    add("gauge", "vllm:num_requests_waiting", core.waiting)
    add("gauge", "vllm:kv_cache_usage_perc", core.kv_usage)
    add("counter", "vllm:prefix_cache_queries_total", core.prefix_queries_total)
    add("counter", "vllm:prefix_cache_hits_total", core.prefix_hits_total)
    add("counter", "vllm:prompt_tokens_total", core.prompt_tokens_total)
    add("counter", "vllm:generation_tokens_total", core.generated_tokens_total)
    add("counter", "vllm:num_preemptions_total", core.preemptions_total)
    cache = (
        f'block_size="{core.limits.block_size}",cache_dtype="auto",enable_prefix_caching="True",engine="0",'
        f'num_gpu_blocks="{core.cache.capacity}"'
    )
    lines += ("# TYPE vllm:cache_config_info gauge", f"vllm:cache_config_info{{{cache}}} 1.0")
    lines.append("# TYPE vllm:time_to_first_token_seconds histogram")
    lines += ttft.lines("vllm:time_to_first_token_seconds", labels)
    lines += ("# TYPE process_start_time_seconds gauge", f"process_start_time_seconds {started_at_s}")
    return ("\n".join(lines) + "\n").encode()


def _escape(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

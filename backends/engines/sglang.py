"""SGLang 0.5.23: `srt/observability`, `srt/entrypoints/http_server.py`, `srt/disaggregation/kv_events.py`."""

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

_CONFIG: Final = "sglang:cache_config_info"
_NAMES: Final = (
    *("sglang:num_running_reqs", "sglang:num_queue_reqs", "sglang:token_usage", "sglang:max_total_num_tokens"),
    *("sglang:page_size", _CONFIG, "process_start_time_seconds"),
)
_LOADS: Final = "/v1/loads"
_TOKENIZE_CHAT: Final = (
    *("model", "messages", "tools", "tool_choice", "reasoning_effort", "continue_final_message"),
    "chat_template_kwargs",
)


class SgLang:
    name = EngineName.SGLANG
    health_path = "/health"
    load_pages = ("/metrics", _LOADS)
    """The first only with --enable-metrics."""
    cached_tokens_flag = "--enable-cache-report"
    priority = PriorityField("priority", None, 1, "--enable-priority-scheduling")
    """The sign turns with --schedule-low-priority-values-first."""
    session_field = "session_id"
    session_header = None
    rank_header = "x-data-parallel-rank"
    events_page = "/server_info"
    events_drain = None

    def read_load(self, path: str, page: Page) -> EngineLoad:
        if path == _LOADS:
            return _loads(json.loads(page.body))
        samples = read_samples(page.body, _NAMES)
        if not samples.has_prefix("sglang:"):
            raise ValueError("no metrics of SGLang")
        capacity, block_size = samples.total("sglang:max_total_num_tokens"), samples.first("sglang:page_size")
        size = int(block_size) if block_size else None
        for labels in samples.labels(_CONFIG):
            page_size, pages = labels.get("page_size", ""), labels.get("num_pages", "")
            if page_size.isdecimal():
                size = size or int(page_size)
                if capacity is None and pages.isdecimal():
                    capacity = int(page_size) * int(pages)
        return EngineLoad(
            running=samples.total("sglang:num_running_reqs"),
            waiting=samples.total("sglang:num_queue_reqs"),
            kv_usage=samples.mean("sglang:token_usage"),
            capacity_tokens=capacity,
            block_size=size,
            start_time_s=samples.first("process_start_time_seconds"),
        )

    def takes_cache_salt(self, target: bytes) -> bool:
        return True

    def cached_tokens(self, answer: Mapping[str, Any]) -> int | None:
        return usage_cached_tokens(answer)

    def token_asks(self, kind: PromptKind, body: Mapping[str, Any]) -> tuple[Ask, ...]:
        """Builds before `messages` was a field answer chats with 422."""
        if kind == "chat":
            return (Ask("/v1/tokenize", only(body, *_TOKENIZE_CHAT)),)
        if not isinstance(body.get("prompt"), str):
            return ()
        return (Ask("/v1/tokenize", only(body, "model", "prompt")),)

    def read_tokens(self, answer: object) -> list[int] | Ask:
        return token_list(answer.get("tokens") if isinstance(answer, dict) else None)

    def event_publishers(self, answer: object) -> tuple[EventPublisher, ...]:
        """`kv_events` names the first rank's port; the others follow."""
        if not isinstance(answer, dict):
            raise ValueError("no server info")
        told = answer.get("kv_events")
        if not isinstance(told, dict) or told.get("publisher") not in (None, "zmq"):
            return ()
        host, port = told.get("endpoint_host"), integer(told, "endpoint_port_base")
        if not isinstance(host, str) or not port:
            raise ValueError("no endpoint of KV events")
        replay_host = told.get("replay_endpoint_host") or host
        replay_port = integer(told, "replay_endpoint_port_base")
        topic = told.get("topic")
        return tuple(
            EventPublisher(
                rank=rank,
                endpoint=f"tcp://{host}:{port + rank}",
                replay_endpoint=f"tcp://{replay_host}:{replay_port + rank}" if replay_port else None,
                topic=topic if isinstance(topic, str) else "",
                block_size=integer(told, "block_size"),
            )
            for rank in range(min(integer(told, "dp_size") or 1, 1024))
        )


def _loads(answer: object) -> EngineLoad:
    """Sums over the data-parallel ranks; the usage is their mean. Raises ValueError."""
    ranks = answer.get("loads") if isinstance(answer, dict) else None
    if not isinstance(ranks, list) or not ranks:
        raise ValueError("no loads")
    usages = [float(rank["token_usage"]) for rank in ranks if isinstance(rank.get("token_usage"), int | float)]
    return EngineLoad(
        running=_total(ranks, "num_running_reqs"),
        waiting=_total(ranks, "num_waiting_reqs"),
        kv_usage=sum(usages) / len(usages) if usages else None,
        capacity_tokens=_total(ranks, "max_total_num_tokens"),
    )


def _total(ranks: list[dict[str, Any]], name: str) -> int | None:
    values = [value for rank in ranks if (value := integer(rank, name)) is not None]
    return sum(values) if values else None

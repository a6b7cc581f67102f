"""llama.cpp's server (`tools/server`): a cache per slot, no KV events. Metrics only with --metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from backends.engines.protocol import (
    Ask,
    EngineName,
    EventPublisher,
    Page,
    integer,
    only,
    token_list,
    usage_cached_tokens,
)
from backends.load import EngineLoad, read_samples

if TYPE_CHECKING:
    from collections.abc import Mapping

    from backends.engines.protocol import PromptKind

_NAMES: Final = (
    *("llamacpp:requests_processing", "llamacpp:requests_deferred", "llamacpp:kv_cache_usage_ratio"),
    "process_start_time_seconds",
)
_START: Final = "process-start-time-unix"
"""Header of its /metrics: a number that stays for the life of the process, not always a time."""


class LlamaCpp:
    name = EngineName.LLAMACPP
    health_path = "/health"
    load_pages = ("/metrics",)
    cached_tokens_flag = None
    priority = None
    session_field = None
    session_header = None
    rank_header = None
    events_page = None
    events_drain = None

    def read_load(self, path: str, page: Page) -> EngineLoad:
        samples = read_samples(page.body, _NAMES)
        if not samples.has_prefix("llamacpp:"):
            raise ValueError("no metrics of llama.cpp")
        start = page.headers.get(_START, "")
        return EngineLoad(
            running=samples.total("llamacpp:requests_processing"),
            waiting=samples.total("llamacpp:requests_deferred"),
            kv_usage=samples.mean("llamacpp:kv_cache_usage_ratio"),
            start_time_s=float(start) if start.isdecimal() else samples.first("process_start_time_seconds"),
        )

    def takes_cache_salt(self, target: bytes) -> bool:
        return False

    def cached_tokens(self, answer: Mapping[str, Any]) -> int | None:
        """Older builds have it in `timings.cache_n` alone, native completions in `tokens_cached`."""
        for found in (usage_cached_tokens(answer), integer(answer, "timings", "cache_n")):
            if found is not None:
                return found
        return integer(answer, "tokens_cached")

    def token_asks(self, kind: PromptKind, body: Mapping[str, Any]) -> tuple[Ask, ...]:
        """A chat in two steps: the text of its template, then the ids of that."""
        if kind == "chat":
            names = ("messages", "tools", "tool_choice", "chat_template_kwargs", "add_generation_prompt")
            return (Ask("/apply-template", only(body, *names, "response_format", "parallel_tool_calls")),)
        prompt = body.get("prompt")
        return (_tokenize(prompt),) if isinstance(prompt, str) else ()

    def read_tokens(self, answer: object) -> list[int] | Ask:
        if isinstance(answer, dict) and isinstance(answer.get("prompt"), str):
            return _tokenize(answer["prompt"])
        return token_list(answer.get("tokens") if isinstance(answer, dict) else None)

    def event_publishers(self, answer: object) -> tuple[EventPublisher, ...]:
        return ()


def _tokenize(text: str) -> Ask:
    """With the flags that the server uses for prompts."""
    return Ask("/tokenize", {"content": text, "add_special": True, "parse_special": True})

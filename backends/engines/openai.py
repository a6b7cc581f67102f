"""Anything that speaks the OpenAI API and of which no more is known. It is asked for its models and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backends.engines.protocol import Ask, EngineName, EventPublisher, Page, usage_cached_tokens

if TYPE_CHECKING:
    from collections.abc import Mapping

    from backends.engines.protocol import PromptKind
    from backends.load import EngineLoad


class OpenAI:
    name = EngineName.OPENAI
    health_path = "/v1/models"
    load_pages = ()
    cached_tokens_flag = None
    priority = None
    session_field = None
    session_header = None
    rank_header = None
    events_page = None
    events_drain = None

    def read_load(self, path: str, page: Page) -> EngineLoad | None:
        return None

    def takes_cache_salt(self, target: bytes) -> bool:
        return False

    def cached_tokens(self, answer: Mapping[str, Any]) -> int | None:
        return usage_cached_tokens(answer)

    def token_asks(self, kind: PromptKind, body: Mapping[str, Any]) -> tuple[Ask, ...]:
        return ()

    def read_tokens(self, answer: object) -> list[int] | Ask:
        raise ValueError("it has no tokens to tell")

    def event_publishers(self, answer: object) -> tuple[EventPublisher, ...]:
        return ()

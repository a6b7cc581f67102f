"""What differs from engine to engine, behind one seam. Pure: who asks an engine is not decided here.

Facts are of vLLM 0.33.0, SGLang 0.5.23, TensorRT-LLM 1.3 and llama.cpp's server of late 2026, unless a module says
otherwise; fields that are not there are no error.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from backends.load import EngineLoad

    PromptKind = Literal["chat", "completions"]
    """A body of /v1/chat/completions, or of /v1/completions."""


class EngineName(enum.StrEnum):
    VLLM = "vllm"
    SGLANG = "sglang"
    TRTLLM = "trtllm"
    LLAMACPP = "llamacpp"
    OPENAI = "openai"
    """Any other that speaks the OpenAI API."""


class Page(NamedTuple):
    """An answer to a GET."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes


class Ask(NamedTuple):
    """A POST of JSON."""

    path: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class EventPublisher:
    """Where one data-parallel rank publishes its KV events (ZMQ PUB)."""

    rank: int
    endpoint: str
    """As the engine says it: its host may be a wildcard (`*`, `0.0.0.0`, `[::]`), which stands for the engine's own."""
    replay_endpoint: str | None
    topic: str
    block_size: int | None
    """Tokens; None where the engine does not say."""


@dataclass(frozen=True, slots=True)
class PriorityField:
    """How a request's priority is said."""

    field: str
    """Member of the body."""
    header: str | None
    sign: Literal[1, -1]
    """1: the higher value is served first; -1: the lower one."""
    flag: str
    """The engine schedules by it only when started with this."""


class Engine(Protocol):
    """Stateless; equal for all backends of its kind."""

    @property
    def name(self) -> EngineName: ...

    @property
    def health_path(self) -> str:
        """Answers 2xx when it serves."""
        ...

    @property
    def load_pages(self) -> tuple[str, ...]:
        """Paths with load figures, the best first; an engine may be started without some of them."""
        ...

    def read_load(self, path: str, page: Page) -> EngineLoad | None:
        """`page`: a 2xx answer of one of `load_pages`. None: nothing new there. Raises ValueError where it is not what
        this engine answers."""
        ...

    def takes_cache_salt(self, target: bytes) -> bool:
        """Requests to this target may have a `cache_salt`; others would be refused for it, or pass it over."""
        ...

    def cached_tokens(self, answer: Mapping[str, Any]) -> int | None:
        """How many prompt tokens it found in its cache, from an answer or from the chunk of a stream that has the
        usage. None: it does not say."""
        ...

    @property
    def cached_tokens_flag(self) -> str | None:
        """What the engine must be started with to report cached tokens. None: it always does, or never."""
        ...

    @property
    def priority(self) -> PriorityField | None: ...

    @property
    def session_field(self) -> str | None:
        """Member of the body that names the session."""
        ...

    @property
    def session_header(self) -> str | None: ...

    @property
    def rank_header(self) -> str | None:
        """Header that chooses the data-parallel rank."""
        ...

    def token_asks(self, kind: PromptKind, body: Mapping[str, Any]) -> tuple[Ask, ...]:
        """How to ask for the token ids of a request's prompt, the most exact way first; where that is not known to the
        engine (404, 405, 422, 501) the next may be. Empty: it cannot be asked."""
        ...

    def read_tokens(self, answer: object) -> list[int] | Ask:
        """The ids from the answer to an ask, or what to ask next. Raises ValueError."""
        ...

    @property
    def events_page(self) -> str | None:
        """A GET that tells where KV events are published. None: it cannot be asked."""
        ...

    def event_publishers(self, answer: object) -> tuple[EventPublisher, ...]:
        """From the decoded answer of `events_page`; empty where none are published. Raises ValueError."""
        ...

    @property
    def events_drain(self) -> str | None:
        """A POST that hands out the KV events since the last one, for a single consumer. None: there is no such."""
        ...


def usage_cached_tokens(answer: Mapping[str, Any]) -> int | None:
    """OpenAI's `usage.prompt_tokens_details.cached_tokens`."""
    return integer(answer, "usage", "prompt_tokens_details", "cached_tokens")


def integer(value: object, *path: str) -> int | None:
    """What stands at a path of JSON members, where it is an integer of at least 0."""
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def token_list(value: object) -> list[int]:
    """Raises ValueError where it is no list of token ids."""
    if not isinstance(value, list) or not all(type(one) is int and 0 <= one < 1 << 32 for one in value):
        raise ValueError("no list of token ids")
    return value


def only(body: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """These members, where they are there."""
    return {name: body[name] for name in names if body.get(name) is not None}

"""Which engine answers, from what it says anyway: the model list first, then its metrics, then what only it has.

Pure. Invariant: a question is asked again only while nobody has answered it, and not for ever; so an engine that is
known costs nothing, and one that cannot be known is asked a handful of times per life.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from backends.engines.protocol import EngineName

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from backends.engines.protocol import Page

METRICS: Final = "/metrics"
_SERVER_INFO: Final = "/server_info"
_PROPS: Final = "/props"
_VERSION: Final = "/version"
_QUESTIONS: Final = (METRICS, _SERVER_INFO, _PROPS, _VERSION)
_MAX_TRIES: Final = 3
_OWNERS: Final = {
    "vllm": EngineName.VLLM,
    "sglang": EngineName.SGLANG,
    "tensorrt_llm": EngineName.TRTLLM,
    "llamacpp": EngineName.LLAMACPP,
    "openai": EngineName.OPENAI,
    "openai-internal": EngineName.OPENAI,
    "system": EngineName.OPENAI,
    "library": EngineName.OPENAI,  # Ollama
}
_PREFIXES: Final = {
    b"vllm:": EngineName.VLLM,
    b"sglang:": EngineName.SGLANG,
    b"llamacpp:": EngineName.LLAMACPP,
    b"trtllm_": EngineName.TRTLLM,
}
_SGLANG_INFO: Final = frozenset(("internal_states", "disable_radix_cache", "max_total_num_tokens", "kv_events"))


def by_owner(cards: Iterable[Mapping[str, object]]) -> EngineName | None:
    """From the entries of /v1/models; None where they name no engine, or several."""
    owners = {owner for card in cards if isinstance(owner := card.get("owned_by"), str)}
    names = {_OWNERS[owner] for owner in owners if owner in _OWNERS}
    return names.pop() if len(names) == 1 else None


def by_metrics(body: bytes) -> EngineName | None:
    """From the names on a /metrics page. TensorRT-LLM's is a JSON list."""
    for line in body.splitlines():
        for prefix, name in _PREFIXES.items():
            if line.startswith(prefix):
                return name
    try:
        return EngineName.TRTLLM if body[:1] == b"[" and isinstance(json.loads(body), list) else None
    except (ValueError, RecursionError):
        return None


class Detection:
    """Of one life of one backend."""

    __slots__ = ("_left", "_owner", "_told", "_tries")

    def __init__(self) -> None:
        self._owner: EngineName | None = None
        self._told: EngineName | None = None
        self._left = list(_QUESTIONS)
        self._tries = 0

    @property
    def engine(self) -> EngineName | None:
        """None while it is not known. A model list that names an engine goes before everything else."""
        if self._owner is not None:
            return self._owner
        if self._told is None and not self._left:
            return EngineName.OPENAI
        return self._told

    @property
    def evidence(self) -> EngineName | None:
        """As `engine`, but only what it has said itself."""
        return self._owner or self._told

    @property
    def question(self) -> str | None:
        """A path to GET; None where nothing is left to ask."""
        return self._left[0] if self._left and self.engine is None else None

    def see_models(self, cards: Iterable[Mapping[str, object]]) -> None:
        self._owner = by_owner(cards) or self._owner

    def see_metrics(self, body: bytes) -> None:
        """A page that was read for other reasons."""
        self._told = by_metrics(body) or self._told

    def see(self, path: str, page: Page | None) -> None:
        """The answer to `question`; None where there was none in time. One that is too busy to answer may be asked
        again."""
        if not self._left or path != self._left[0]:
            return
        self._tries += 1
        silent = page is None or page.status == 429 or page.status >= 500
        if silent and self._tries < _MAX_TRIES:
            return
        self._left.pop(0)
        self._tries = 0
        if page is not None and 200 <= page.status < 300:
            self._told = self._told or _judge(path, page.body)


def _judge(path: str, body: bytes) -> EngineName | None:
    if path == METRICS:
        return by_metrics(body)
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(answer, dict):
        return None
    if path == _SERVER_INFO:
        if "vllm_config" in answer:
            return EngineName.VLLM
        return EngineName.SGLANG if _SGLANG_INFO & answer.keys() else None
    if path == _PROPS:
        return EngineName.LLAMACPP if "default_generation_settings" in answer else None
    # TensorRT-LLM says the same here, but is known by its /metrics before
    return EngineName.VLLM if answer.keys() == {"version"} and isinstance(answer["version"], str) else None

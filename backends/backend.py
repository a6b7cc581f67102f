"""One engine endpoint: its settings, its connections, its health and its current instance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from backends.health import Health
    from backends.instance import Instance
    from backends.transport import Upstream
    from backends.upstream import Endpoint
    from vocabulary import BackendId


@dataclass(frozen=True, slots=True)
class BackendSpec:
    """What the operator says of a backend. None or empty: asked from the engine, or unknown."""

    name: BackendId
    endpoint: Endpoint
    models: tuple[str, ...] = ()
    capacity_tokens: int | None = None
    prefill_cap_tokens: int | None = None
    """The engine's own limit of prefill tokens of one request per step (vLLM: --long-prefill-token-threshold)."""
    by_priority: bool = False
    """The engine schedules by the request's priority instead of its arrival."""
    prefill_s_per_token: float | None = None
    prefill_s_per_token2: float | None = None
    has_metrics: bool = True
    """It may be asked for load figures at `/metrics`."""


class Backend:
    """`instance` is replaced when the engine restarts; requests keep the one that they were leased on."""

    __slots__ = ("draining", "health", "instance", "last_error", "model_cards", "models", "spec", "upstream")

    def __init__(self, spec: BackendSpec, upstream: Upstream, health: Health) -> None:
        self.spec = spec
        self.upstream = upstream
        self.health = health
        self.instance: Instance
        self.models: tuple[str, ...] = spec.models
        """Model ids that it serves; from the config, else from its `/v1/models`."""
        self.model_cards: dict[str, dict[str, Any]] = {}
        """Entries of its `/v1/models` by id, as it sent them."""
        self.draining = False
        self.last_error: str | None = None
        """Class name of the last failed probe's error."""

    @property
    def name(self) -> BackendId:
        return self.spec.name

    @property
    def capacity_tokens(self) -> int | None:
        """KV tokens that it can hold: the operator's figure, else what the engine reports."""
        if self.spec.capacity_tokens is not None:
            return self.spec.capacity_tokens
        load = self.instance.engine_load
        return load.capacity_tokens if load is not None else None

"""One engine endpoint: its settings, its connections, its health, its current instance, and whether it is to rest.

Invariant: `draining` is true exactly while `drain_reasons` has any; each reason is taken back by who gave it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

    from backends.engines.protocol import EngineName
    from backends.health import Health
    from backends.instance import Instance
    from backends.transport import Upstream
    from backends.upstream import Endpoint
    from vocabulary import BackendId

DrainReason = Literal["admin", "discovery", "config"]
"""Who wants it to take no new requests: an operator, the source that found it, a config that no longer has it."""


@dataclass(frozen=True, slots=True)
class EventSource:
    """Where an engine's KV events come from (ZMQ)."""

    endpoint: str
    replay_endpoint: str | None = None
    """What was missed can be asked for there."""
    topic: str = ""
    bind: bool = False
    """The engine connects to us."""


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
    engine: EngineName | None = None
    """None: found out from its answers."""
    events: EventSource | None = None


class Backend:
    """`instance` is replaced when the engine restarts; requests keep the one that they were leased on."""

    __slots__ = (
        "drain_reasons",
        "draining",
        "draining_since_s",
        "engine_seen",
        "former",
        "health",
        "instance",
        "last_error",
        "model_cards",
        "models",
        "restarts",
        "spec",
        "upstream",
    )

    def __init__(self, spec: BackendSpec, upstream: Upstream, health: Health) -> None:
        self.spec = spec
        self.upstream = upstream
        self.health = health
        self.instance: Instance
        self.former: list[Instance] = []
        """Earlier lives on which requests still run."""
        self.restarts = 0
        """Lives before this one."""
        self.models: tuple[str, ...] = spec.models
        """Model ids that it serves; from the config, else from its `/v1/models`."""
        self.model_cards: dict[str, dict[str, Any]] = {}
        """Entries of its `/v1/models` by id, as it sent them."""
        self.draining = False
        """Takes no new requests; for reading."""
        self.drain_reasons: tuple[DrainReason, ...] = ()
        self.draining_since_s = 0.0
        self.engine_seen: EngineName | None = None
        """What its answers say it is, whatever the config says."""
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

    @property
    def in_flight(self) -> int:
        """Requests on all its lives."""
        return self.instance.in_flight + sum(instance.in_flight for instance in self.former)

    def drain(self, reason: DrainReason, now_s: float) -> bool:
        """Returns False when that reason is there already."""
        if reason in self.drain_reasons:
            return False
        if not self.draining:
            self.draining_since_s = now_s
        self.drain_reasons = (*self.drain_reasons, reason)
        self.draining = True
        return True

    def undrain(self, reason: DrainReason) -> bool:
        """Takes back that reason alone. Returns True when it was the last one."""
        if reason not in self.drain_reasons:
            return False
        self.drain_reasons = tuple(other for other in self.drain_reasons if other != reason)
        self.draining = bool(self.drain_reasons)
        return not self.draining

    def when_empty(self, callback: Callable[[], None]) -> None:
        """Call back once no request runs on any of its lives, at once if none does."""
        busy = next((instance for instance in (self.instance, *self.former) if instance.in_flight), None)
        if busy is None:
            callback()
        else:
            busy.when_idle(lambda: self.when_empty(callback))

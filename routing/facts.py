"""What a decision is made of: the request's facts, one candidate per backend, and the knobs.

Invariant: values. They are built for every request and backend, so `value` leaves their immutability to the type
checker: a slotted dataclass that is frozen at run time costs three times as much to build (2.7 against 0.9 us for a
Candidate).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar, dataclass_transform

from routing.prefill import DEFAULT_P, DEFAULT_Q
from vocabulary import Trust

if TYPE_CHECKING:
    from collections.abc import Collection

    from vocabulary import BackendId, InstanceId, SessionKey

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def value(cls: type[T]) -> type[T]:
    """A slotted dataclass; assigning to a field is a type error, not a run-time one."""
    return dataclass(slots=True)(cls)


@value
class Facts:
    """What is known of the request."""

    prompt_tokens: float
    session: SessionKey | None = None
    home: InstanceId | None = None
    """The instance that served the session's last turn."""
    matched: bool = True
    """The prefix index was consulted: zero cached tokens then mean a miss, not ignorance."""
    attempt: int = 0
    """0 for the first try."""
    head_key: bytes | None = None
    """Names the head of the prompt: what `session_hash` hashes for a request without a session."""
    failed_open: bool = False
    """No backend was healthy, and the filters that say so were lifted."""


class Unstarted(Protocol):
    """One request that an instance was sent and whose first token is not out, in whatever object its owner keeps it."""

    @property
    def uncached_tokens(self) -> float: ...

    @property
    def prompt_tokens(self) -> float: ...

    @property
    def prefill_s(self) -> float:
        """Its own prefill, as predicted when it was sent."""
        ...

    @property
    def sent_s(self) -> float: ...


@value
class Pending:
    """The plain record of an `Unstarted`."""

    uncached_tokens: float
    prompt_tokens: float
    prefill_s: float
    sent_s: float


@value
class Candidate:
    """One instance that serves the model, as it stands at the moment of the decision. Tokens are engine tokens."""

    instance: InstanceId
    backend: BackendId
    rejected: str | None = None
    """The filter that took it out: `unknown`, `down`, `ejected`, `trial`, `draining`, `tried`, `slow_start`."""
    cached_tokens: float = 0.0
    """Of this prompt, in all tiers together."""
    host_tokens: float = 0.0
    """Of the cached ones, those in host memory only."""
    disk_tokens: float = 0.0
    """Of the cached ones, those on disk or farther only."""
    in_flight: int = 0
    pending: Collection[Unstarted] = ()
    """In the order sent."""
    pending_prefill_s: float = 0.0
    """Sum over `pending`."""
    pending_uncached_tokens: float = 0.0
    """Sum over `pending`."""
    progress_s: float = 0.0
    """Seconds since the later of: the instance's last first token, the head of `pending` was sent."""
    live_tokens: float = 0.0
    """Last context lengths of the *other* live sessions that it served last."""
    capacity_tokens: float | None = None
    p: float = DEFAULT_P
    q: float = DEFAULT_Q
    prefill_cap_tokens: int | None = None
    """The engine gives one request at most so many prefill tokens a step."""
    by_priority: bool = False
    """The engine serves its queue by fewest uncached tokens, not by arrival."""
    waiting: int | None = None
    """The engine's own metric."""
    kv_usage: float | None = None
    """The engine's own metric, 0 to 1."""
    trust: Trust = Trust.ESTIMATED


@dataclass(frozen=True, slots=True)
class Knobs:
    """What an operator may tune in the policies. The defaults are flat optima: doubling one changes little."""

    crowd_s: float = 0.02
    """Cost of sharing an instance with one decoding request."""
    displace_threshold: float = 0.8
    """Share of the KV capacity that live sessions may fill before a placement pays for what it pushes out."""
    settle_share: float = 0.05
    """Share of the prefill of all live tokens of an instance that a session without a home counts as work to come."""
    move_s: float = 0.2
    """Cost of taking a session away from its home. Must outweigh `crowd_s` times the usual differences in load."""
    live_window_s: float = 300.0
    """A session counts as live for so long after its last turn."""
    host_tokens_per_s: float = 500_000.0
    disk_tokens_per_s: float = 100_000.0
    tie_s: float = 1e-9
    """`warm`: costs as close as this are equal."""
    hash_load_factor: float = 1.25
    """`session_hash`: an instance may have so many times the mean load before its keys overflow."""
    hash_load_floor: int = 2

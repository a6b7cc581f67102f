"""Which backends may take a request now: the filters before a decision.

Invariants: a draining backend gets nothing, whatever else is wrong (field case O54); a rejected candidate says why.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from backends.health import State
from routing.ramp import SLOW_START, held_back

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from backends.backend import Backend
    from gateway.fleet import FleetState
    from routing import Candidate
    from vocabulary import InstanceId

_SICK: Final = frozenset((State.DOWN.value, State.EJECTED.value, State.TRIAL.value))


def rejected(backend: Backend, tried: Collection[int], now_s: float) -> str | None:
    """Why a backend cannot take this request now."""
    if tried and backend.instance.id in tried:
        return "tried"
    if backend.draining:
        return "draining"
    health = backend.health
    return None if health.admits(now_s) else health.state.value


def may_get(backend: Backend, *, fail_open: bool) -> bool:
    """It can be reached, or is tried all the same; what readiness asks."""
    if backend.draining:
        return False
    return backend.health.reachable or (fail_open and backend.health.state is State.DOWN)


def ease_in(fleet: FleetState, candidates: list[Candidate], home: InstanceId | None, now_s: float) -> None:
    """Rejects the backends that are new, or back, and have had their share of what is not at home there."""
    fleet.end_ramps(now_s)
    for position in held_back(candidates, fleet.ramps, home):
        candidates[position] = replace(candidates[position], rejected=SLOW_START)


def opened(candidates: Sequence[Candidate], backends: Iterable[Backend]) -> list[Candidate] | None:
    """`health.fail_open`: those that probes or failures have taken out are candidates again, if no other is left (O61).
    None where that is of no help, or where a healthy one was tried."""
    if any(backend.health.state is State.UP and not backend.draining for backend in backends):
        return None
    reopened = [
        replace(candidate, rejected=None) if candidate.rejected in _SICK else candidate for candidate in candidates
    ]
    return reopened if any(candidate.rejected is None for candidate in reopened) else None

"""The seam of a policy, and the tie-breaking that all of them share.

Invariant: no policy favours a place in the list; whatever is equal is drawn at random.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from routing.facts import Candidate, Facts

EPSILON: Final = 1e-9


@dataclass(slots=True)
class PolicyState:
    """What outlives a decision. One per route and model: pools that share one skew each other's turns."""

    sequence: int = 0
    """Raised by the caller after each decision."""
    rng: random.Random = field(default_factory=random.Random)
    config_id: str = ""
    """Of the config that this policy came from; stamped on each Decision."""


class Policy(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def wants_match(self) -> bool:
        """Its choice leans on cached tokens, so a request without them is routed as a fallback."""
        ...

    def choose(self, facts: Facts, eligible: Sequence[Candidate], state: PolicyState) -> int:
        """Position in `eligible` (never empty). Pure: same arguments and same rng state, same answer."""
        ...

    def terms(self, facts: Facts, candidate: Candidate) -> Mapping[str, float]:
        """Named parts whose sum is the candidate's cost; lower is better. Empty: the policy has no cost."""
        ...


def equals(costs: Sequence[float], tolerance: float = EPSILON) -> list[int]:
    """Positions of all costs within `tolerance` of the lowest; all of them if no cost can be compared (NaN)."""
    limit = min(costs) + tolerance
    positions = [i for i, cost in enumerate(costs) if cost <= limit]
    return positions or list(range(len(costs)))


def draw(positions: Sequence[int], rng: random.Random) -> int:
    """One of the positions, each as likely; costs no randomness when there is only one."""
    count = len(positions)
    return positions[0] if count == 1 else positions[int(rng.random() * count)]


def uncached(facts: Facts, candidate: Candidate) -> float:
    """Prompt tokens that the candidate would have to prefill."""
    return max(0.0, facts.prompt_tokens - candidate.cached_tokens)

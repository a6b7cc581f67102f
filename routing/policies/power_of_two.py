"""Two drawn at random, the one with fewer requests in flight; ties by the draw.

Source: Mitzenmacher, The Power of Two Choices in Randomized Load Balancing (2001). Prevents: the herd of several
gateways that all see the same least loaded backend at the same moment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from routing.facts import Candidate, Facts
    from routing.policies.base import PolicyState


class PowerOfTwo:
    name = "power_of_two"
    wants_match = False

    def choose(self, facts: Facts, eligible: Sequence[Candidate], state: PolicyState) -> int:
        count = len(eligible)
        first = int(state.rng.random() * count)
        if count == 1:
            return first
        second = int(state.rng.random() * (count - 1))
        if second >= first:
            second += 1
        return second if eligible[second].in_flight < eligible[first].in_flight else first

    def terms(self, facts: Facts, candidate: Candidate) -> Mapping[str, float]:
        return {"in_flight": float(candidate.in_flight)}

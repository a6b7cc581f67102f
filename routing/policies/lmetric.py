"""(pending uncached tokens + own uncached tokens) * (requests in flight + 1); the lowest, ties at random.

Source: LMetric, also an option of NVIDIA Dynamo. Prevents: weights that have to be tuned between cache and load,
since a product needs none. Fails where the gateway cannot see the progress of the pending work: it counts all of it
as still to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from routing.policies.base import draw, equals, uncached

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from routing.facts import Candidate, Facts
    from routing.policies.base import PolicyState


def product(facts: Facts, candidate: Candidate) -> float:
    """Tokens times requests."""
    return (candidate.pending_uncached_tokens + uncached(facts, candidate)) * (candidate.in_flight + 1)


class LMetric:
    name = "lmetric"
    wants_match = True

    def choose(self, facts: Facts, eligible: Sequence[Candidate], state: PolicyState) -> int:
        return draw(equals([product(facts, candidate) for candidate in eligible]), state.rng)

    def terms(self, facts: Facts, candidate: Candidate) -> Mapping[str, float]:
        return {"tokens_x_requests": product(facts, candidate)}

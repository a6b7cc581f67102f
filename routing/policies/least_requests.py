"""Fewest requests in flight; ties at random.

Source: common practice. Prevents: piling onto a backend that is full of long streams, which rates of finished
requests take for an idle one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from routing.policies.base import draw, equals

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from routing.facts import Candidate, Facts
    from routing.policies.base import PolicyState


class LeastRequests:
    name = "least_requests"
    wants_match = False

    def choose(self, facts: Facts, eligible: Sequence[Candidate], state: PolicyState) -> int:
        return draw(equals([candidate.in_flight for candidate in eligible]), state.rng)

    def terms(self, facts: Facts, candidate: Candidate) -> Mapping[str, float]:
        return {"in_flight": float(candidate.in_flight)}

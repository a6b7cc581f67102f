"""Each in turn: position = sequence mod n.

Source: common practice. Prevents: nothing but starvation of a backend; it is the floor that other policies are
measured from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from routing.facts import Candidate, Facts
    from routing.policies.base import PolicyState


class RoundRobin:
    name = "round_robin"
    wants_match = False

    def choose(self, facts: Facts, eligible: Sequence[Candidate], state: PolicyState) -> int:
        return state.sequence % len(eligible)

    def terms(self, facts: Facts, candidate: Candidate) -> Mapping[str, float]:
        return {}

"""`random`: each as likely.

Source: common practice. Prevents: lockstep between gateways that share backends, which turns of a round robin can
fall into.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from routing.facts import Candidate, Facts
    from routing.policies.base import PolicyState


class Uniform:
    name = "random"
    wants_match = False

    def choose(self, facts: Facts, eligible: Sequence[Candidate], state: PolicyState) -> int:
        return int(state.rng.random() * len(eligible))

    def terms(self, facts: Facts, candidate: Candidate) -> Mapping[str, float]:
        return {}

"""Most cached tokens, then fewest requests in flight, then at random.

Source: the naive rule that cache-aware routers begin with. Prevents: recomputing what some backend holds. Fails
where many prompts share a head: the first backend to hold it gets them all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from routing.policies.base import draw, equals, uncached

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from routing.facts import Candidate, Facts
    from routing.policies.base import PolicyState


class LongestPrefix:
    name = "longest_prefix"
    wants_match = True

    def choose(self, facts: Facts, eligible: Sequence[Candidate], state: PolicyState) -> int:
        longest = equals([uncached(facts, candidate) for candidate in eligible])
        if len(longest) > 1:
            least = equals([eligible[i].in_flight for i in longest])
            longest = [longest[i] for i in least]
        return draw(longest, state.rng)

    def terms(self, facts: Facts, candidate: Candidate) -> Mapping[str, float]:
        return {"uncached_tokens": uncached(facts, candidate)}

"""The default: where the first token comes soonest, without spoiling the caches of live sessions.

    prefill(u) = p*u + q*u*(in - u/2)
    cost       = ahead + prefill(uncached) * (1 + behind) + tier_load + crowd + displace + settle + move      seconds

    ahead      what the backend will prefill before this request: the pending ones in its service order, the head
               credited with the time since the last first token, for a gateway sees only first tokens
    behind     pending requests that this one overtakes, each delayed by its prefill
    tier_load  cached tokens that have to come from host memory or disk
    crowd      0.02 * in flight: who decodes beside it, those included that will when it does
    displace   max(0, (live + in)/capacity - 0.8) * p * in: what live sessions lose; 0 with unknown capacity
    settle     0.05 * p * live, for a session without a home: those who live there will be back
    move       0.2, for leaving the session's home: its context would lie there in vain

Service order, beside plain arrival: an engine that caps prefills at L tokens a step lets this request pass longer
ones, which delay it by at most the prefill of max(uncached, L) of theirs; an engine that schedules by priority
serves shorter ones first.

Ties by fewer live tokens, then at random.

Source: the cost up to `displace` won against nine rules of other routers in simulation on recorded agent sessions.
Prevents: hard pins and longest-prefix rules that lose the tail; counting all pending work as if it were not moving,
which drives sessions from their caches; long sessions that push each other out. `settle` and `move` are for short
prompts behind a shared head: one backend would draw all new sessions to the head that it alone holds, and turns whose
own part is worth a few milliseconds would wander with every difference in load.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from routing.policies.base import draw, equals
from routing.prefill import prefill_s

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from routing.facts import Candidate, Facts, Knobs
    from routing.policies.base import PolicyState

TERMS: Final = ("ahead", "prefill", "tier_load", "crowd", "displace", "settle", "move")


def cost(facts: Facts, candidate: Candidate, knobs: Knobs, parts: list[float] | None = None) -> float:
    """Seconds. `parts` is filled with what they are the sum of, in the order of TERMS. O(1), or O(pending) with a
    prefill cap or priorities.
    """
    prompt = facts.prompt_tokens
    p = candidate.p
    cached = candidate.cached_tokens
    uncached = prompt - cached if cached < prompt else 0.0
    pending = candidate.pending
    ahead = 0.0
    behind = 0
    if pending:
        if candidate.prefill_cap_tokens is None and not candidate.by_priority:
            for head in pending:  # the way to the first of any collection
                ahead = candidate.pending_prefill_s - min(head.prefill_s, candidate.progress_s)
                break
            if ahead < 0.0:
                ahead = 0.0
        else:
            ahead, behind = _queue(uncached, candidate)
    tier_load = 0.0
    if candidate.host_tokens:
        tier_load = candidate.host_tokens / knobs.host_tokens_per_s
    if candidate.disk_tokens:
        tier_load += candidate.disk_tokens / knobs.disk_tokens_per_s
    displace = 0.0
    capacity = candidate.capacity_tokens
    if capacity:
        over = (candidate.live_tokens + prompt) / capacity - knobs.displace_threshold
        if over > 0.0:
            displace = over * p * prompt
    settle = move = 0.0
    if facts.home is None:
        settle = knobs.settle_share * p * candidate.live_tokens
    elif candidate.instance != facts.home:
        move = knobs.move_s
    # prefill_s(), written out: this runs for every candidate, and a call costs as much as all the rest
    prefill = (p + candidate.q * (prompt - 0.5 * uncached)) * uncached * (1 + behind)
    crowd = knobs.crowd_s * candidate.in_flight
    if parts is not None:
        parts += (ahead, prefill, tier_load, crowd, displace, settle, move)
    return ahead + prefill + tier_load + crowd + displace + settle + move


def _queue(uncached: float, candidate: Candidate) -> tuple[float, int]:
    """Seconds of prefill ahead, and requests overtaken, in an engine that does not serve strictly by arrival."""
    cap = candidate.prefill_cap_tokens
    passing = max(uncached, cap) if cap is not None else None
    ahead = 0.0
    behind = 0
    credit = max(0.0, candidate.progress_s)
    for other in candidate.pending:
        length = other.uncached_tokens
        left = max(0.0, other.prefill_s - credit)
        credit = 0.0
        if candidate.by_priority and length > uncached:
            behind += 1
        elif passing is not None and length > passing:
            behind += 1
            ahead += min(left, prefill_s(candidate.p, candidate.q, passing, other.prompt_tokens))
        else:
            ahead += left
    return ahead, behind


class Warm:
    name = "warm"
    wants_match = True

    def __init__(self, knobs: Knobs) -> None:
        self._knobs = knobs

    def choose(self, facts: Facts, eligible: Sequence[Candidate], state: PolicyState) -> int:
        knobs = self._knobs
        best = equals([cost(facts, candidate, knobs) for candidate in eligible], knobs.tie_s)
        if len(best) == 1:
            return best[0]
        fewest = equals([eligible[i].live_tokens for i in best], 0.0)
        return draw([best[i] for i in fewest], state.rng)

    def terms(self, facts: Facts, candidate: Candidate) -> Mapping[str, float]:
        parts: list[float] = []
        cost(facts, candidate, self._knobs, parts)
        return dict(zip(TERMS, parts, strict=True))

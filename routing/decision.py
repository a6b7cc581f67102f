"""One decision: filters have spoken, a policy picks, and the record says why.

Invariant: pure and synchronous. Same facts, candidates and rng state give the same Decision; a rejected candidate is
never chosen. The record keeps the inputs and works out costs and terms only when asked, by the formula that the
choice was made with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from routing.facts import value
from vocabulary import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from routing.facts import Candidate, Facts
    from routing.policies.base import Policy, PolicyState
    from vocabulary import BackendId, InstanceId

# through their class each costs ten times as much
_SESSION: Final = Kind.SESSION
_PREFIX: Final = Kind.PREFIX
_LOAD: Final = Kind.LOAD


@value
class Decision:
    """Where a request goes, and why. `explain` must run before the loads that `candidates` refer to move on."""

    facts: Facts
    candidates: Sequence[Candidate]
    """All of them, in the caller's order, with the rejected ones."""
    chosen: int | None
    """Position in `candidates`; None when every one was rejected, and then `kind` says nothing."""
    kind: Kind
    policy: Policy
    sequence: int
    config_id: str

    @property
    def candidate(self) -> Candidate | None:
        return None if self.chosen is None else self.candidates[self.chosen]

    @property
    def backend(self) -> BackendId | None:
        return None if self.chosen is None else self.candidates[self.chosen].backend

    @property
    def instance(self) -> InstanceId | None:
        return None if self.chosen is None else self.candidates[self.chosen].instance

    @property
    def prompt_tokens(self) -> float:
        return self.facts.prompt_tokens

    @property
    def cached_tokens(self) -> float:
        """Predicted, at most the prompt; 0 when nothing was chosen."""
        if self.chosen is None:
            return 0.0
        return min(self.candidates[self.chosen].cached_tokens, self.facts.prompt_tokens)

    def terms(self, position: int) -> Mapping[str, float]:
        """Named parts of a candidate's cost, in the policy's unit (seconds for `warm`)."""
        return self.policy.terms(self.facts, self.candidates[position])

    def cost(self, position: int) -> float | None:
        """Sum of the terms; None for a policy without a cost."""
        terms = self.terms(position)
        return sum(terms.values()) if terms else None

    def explain(self) -> dict[str, object]:
        """The whole record as plain JSON values. Holds no session, key or text of the request."""
        return {
            "policy": self.policy.name,
            "kind": self.kind.value if self.chosen is not None else None,
            "backend": self.backend,
            "config": self.config_id,
            "sequence": self.sequence,
            "attempt": self.facts.attempt,
            "has_session": self.facts.session is not None,
            "matched": self.facts.matched,
            "prompt_tokens": self.facts.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "candidates": [self._row(i, candidate) for i, candidate in enumerate(self.candidates)],
        }

    def _row(self, position: int, candidate: Candidate) -> dict[str, object]:
        terms = {} if candidate.rejected is not None else dict(self.terms(position))
        return {
            "backend": candidate.backend,
            "instance": candidate.instance,
            "chosen": position == self.chosen,
            "home": candidate.instance == self.facts.home,
            "rejected": candidate.rejected,
            "cost": sum(terms.values()) if terms else None,
            "terms": terms,
            "cached_tokens": candidate.cached_tokens,
            "host_tokens": candidate.host_tokens,
            "disk_tokens": candidate.disk_tokens,
            "in_flight": candidate.in_flight,
            "pending": len(candidate.pending),
            "pending_prefill_s": candidate.pending_prefill_s,
            "pending_uncached_tokens": candidate.pending_uncached_tokens,
            "progress_s": candidate.progress_s,
            "live_tokens": candidate.live_tokens,
            "capacity_tokens": candidate.capacity_tokens,
            "p": candidate.p,
            "q": candidate.q,
            "prefill_cap_tokens": candidate.prefill_cap_tokens,
            "by_priority": candidate.by_priority,
            "waiting": candidate.waiting,
            "kv_usage": candidate.kv_usage,
            "trust": candidate.trust.value,
        }


def decide(facts: Facts, candidates: Sequence[Candidate], policy: Policy, state: PolicyState) -> Decision:
    """Choose among the candidates that no filter rejected. Never raises for any of them; none left is `chosen`
    None.
    """
    places = [i for i, candidate in enumerate(candidates) if candidate.rejected is None]
    if not places:
        return Decision(facts, candidates, None, Kind.FALLBACK, policy, state.sequence, state.config_id)
    if len(places) == 1:
        chosen = places[0]
    elif len(places) == len(candidates):
        chosen = policy.choose(facts, candidates, state)
    else:
        chosen = places[policy.choose(facts, [candidates[i] for i in places], state)]
    kind = _kind(facts, candidates[chosen], policy, alone=len(places) == 1)
    return Decision(facts, candidates, chosen, kind, policy, state.sequence, state.config_id)


def _kind(facts: Facts, chosen: Candidate, policy: Policy, *, alone: bool) -> Kind:
    """The strongest reason first: what left no choice, then what was missing, then what spoke for the chosen one."""
    if facts.attempt:
        return Kind.RETRY
    if facts.failed_open:
        return Kind.FALLBACK
    if alone:
        return Kind.FORCED
    if not facts.matched and policy.wants_match:
        return Kind.FALLBACK
    if facts.home is not None and chosen.instance == facts.home:
        return _SESSION
    return _PREFIX if chosen.cached_tokens > 0 else _LOAD

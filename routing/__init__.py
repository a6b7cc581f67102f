"""Who gets the request: pure decisions over facts and candidates. No I/O, no clock, no knowledge of backends.

decide(facts: Facts, candidates: Sequence[Candidate], policy: Policy, state: PolicyState) -> Decision
build(name: str, knobs: Knobs) -> Policy                   raises UnknownPolicy; names in POLICY_NAMES
Facts(prompt_tokens, session, home, matched, attempt, head_key, failed_open)
Candidate(instance, backend, rejected, cached_tokens, host_tokens, disk_tokens, in_flight, pending, pending_prefill_s,
          pending_uncached_tokens, progress_s, live_tokens, capacity_tokens, p, q, prefill_cap_tokens, by_priority,
          waiting, kv_usage, trust)
Pending(uncached_tokens, prompt_tokens, prefill_s, sent_s)
PolicyState(sequence=0, rng=random.Random(), config_id="")  one per route and model; the caller raises `sequence`
Decision.chosen / .candidate / .backend / .instance / .kind / .cached_tokens / .explain()
prefill_s(p, q, uncached_tokens, prompt_tokens) -> float    for Pending.prefill_s
PrefillFit(p0, q0).add(uncached_tokens, prompt_tokens, ttft_s); .p, .q
"""

from __future__ import annotations

from routing.decision import Decision, decide
from routing.facts import Candidate, Facts, Knobs, Pending
from routing.fit import PrefillFit
from routing.policies import DEFAULT_POLICY, POLICY_NAMES, Policy, PolicyState, UnknownPolicy, build
from routing.prefill import DEFAULT_P, DEFAULT_Q, Rates, prefill_s, rates_of_coefficients

__all__ = [
    "DEFAULT_P",
    "DEFAULT_POLICY",
    "DEFAULT_Q",
    "POLICY_NAMES",
    "Candidate",
    "Decision",
    "Facts",
    "Knobs",
    "Pending",
    "Policy",
    "PolicyState",
    "PrefillFit",
    "Rates",
    "UnknownPolicy",
    "build",
    "decide",
    "prefill_s",
    "rates_of_coefficients",
]

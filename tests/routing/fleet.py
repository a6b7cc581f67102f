"""A few backends in virtual time, for decisions only: prefills one after another, then decodes side by side."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from dataclasses import dataclass, field

from routing import Candidate, Facts, Pending, Policy, PolicyState, decide, prefill_s
from vocabulary import BackendId, InstanceId


@dataclass
class SimBackend:
    number: int
    p: float
    pending: dict[int, Pending] = field(default_factory=dict)
    in_flight: int = 0
    free_at_s: float = 0.0
    last_first_token_s: float = 0.0
    head_cached: bool = False
    contexts: dict[int, int] = field(default_factory=dict)
    """Tokens of each user's conversation that lie here."""
    live: dict[int, int] = field(default_factory=dict)
    served: int = 0


@dataclass
class Outcome:
    users_per_backend: Counter[int]
    requests_per_backend: Counter[int]
    later_turns: int = 0
    later_turns_stayed: int = 0


@dataclass
class Fleet:
    """`users` x `turns` conversations behind one shared head, `at_once` of them at any time."""

    policy: Policy
    seed: int
    users: int = 200
    turns: int = 3
    head_tokens: int = 2048
    turn_tokens: int = 150
    decode_s: float = 1.0
    speeds: tuple[float, ...] = (2.2e-5,) * 4

    def run(self, at_once: int) -> Outcome:
        rng = random.Random(self.seed)
        state = PolicyState(rng=rng)
        backends = [SimBackend(i, p) for i, p in enumerate(self.speeds)]
        homes: dict[int, int] = {}
        outcome = Outcome(Counter(), Counter())
        # (time, order, what, user, turn, backend): "send", "token", "done"
        events = [(rng.random() * 0.01, user, "send", user, 0, -1) for user in range(min(at_once, self.users))]
        heapq.heapify(events)
        waiting = iter(range(at_once, self.users))
        order = self.users
        while events:
            now, _, what, user, turn, at = heapq.heappop(events)
            order += 1
            if what == "send":
                prompt = self.head_tokens + self.turn_tokens * (2 * turn + 1)
                at = self._place(backends, user, prompt, homes.get(user), now, state)
                if turn:
                    outcome.later_turns += 1
                    outcome.later_turns_stayed += at == homes[user]
                else:
                    outcome.users_per_backend[at] += 1
                outcome.requests_per_backend[at] += 1
                if user in homes:
                    backends[homes[user]].live.pop(user, None)
                homes[user] = at
                backends[at].live[user] = prompt
                heapq.heappush(events, (backends[at].free_at_s, order, "token", user, turn, at))
            elif what == "token":
                del backends[at].pending[user]
                backends[at].last_first_token_s = now
                heapq.heappush(events, (now + self.decode_s * rng.uniform(0.5, 1.5), order, "done", user, turn, at))
            else:
                backends[at].in_flight -= 1
                if turn + 1 < self.turns:
                    heapq.heappush(events, (now + rng.random(), order, "send", user, turn + 1, -1))
                elif (successor := next(waiting, None)) is not None:
                    heapq.heappush(events, (now, order, "send", successor, 0, -1))
        return outcome

    def _place(
        self,
        backends: list[SimBackend],
        user: int,
        prompt: int,
        home: int | None,
        now: float,
        state: PolicyState,
    ) -> int:
        candidates = [self._candidate(backend, user, prompt, now) for backend in backends]
        facts = Facts(float(prompt), home=None if home is None else InstanceId(home))
        decision = decide(facts, candidates, self.policy, state)
        state.sequence += 1
        assert decision.chosen is not None
        backend, chosen = backends[decision.chosen], candidates[decision.chosen]
        own_s = prefill_s(chosen.p, chosen.q, prompt - chosen.cached_tokens, prompt)
        backend.pending[user] = Pending(prompt - chosen.cached_tokens, prompt, own_s, now)
        backend.in_flight += 1
        backend.free_at_s = max(now, backend.free_at_s) + own_s
        backend.head_cached = True
        backend.contexts[user] = prompt
        return decision.chosen

    def _candidate(self, backend: SimBackend, user: int, prompt: int, now: float) -> Candidate:
        head = float(self.head_tokens) if backend.head_cached else 0.0
        pending = list(backend.pending.values())
        return Candidate(
            instance=InstanceId(backend.number),
            backend=BackendId(f"b{backend.number}"),
            cached_tokens=min(float(backend.contexts.get(user, head)), float(prompt)),
            in_flight=backend.in_flight,
            pending=pending,
            pending_prefill_s=sum(one.prefill_s for one in pending),
            pending_uncached_tokens=sum(one.uncached_tokens for one in pending),
            progress_s=now - max(backend.last_first_token_s, pending[0].sent_s) if pending else 0.0,
            live_tokens=float(sum(tokens for other, tokens in backend.live.items() if other != user)),
            p=backend.p,
        )

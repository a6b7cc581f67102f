"""From a prepared request to a place on a backend, and what is learned from how it went.

The order of one request: `place` (match, decide, lease: one synchronous step, so that the next choice sees this one),
then `answered`, `first_token`, and exactly one of `settle` and `abandon`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from backends.health import State
from gateway import session_id
from gateway.eligibility import ease_in, opened, rejected
from gateway.observe import Usage
from gateway.placement import Placement
from routing import Candidate, Decision, Facts, decide, prefill_s
from routing.ramp import pay
from vocabulary import KEY_BYTES
from vocabulary.errors import LocalResourceError, NoBackendAvailable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from backends.backend import Backend
    from backends.registry import Registry
    from gateway.fleet import FleetState
    from gateway.metrics import Metrics
    from gateway.prepare import Prepared
    from gateway.sessions import SessionStore
    from prefix_index.protocol import Holder, PrefixIndex
    from vocabulary import SessionKey
    from vocabulary.errors import UpstreamError

_UP: Final = State.UP
_NO_MATCHES: Final[dict[Holder, int]] = {}


class Router:
    def __init__(
        self,
        registry: Registry,
        index: PrefixIndex,
        sessions: SessionStore,
        fleet: FleetState,
        metrics: Metrics,
        clock: Callable[[], float],
        *,
        decision_headers: bool,
        fail_open: bool = False,
        on_health: Callable[[Backend], None],
    ) -> None:
        self._registry = registry
        self._index = index
        self._sessions = sessions
        self._fleet = fleet
        self._metrics = metrics
        self._clock = clock
        self.decision_headers = decision_headers
        self.fail_open = fail_open
        """Where no backend of a model is healthy, its requests are sent all the same."""
        self._on_health = on_health

    # The choice.

    def _continued(self, prepared: Prepared) -> SessionKey:
        """The session that the prompt extends, or a new one."""
        sessions, keys, prompt_id = self._sessions, prepared.keys, prepared.prompt_id
        caller = prepared.caller
        found = sessions.find_by_lineage(caller.tenant, keys, prepared.resumed_blocks, prompt_id, prepared.resumed_id)
        return found or sessions.unused(session_id.lineage_key(caller.lineage_owner, keys, prompt_id))

    def candidates(self, prepared: Prepared, tried: Collection[int], now_s: float) -> list[Candidate]:
        """One candidate per backend that has the model, rejected ones included."""
        if prepared.lineage and prepared.session is None:
            prepared.session = self._continued(prepared)
        matches = self._index.match(prepared.keys) if prepared.keys else _NO_MATCHES
        prepared.home, live = self._sessions.outlook(prepared.session)
        prompt_tokens, tokens_per_block = prepared.prompt_tokens, prepared.tokens_per_block
        most_blocks = len(prepared.keys) // KEY_BYTES
        if most_blocks * tokens_per_block >= prompt_tokens:
            most_blocks -= 1  # engines compute the last token in any case, and its block with it
        states = self._fleet.states
        candidates = []
        served_as = prepared.served_as
        if served_as and prepared.tied_to is None:
            backends = self._registry.serving(served_as)
        else:
            backends = self._unusual(prepared)
        for backend in backends:
            instance = backend.instance
            instance_id = instance.id
            pending = instance.pending
            progress_s = instance.progress_s(now_s) if pending else 0.0
            state = states[instance_id]
            blocks = host = disk = 0
            if matches:
                if state.reported is None:
                    blocks = matches.get(state.holder, 0)
                else:
                    blocks, host, disk = state.reported.lookup(matches)
            usable = backend.health.state is _UP and not backend.draining and not tried
            candidates.append(
                Candidate(
                    instance_id,
                    state.backend,
                    None if usable else rejected(backend, tried, now_s),
                    min(blocks, most_blocks) * tokens_per_block if blocks else 0.0,
                    host * tokens_per_block if host else 0.0,
                    disk * tokens_per_block if disk else 0.0,
                    instance.in_flight,
                    pending,
                    instance.pending_prefill_s,
                    instance.pending_uncached_tokens,
                    progress_s,
                    live.get(instance_id, 0),
                    state.capacity_tokens,
                    state.p,
                    state.q,
                    state.prefill_cap_tokens,
                    state.by_priority,
                    state.waiting,
                    state.kv_usage,
                    state.trust,
                )
            )
        if self._fleet.ramps:
            ease_in(self._fleet, candidates, prepared.home, now_s)
        return candidates

    def _unusual(self, prepared: Prepared) -> tuple[Backend, ...]:
        """Of a request that names no model, or goes on with what one instance keeps (any will do once that is gone)."""
        served_as = prepared.served_as
        backends = self._registry.serving(served_as) if served_as else tuple(self._registry)
        return tuple(each for each in backends if each.instance.id == prepared.tied_to) or backends

    def decide(self, prepared: Prepared, attempt: int, candidates: Sequence[Candidate]) -> Decision:
        """Pure but for the route's random numbers: reserves nothing."""
        facts = Facts(
            prepared.prompt_tokens,
            prepared.session,
            prepared.home,
            prepared.matched,
            attempt,
            prepared.keys[:KEY_BYTES] or None,
        )
        model = prepared.model
        decision = decide(facts, candidates, model.policy, model.state)
        if decision.chosen is None and self.fail_open:
            again = opened(candidates, [self._fleet.states[one.instance].instance.backend for one in candidates])
            if again is not None:
                return decide(replace(facts, failed_open=True), again, model.policy, model.state)
        return decision

    def place(self, prepared: Prepared, attempt: int = 0, tried: Collection[int] = ()) -> Placement:
        """Choose and reserve in one step. Raises NoBackendAvailable."""
        now_s = self._clock()
        candidates = self.candidates(prepared, tried, now_s)
        decision = self.decide(prepared, attempt, candidates)
        prepared.model.state.sequence += 1
        chosen = decision.candidate
        if chosen is None:
            raise self._nobody(prepared, now_s)
        state = self._fleet.states[chosen.instance]
        instance = state.instance
        uncached = prepared.prompt_tokens - chosen.cached_tokens
        work_s = prefill_s(chosen.p, chosen.q, uncached, prepared.prompt_tokens)
        # what was not read of a prompt would teach a wrong speed
        unqueued = not instance.pending and prepared.tokens_per_block > 0.0
        lease = instance.lease(uncached, prepared.prompt_tokens, work_s, now_s)
        health = instance.backend.health
        if health.state is not _UP:
            health.try_with(lease)
        if not prepared.streams:
            ahead_s = max(0.0, chosen.pending_prefill_s - chosen.progress_s)
            lease.assumed_first_token_s = now_s + ahead_s + work_s
        if self._fleet.ramps:
            pay(candidates, self._fleet.ramps, chosen.instance, prepared.home, now_s)
        placement = Placement(prepared, decision, lease, state, now_s)
        placement.unqueued = unqueued
        self._remember(placement, chosen)
        self._tell(placement)
        self._metrics.decisions[decision.kind].value += 1
        self._metrics.decision_seconds.observe(self._clock() - now_s)
        return placement

    def _nobody(self, prepared: Prepared, now_s: float) -> NoBackendAvailable:
        """With the time after which the first ejected backend is tried again, where that is all that is wrong."""
        error = NoBackendAvailable("no backend that serves this model can take requests now")
        waits_s = [
            backend.health.retry_in_s(now_s)
            for backend in self._registry.serving(prepared.served_as)
            if not backend.draining and backend.health.reachable
        ]
        error.retry_after_s = max(1.0, min(waits_s, default=1.0))
        return error

    def _remember(self, placement: Placement, chosen: Candidate) -> None:
        """What is routed there is taken to be cached there from now on: the next turn may come before this one ends."""
        prepared, state = placement.prepared, placement.state
        if prepared.keys:
            if state.tokens_per_block != prepared.tokens_per_block:
                self._fleet.use_block_size(state, prepared.tokens_per_block)
            placement.held_blocks = round(chosen.cached_tokens / prepared.tokens_per_block)
            self._index.store(state.holder, prepared.keys)
            if state.reported is not None:
                state.reported.sent(prepared.keys, placement.sent_s)
        if prepared.session is not None:
            self._sessions.record(
                prepared.session,
                chosen.instance,
                prepared.prompt_tokens,
                prepared.caller.tenant if prepared.lineage else None,
                prepared.keys if prepared.lineage else None,
                prepared.prompt_id,
            )

    def _tell(self, placement: Placement) -> None:
        decision = placement.decision
        cached = int(decision.cached_tokens)
        placement.model_metrics.cached_predicted.value += cached
        if self.decision_headers:
            state = placement.state
            if placement.prepared.caller.sees_decisions:
                placement.header_lines = state.header_lines[decision.kind] % cached
            else:
                placement.header_lines = b"x-warmroute-backend: %b\r\n" % state.backend.encode()

    # What came of it.

    def answered(self, placement: Placement, *, failed: bool) -> None:
        """The backend's response head is here; `failed`: a 5xx."""
        backend = placement.lease.instance.backend
        now_s = self._clock()
        if failed:
            placement.metrics.error("status").value += 1
        health, lease = backend.health, placement.lease
        if health.request_failed(now_s, lease) if failed else health.request_succeeded(now_s):
            self._on_health(backend)

    def busy(self, placement: Placement) -> None:
        """It has no room, it says (503). That is no failure: ejecting full backends would take out a whole fleet under
        load (O13). With nothing running there, by its own figures and by ours, it is broken."""
        instance = placement.lease.instance
        load = instance.engine_load
        if instance.in_flight > 1 or (load is not None and (load.running or load.waiting)):
            placement.metrics.error("busy").value += 1
        else:
            self.answered(placement, failed=True)

    def failed(self, placement: Placement, error: UpstreamError) -> None:
        backend = placement.lease.instance.backend
        placement.metrics.error(error.reason).value += 1
        if isinstance(error, LocalResourceError):
            return  # no fault of the backend's (O63)
        if backend.health.request_failed(self._clock(), placement.lease):
            self._on_health(backend)

    def first_token(self, placement: Placement, now_s: float) -> None:
        """The first event of a stream."""
        placement.lease.first_token(now_s)
        ttft_s = now_s - placement.sent_s
        placement.model_metrics.ttft.observe(ttft_s)
        if placement.unqueued:
            decision = placement.decision
            placement.state.learn(decision.prompt_tokens - decision.cached_tokens, decision.prompt_tokens, ttft_s)

    def settle(self, placement: Placement, usage: Usage | None, chunks: int) -> None:
        """The answer is complete. `chunks` stands for the completion tokens where the engine reports none."""
        if not placement.open:
            return
        placement.open = False
        placement.lease.end(self._clock())
        metrics, prepared = placement.model_metrics, placement.prepared
        if usage is None:
            if placement.usage_asked and chunks:
                self._fleet.calibration.settled(placement, Usage(), self._clock())
            metrics.prompt_tokens.value += int(prepared.prompt_tokens)
            metrics.completion_tokens.value += chunks
            return
        metrics.prompt_tokens.value += usage.prompt_tokens
        metrics.completion_tokens.value += usage.completion_tokens if usage.completion_tokens is not None else chunks
        prepared.model.learn(prepared.units, usage.prompt_tokens)
        cached = usage.cached_tokens
        if cached is not None:
            metrics.cached_reported.value += cached
        self._fleet.calibration.settled(placement, usage, self._clock())

    def abandon(self, placement: Placement, *, cancelled: bool = False) -> None:
        """The attempt ends without a complete answer. What an attempt that failed was to leave in the cache is not
        there; of one whose client left, nobody knows how far it came."""
        if not placement.open:
            return
        placement.open = False
        placement.lease.end(self._clock())
        prepared, state = placement.prepared, placement.state
        if state.reported is not None:
            state.reported.failed(prepared.keys)
        if not cancelled and prepared.keys and not placement.lease.instance.retired:
            self._index.remove(state.holder, prepared.keys, placement.held_blocks)

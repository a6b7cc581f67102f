"""From a prepared request to a place on a backend, and what is learned from how it went.

The order of one request: `place` (match, decide, lease: one synchronous step, so that the next choice sees this one),
then `answered`, `first_token`, and exactly one of `settle` and `abandon`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from backends.health import State
from gateway import session_id
from gateway.prepare import EVERYONE
from routing import Candidate, Decision, Facts, decide, prefill_s
from vocabulary import KEY_BYTES, Kind
from vocabulary.errors import NoBackendAvailable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from backends.backend import Backend
    from backends.instance import Lease
    from backends.registry import Registry
    from gateway.fleet import FleetState, InstanceState
    from gateway.metrics import BackendMetrics, Metrics, ModelMetrics
    from gateway.observe import Usage
    from gateway.prepare import Prepared
    from gateway.sessions import SessionStore
    from prefix_index.protocol import Holder, PrefixIndex
    from vocabulary import SessionKey
    from vocabulary.errors import UpstreamError

_UP: Final = State.UP
_NO_MATCHES: Final[dict[Holder, int]] = {}


class Placement:
    """One attempt's place: the decision, the lease, and what to tell and to learn."""

    __slots__ = (
        "decision",
        "header_lines",
        "held_blocks",
        "lease",
        "metrics",
        "model_metrics",
        "open",
        "prepared",
        "sent_s",
        "state",
        "unqueued",
    )

    def __init__(
        self, prepared: Prepared, decision: Decision, lease: Lease, state: InstanceState, sent_s: float
    ) -> None:
        self.prepared = prepared
        self.decision = decision
        self.lease = lease
        self.state = state
        self.metrics: BackendMetrics = state.metrics
        self.model_metrics: ModelMetrics = state.metrics.model(prepared.model.name)
        self.sent_s = sent_s
        self.open = True
        self.unqueued = False
        """Nothing waited there before it: its time to first token is its prefill."""
        self.held_blocks = 0
        """Blocks of the prompt that the index believed there before this request."""
        self.header_lines = b""


class Router:
    def __init__(
        self,
        registry: Registry,
        index: PrefixIndex,
        sessions: SessionStore,
        fleet: FleetState,
        metrics: Metrics,
        secret: bytes,
        clock: Callable[[], float],
        *,
        decision_headers: bool,
        on_health: Callable[[Backend], None],
    ) -> None:
        self._registry = registry
        self._index = index
        self._sessions = sessions
        self._fleet = fleet
        self._metrics = metrics
        self._everyone = session_id.lineage_owner(EVERYONE, secret)
        self._clock = clock
        self._decision_headers = decision_headers
        self._on_health = on_health

    # The choice.

    def _continued(self, prepared: Prepared) -> SessionKey:
        """The session that the prompt extends, or a new one."""
        sessions, keys, prompt_id = self._sessions, prepared.keys, prepared.prompt_id
        found = sessions.find_by_lineage(EVERYONE, keys, prepared.resumed_blocks, prompt_id, prepared.resumed_id)
        return found or sessions.unused(session_id.lineage_key(self._everyone, keys, prompt_id))

    def candidates(self, prepared: Prepared, tried: Collection[int], now_s: float) -> list[Candidate]:
        """One candidate per backend that has the model, rejected ones included."""
        if prepared.lineage and prepared.session is None:
            prepared.session = self._continued(prepared)
        matches = self._index.match(prepared.keys) if prepared.keys else _NO_MATCHES
        prepared.home, live = self._sessions.outlook(prepared.session)
        prompt_tokens, tokens_per_block = prepared.prompt_tokens, prepared.tokens_per_block
        states = self._fleet.states
        candidates = []
        for backend in self._registry.serving(prepared.served_as):
            instance = backend.instance
            instance_id = instance.id
            pending = instance.pending
            progress_s = instance.progress_s(now_s) if pending else 0.0
            state = states[instance_id]
            blocks = matches.get(state.holder, 0) if matches else 0
            usable = backend.health.state is _UP and not backend.draining and not tried
            candidates.append(
                Candidate(
                    instance_id,
                    state.backend,
                    None if usable else _rejected(backend, tried, now_s),
                    min(blocks * tokens_per_block, prompt_tokens) if blocks else 0.0,
                    0.0,
                    0.0,
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
        return candidates

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
        return decide(facts, candidates, model.policy, model.state)

    def place(self, prepared: Prepared, attempt: int = 0, tried: Collection[int] = ()) -> Placement:
        """Choose and reserve in one step. Raises NoBackendAvailable."""
        now_s = self._clock()
        candidates = self.candidates(prepared, tried, now_s)
        decision = self.decide(prepared, attempt, candidates)
        prepared.model.state.sequence += 1
        chosen = decision.candidate
        if chosen is None:
            raise NoBackendAvailable("no backend that serves this model can take requests now")
        state = self._fleet.states[chosen.instance]
        instance = state.instance
        uncached = prepared.prompt_tokens - chosen.cached_tokens
        work_s = prefill_s(chosen.p, chosen.q, uncached, prepared.prompt_tokens)
        unqueued = not instance.pending
        lease = instance.lease(uncached, prepared.prompt_tokens, work_s, now_s)
        if not prepared.streams:
            ahead_s = max(0.0, chosen.pending_prefill_s - chosen.progress_s)
            lease.assumed_first_token_s = now_s + ahead_s + work_s
        placement = Placement(prepared, decision, lease, state, now_s)
        placement.unqueued = unqueued
        self._remember(placement, chosen)
        self._tell(placement)
        self._metrics.decisions[decision.kind].value += 1
        self._metrics.decision_seconds.observe(self._clock() - now_s)
        return placement

    def _remember(self, placement: Placement, chosen: Candidate) -> None:
        """What is routed there is taken to be cached there from now on: the next turn may come before this one ends."""
        prepared, state = placement.prepared, placement.state
        if prepared.keys:
            if state.tokens_per_block != prepared.tokens_per_block:
                self._fleet.use_block_size(state, prepared.tokens_per_block)
            placement.held_blocks = round(chosen.cached_tokens / prepared.tokens_per_block)
            self._index.store(state.holder, prepared.keys)
        if prepared.session is not None:
            self._sessions.record(
                prepared.session,
                chosen.instance,
                prepared.prompt_tokens,
                EVERYONE if prepared.lineage else None,
                prepared.keys if prepared.lineage else None,
                prepared.prompt_id,
            )

    def _tell(self, placement: Placement) -> None:
        decision = placement.decision
        cached = int(decision.cached_tokens)
        placement.model_metrics.cached_predicted.value += cached
        if self._decision_headers:
            placement.header_lines = placement.state.header_lines[decision.kind] % cached

    # What came of it.

    def answered(self, placement: Placement, *, failed: bool) -> None:
        """The backend's response head is here; `failed`: a 5xx."""
        backend = placement.lease.instance.backend
        now_s = self._clock()
        if failed:
            placement.metrics.error("status").value += 1
        changed = backend.health.request_failed(now_s) if failed else backend.health.request_succeeded(now_s)
        if changed:
            self._on_health(backend)

    def failed(self, placement: Placement, error: UpstreamError) -> None:
        backend = placement.lease.instance.backend
        placement.metrics.error(error.reason).value += 1
        if backend.health.request_failed(self._clock()):
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
            metrics.prompt_tokens.value += int(prepared.prompt_tokens)
            metrics.completion_tokens.value += chunks
            return
        metrics.prompt_tokens.value += usage.prompt_tokens
        metrics.completion_tokens.value += usage.completion_tokens if usage.completion_tokens is not None else chunks
        prepared.model.learn(prepared.units, usage.prompt_tokens)
        cached = usage.cached_tokens
        if cached is not None:
            metrics.cached_reported.value += cached
            self._correct(placement, cached)

    def _correct(self, placement: Placement, cached_tokens: int) -> None:
        if placement.lease.instance.retired:
            return
        self._fleet.reported(placement.state, placement.decision.cached_tokens, cached_tokens)

    def abandon(self, placement: Placement, *, cancelled: bool = False) -> None:
        """The attempt ends without a complete answer. What an attempt that failed was to leave in the cache is not
        there; of one whose client left, nobody knows how far it came."""
        if not placement.open:
            return
        placement.open = False
        placement.lease.end(self._clock())
        prepared = placement.prepared
        if not cancelled and prepared.keys and not placement.lease.instance.retired:
            self._index.remove(placement.state.holder, prepared.keys, placement.held_blocks)


def _rejected(backend: Backend, tried: Collection[int], now_s: float) -> str | None:
    """Why a backend cannot take this request now."""
    if tried and backend.instance.id in tried:
        return "tried"
    if backend.draining:
        return "draining"
    health = backend.health
    return None if health.admits(backend.instance.in_flight, now_s) else health.state.value


def explain(router: Router, prepared: Prepared, now_s: float) -> dict[str, object]:
    """The decision for a request that is not sent: reserves nothing, learns nothing."""
    decision = router.decide(prepared, 0, router.candidates(prepared, (), now_s))
    record = decision.explain()
    record["model"] = prepared.model.name
    record["route"] = prepared.model.route
    if decision.chosen is None:
        record["kind"] = None
    elif decision.kind is Kind.FALLBACK:
        record["reason"] = "the prompt could not be encoded; routed by load"
    return record

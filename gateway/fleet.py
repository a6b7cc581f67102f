"""What the gateway keeps per instance beside its load: the prefill fit, the index holder's size, the metrics handle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from backends.health import State
from gateway.calibration import Calibration, Record
from gateway.headers import ResponseLines
from prefix_index.protocol import Holder
from routing import DEFAULT_P, DEFAULT_Q, PrefillFit
from routing.ramp import TOGETHER, Ramp, worth
from vocabulary import Kind, Trust

if TYPE_CHECKING:
    from backends.backend import BackendSpec
    from backends.instance import Instance
    from backends.load import EngineLoad
    from gateway.metrics import BackendMetrics, Metrics
    from gateway.reported import ReportedCache
    from gateway.sessions import SessionStore
    from prefix_index.protocol import PrefixIndex
    from vocabulary import BackendId, InstanceId

_SHRINK: Final = 0.97
_EASE: Final = 0.99
_GROW: Final = 1.002
_TRUE: Final = 0.9
"""Share of the predicted tokens from which on a prediction has come true."""
_LEAST: Final = 0.2


class InstanceState:
    """What a decision reads of an instance, kept ready: the hot path copies attributes and computes nothing.

    `capacity_factor` corrects the assumed size of the instance's cache by what it reports: an index that assumes three
    times too much ruins every rule that trusts it.
    """

    __slots__ = (
        "_began_with",
        "asks_usage",
        "backend",
        "by_priority",
        "capacity_factor",
        "capacity_tokens",
        "fit",
        "header_lines",
        "holder",
        "instance",
        "kv_usage",
        "metrics",
        "p",
        "prefill_cap_tokens",
        "q",
        "record",
        "reported",
        "response_lines",
        "tokens_per_block",
        "trust",
        "waiting",
    )

    def __init__(self, instance: Instance, metrics: BackendMetrics, fit: PrefillFit) -> None:
        spec = instance.backend.spec
        self.instance = instance
        self.backend = spec.name
        self.header_lines = {kind: _header_lines(spec.name, kind) for kind in Kind}
        """Response header lines by the kind of a decision, with a place for the predicted cached tokens."""
        self.metrics = metrics
        self.fit = fit
        self._began_with = spec.prefill_s_per_token, spec.prefill_s_per_token2
        self.p = fit.p
        self.q = fit.q
        self.holder = Holder(instance.id)
        """What is sent there is taken to be in its cache."""
        self.reported: ReportedCache | None = None
        """Of an engine that tells what it has cached; `holder` is its one for predictions then."""
        self.trust = Trust.ESTIMATED
        self.prefill_cap_tokens = spec.prefill_cap_tokens
        self.by_priority = spec.by_priority
        self.capacity_tokens = spec.capacity_tokens
        self.waiting: int | None = None
        self.kv_usage: float | None = None
        self.response_lines = ResponseLines()
        self.capacity_factor = 1.0
        self.record = Record()
        self.asks_usage = True
        """Until an answer shows that its streams lose by it."""
        self.tokens_per_block = 0.0
        """Engine tokens in one index block, of the last request placed here."""

    def learn(self, uncached_tokens: float, prompt_tokens: float, ttft_s: float) -> None:
        """The time to first token of a request that met no queue."""
        fit = self.fit
        fit.add(uncached_tokens, prompt_tokens, ttft_s)
        self.p, self.q = fit.p, fit.q

    def read_load(self, load: EngineLoad) -> None:
        """The engine's own figures; the operator's capacity goes before the reported one."""
        self.waiting, self.kv_usage = load.waiting, load.kv_usage
        self.capacity_tokens = self.instance.backend.spec.capacity_tokens or load.capacity_tokens

    def read_spec(self) -> None:
        """The operator's settings are other ones. What was learned goes on, unless the start values are others."""
        spec = self.instance.backend.spec
        self.prefill_cap_tokens = spec.prefill_cap_tokens
        self.by_priority = spec.by_priority
        self.capacity_tokens = self.instance.backend.capacity_tokens
        if (spec.prefill_s_per_token, spec.prefill_s_per_token2) != self._began_with:
            self._began_with = spec.prefill_s_per_token, spec.prefill_s_per_token2
            self.fit = _first_fit(spec)
            self.p, self.q = self.fit.p, self.fit.q

    def capacity_blocks(self) -> int | None:
        if self.capacity_tokens is None or not self.tokens_per_block:
            return None
        return max(1, int(self.capacity_tokens * self.capacity_factor / self.tokens_per_block))


def _first_fit(spec: BackendSpec) -> PrefillFit:
    return PrefillFit(spec.prefill_s_per_token or DEFAULT_P, spec.prefill_s_per_token2 or DEFAULT_Q)


def _header_lines(backend: BackendId, kind: Kind) -> bytes:
    name = backend.replace("%", "%%")
    return (
        f"x-warmroute-backend: {name}\r\nx-warmroute-decision: {kind.value}\r\nx-warmroute-cached-tokens: %d\r\n"
    ).encode()


class FleetState:
    """Hears from the registry when instances begin and end; forgets all that was known of one that ended."""

    def __init__(self, index: PrefixIndex, sessions: SessionStore, metrics: Metrics) -> None:
        self._index = index
        self._sessions = sessions
        self._metrics = metrics
        self.states: dict[InstanceId, InstanceState] = {}
        """Of the current instances; for reading."""
        self.slow_start_s = 0.0
        self._since_s: dict[InstanceId, float] = {}
        """When each began to take requests."""
        self.ramps: dict[InstanceId, Ramp] = {}
        """Of the instances that may not be past their slow start; empty nearly always."""
        self.calibration = Calibration(self.flush, self.reported)
        self._lost = ("", 0)
        """The backend whose instance was retired last, and how many blocks of it the index had."""

    def of(self, instance: Instance) -> InstanceState:
        return self.states[instance.id]

    def instance_started(self, instance: Instance) -> None:
        spec = instance.backend.spec
        state = InstanceState(instance, self._metrics.backend(spec.name), _first_fit(spec))
        self.states[instance.id] = state
        (name, blocks), self._lost = self._lost, ("", 0)
        if blocks and instance.backend.restarts and name == spec.name:
            self.calibration.restarted(state, blocks, instance.started_s)

    def instance_retired(self, instance: Instance) -> None:
        self.states.pop(instance.id, None)
        self.ramps.pop(instance.id, None)
        self._since_s.pop(instance.id, None)
        self._lost = (instance.backend.name, self._index.clear(instance.id))
        self._index.set_capacity(Holder(instance.id), None)
        self._sessions.forget_instance(instance.id)

    def spec_changed(self, instance: Instance) -> None:
        state = self.states[instance.id]
        state.read_spec()
        self._resize(state)

    def believe(self, state: InstanceState, cache: ReportedCache | None) -> None:
        """From now on by what the engine tells, or, with None, by what is sent there alone."""
        state.reported = cache
        state.holder = Holder(state.instance.id) if cache is None else cache.predicted
        state.trust = Trust.ESTIMATED
        if state.instance.id in self.states:
            self._resize(state)

    def flush(self, instance: Instance) -> int:
        """Its cache is empty, though it lives on: no prefix is there and no session at home. Returns the blocks that
        were thought to be."""
        state = self.states[instance.id]
        dropped = self._index.clear(instance.id)
        if state.reported is not None:
            dropped += state.reported.purge() + state.reported.forget_predictions()
        self._sessions.forget_instance(instance.id)
        self._resize(state)
        return dropped

    def set_slow_start(self, slow_start_s: float) -> None:
        """0: none, and those under way end."""
        self.slow_start_s = slow_start_s
        if not slow_start_s:
            self.ramps.clear()

    def ease_in(self, instance: Instance, now_s: float) -> None:
        """It takes requests from now on, and is cold or was away. Beside none that is older there is nothing to ease: a
        fleet that starts together decides as if there were no slow start, and as fast."""
        if instance.id not in self.states:
            return
        self.ramps.pop(instance.id, None)
        self._since_s[instance.id] = now_s
        if self.slow_start_s and self._has_elder(instance, now_s - TOGETHER * self.slow_start_s):
            self.ramps[instance.id] = Ramp(now_s, self.slow_start_s)

    def _has_elder(self, instance: Instance, before_s: float) -> bool:
        return any(
            other is not instance
            and other.backend.health.state is State.UP
            and self._since_s.get(other.id, float("-inf")) <= before_s
            for other in (state.instance for state in self.states.values())
        )

    def worth(self, instance: InstanceId, now_s: float) -> float:
        """Fair shares of new sessions that it may have by its age; 1 for one past its slow start."""
        ramp = self.ramps.get(instance)
        return 1.0 if ramp is None else min(1.0, worth(now_s - ramp.began_s, ramp.slow_start_s))

    def end_ramps(self, now_s: float) -> None:
        """Forgets those that are over."""
        for instance in [instance for instance, ramp in self.ramps.items() if ramp.over(now_s)]:
            del self.ramps[instance]

    def load_changed(self, instance: Instance) -> None:
        state = self.states.get(instance.id)
        if state is not None and instance.engine_load is not None:
            state.read_load(instance.engine_load)
            self._resize(state)

    def use_block_size(self, state: InstanceState, tokens_per_block: float) -> None:
        """Sizes are in tokens, the index counts blocks: follow a token ratio that is being learned (within 5%)."""
        if abs(tokens_per_block - state.tokens_per_block) > 0.05 * state.tokens_per_block:
            state.tokens_per_block = tokens_per_block
            self._resize(state)

    def reported(self, state: InstanceState, predicted_tokens: float, cached_tokens: float) -> None:
        """The engine said how much of a prompt it had cached: a miss shrinks the assumed cache, and so do shortfalls
        while the running bias tells of them; hits let it grow back.
        """
        if predicted_tokens <= 0:
            return
        before = state.capacity_factor
        if cached_tokens < 0.5 * predicted_tokens:
            state.capacity_factor = max(_LEAST, before * _SHRINK)
        elif state.record.bias >= _TRUE:
            state.capacity_factor = min(1.0, before * _GROW)
        elif cached_tokens < _TRUE * predicted_tokens:
            state.capacity_factor = max(_LEAST, before * _EASE)
        if state.capacity_factor != before:
            self._resize(state)

    def _resize(self, state: InstanceState) -> None:
        self._index.set_capacity(state.holder, state.capacity_blocks())

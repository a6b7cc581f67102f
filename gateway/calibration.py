"""Predicted against reported cached tokens, per instance: the running bias, and what is suspected when they part.

Invariants: entries are dropped only after persistent misses, never of an instance whose events are exact; a suspicion
ends with evidence that it is over, with the instance, or, where the cause is of one moment, with time.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from gateway.diagnosis import MISSES, OF_LAST, Cause, Finding, Known, Sample, diagnose
from vocabulary import Trust

if TYPE_CHECKING:
    from collections.abc import Callable

    from structlog.typing import FilteringBoundLogger

    from backends.instance import Instance
    from gateway.fleet import InstanceState
    from gateway.observe import Usage
    from gateway.placement import Placement

_WINDOW: Final = 64
_ALL: Final = (1 << OF_LAST) - 1
_WEIGHT: Final = 0.05
"""Of the newest request in the running bias."""
_JUDGE_EVERY_S: Final = 1.0
_HOLD_S: Final = 60.0
"""A suspicion is shown at least this long, and one of a moment that is past no longer."""
_PAST: Final = frozenset({Cause.COLD_RESTART, Cause.CAPACITY})
_COUNTED: Final = frozenset({"chat", "completions"})
"""Endpoints whose prompts the engine takes as they are."""
_ENOUGH_HITS: Final = 3
"""End a suspicion that nothing speaks for any more."""
_SEEN_OTHERWISE: Final = frozenset({Cause.TEMPLATE, Cause.BLOCK_SIZE})
"""Need no hit to be over: hits come with them too."""


class Suspect(NamedTuple):
    cause: Cause
    detail: str
    since_s: float
    """Clock time at which it was first suspected."""
    seen_s: float
    """Clock time of the last evidence."""


class Record:
    """What the answers of one instance say of the predictions for it."""

    __slots__ = ("_hits", "_judged_s", "_last", "bias", "has_hit", "reports", "samples", "suspect", "weighed")

    def __init__(self) -> None:
        self.samples: deque[Sample] = deque(maxlen=_WINDOW)
        self.bias = 1.0
        """Reported over predicted cached tokens, running mean; at most 1: more than predicted is no fault."""
        self.weighed = 0
        """Requests that count in it."""
        self.reports = False
        self.has_hit = False
        self.suspect: Suspect | None = None
        self._judged_s = 0.0
        self._hits = 0
        """Since the last evidence for the suspicion."""
        self._last = 0
        """The last certain expectations as bits, 1 for a miss."""

    def add(self, sample: Sample, now_s: float) -> bool:
        """Returns whether it is time to judge."""
        self.samples.append(sample)
        cached, predicted = sample.cached, sample.predicted
        if cached is not None:
            self.reports = True
        if self.reports and predicted >= sample.block > 0:
            share = min(1.0, (cached or 0) / predicted)
            self.bias += _WEIGHT * (share - self.bias)
            self.weighed += 1
            if share >= 0.5:
                self.has_hit = True
                self._hits += 1
                self._last = self._last << 1 & _ALL
            elif sample.sure and sample.expects:
                self._last = (self._last << 1 | sample.missed) & _ALL
        return self.hopeless or now_s - self._judged_s >= _JUDGE_EVERY_S

    @property
    def hopeless(self) -> bool:
        """Misses are so many that nothing of what is believed can be there."""
        return self._last.bit_count() >= MISSES

    def judge(self, known: Known, now_s: float) -> None:
        """Suspect anew."""
        self._judged_s = now_s
        finding = diagnose(self.samples, known)
        if finding is not None:
            self.suspicion(finding, now_s)
        elif self.suspect is not None and now_s - self.suspect.seen_s >= _HOLD_S and self._answered(self.suspect):
            self.suspect = None

    def _answered(self, suspect: Suspect) -> bool:
        return self._hits >= _ENOUGH_HITS or suspect.cause in _SEEN_OTHERWISE

    def suspicion(self, finding: Finding, now_s: float) -> None:
        before = self.suspect
        since_s = before.since_s if before is not None and before.cause is finding.cause else now_s
        self.suspect = Suspect(finding.cause, finding.detail, since_s, now_s)
        self._hits = 0

    def dropped(self) -> None:
        """Samples from before say nothing of what comes."""
        self.samples.clear()
        self._last = 0

    def suspected(self, now_s: float) -> Suspect | None:
        """As of now."""
        found = self.suspect
        if found is not None and found.cause in _PAST and now_s - found.seen_s >= _HOLD_S:
            return None
        return found


class Calibration:
    """Of the whole fleet. `drop` forgets all that is believed to be cached on an instance, and returns how many blocks
    that was; `resize` corrects the assumed size of its cache by what was predicted and what reported."""

    def __init__(self, drop: Callable[[Instance], int], resize: Callable[[InstanceState, float, float], None]) -> None:
        self._drop = drop
        self._resize = resize
        self.log: FilteringBoundLogger | None = None
        """Told once per suspicion."""
        self.of_feed: Callable[[Instance], Finding | None] = lambda instance: None
        """What is wrong with the feed of its KV events, where it has one."""

    def settled(self, placement: Placement, usage: Usage, now_s: float) -> None:
        """A request is answered. What could not be matched is no evidence."""
        state, instance = placement.state, placement.lease.instance
        if instance.retired or not placement.prepared.tokens_per_block:
            return
        record = state.record
        due = record.add(_sample(placement, usage), now_s)
        if usage.cached_tokens is not None:
            self._resize(state, placement.decision.cached_tokens, usage.cached_tokens)
        if due:
            self._judge(state, record, instance, now_s)

    def _judge(self, state: InstanceState, record: Record, instance: Instance, now_s: float) -> None:
        before = record.suspected(now_s)
        record.judge(_known(instance, record), now_s)
        blocks = 0
        if record.hopeless and state.trust is not Trust.EXACT:
            blocks = self._drop(instance)
            record.dropped()
            state.metrics.index_drops.value += 1
        self._tell(instance, before, record.suspect, blocks)

    def restarted(self, state: InstanceState, blocks: int, now_s: float) -> None:
        """The instance is a new life of its backend, whose last one had so many blocks in the index."""
        finding = Finding(Cause.COLD_RESTART, f"the engine was restarted; {blocks:,} blocks of before are dropped")
        state.record.suspicion(finding, now_s)
        self._tell(state.instance, None, state.record.suspect, blocks)

    def suspected(self, state: InstanceState, now_s: float) -> Suspect | None:
        """For status and metrics. What is wrong with the feed goes before."""
        found = self.of_feed(state.instance)
        own = state.record.suspected(now_s)
        if found is None:
            return own
        return Suspect(found.cause, found.detail, now_s, now_s)

    def _tell(self, instance: Instance, before: Suspect | None, now: Suspect | None, blocks: int) -> None:
        if self.log is None or now is None or (before is not None and before.cause is now.cause):
            return
        name, cause = instance.backend.name, now.cause.value
        self.log.warning("index_suspect", backend=name, cause=cause, detail=now.detail, dropped_blocks=blocks)


def _sample(placement: Placement, usage: Usage) -> Sample:
    prepared = placement.prepared
    counts = prepared.model.ratios is None and prepared.route in _COUNTED
    return Sample(
        prepared.served_as,
        placement.decision.cached_tokens,
        usage.cached_tokens,
        prepared.units if counts else 0,
        usage.prompt_tokens,
        prepared.tokens_per_block,
        placement.unqueued or prepared.home == placement.lease.instance.id,
    )


def _known(instance: Instance, record: Record) -> Known:
    load, engine = instance.engine_load, instance.engine
    return Known(
        load.block_size if load is not None else None,
        load.prefix_cache if load is not None else None,
        record.reports,
        record.has_hit,
        engine.cached_tokens_flag if engine is not None else None,
    )

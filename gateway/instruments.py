"""Counters and histograms for one event loop: plain attribute adds, no locks; made Prometheus families at a scrape.

prometheus_client's own cost some 2 us and a lock per observation, and a gap is observed for every streamed chunk.
Invariant: all writes come from one thread. A reader in another one sees values that are at most an observation apart.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Generic, TypeVar

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from prometheus_client.metrics_core import Metric


class Counter:
    """Only ever add: `counter.value += n`."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0


class Histogram:
    """Counts per bucket; `bounds` are the buckets' upper ends, ascending, inclusive; +Inf is implied."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        return sum(self.counts)

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative, as the exposition format has them: (upper end, observations up to it)."""
        total = 0
        result: list[tuple[str, float]] = []
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            total += count
            result.append((bound, total))
        return result


_Instrument = TypeVar("_Instrument", Counter, Histogram)


class _Family(Generic[_Instrument]):
    """One metric: an instrument per combination of label values. Callers keep them, and pass only closed values."""

    def __init__(self, name: str, help: str, labels: Sequence[str], make: Callable[[], _Instrument]) -> None:
        self.name = name
        self.help = help
        self.labels = tuple(labels)
        self._make: Callable[[], _Instrument] = make
        self._children: dict[tuple[str, ...], _Instrument] = {}

    def child(self, *values: str) -> _Instrument:
        found = self._children.get(values)
        if found is None:
            if len(values) != len(self.labels):
                raise ValueError(f"{self.name} takes {len(self.labels)} label values")
            found = self._children[values] = self._make()
        return found

    def forget(self, label: str, value: str) -> None:
        """Drop all instruments with this value. One still held elsewhere counts on unseen."""
        if label in self.labels:
            at = self.labels.index(label)
            self._children = {values: child for values, child in self._children.items() if values[at] != value}

    def children(self) -> list[tuple[tuple[str, ...], _Instrument]]:
        """A copy: a scrape from another thread must not meet a dict that grows."""
        return list(self._children.items())


class CounterFamily(_Family[Counter]):
    def __init__(self, name: str, help: str, labels: Sequence[str] = ()) -> None:
        super().__init__(name, help, labels, Counter)

    def collect(self) -> Metric:
        family = CounterMetricFamily(self.name, self.help, labels=self.labels)
        for values, counter in self.children():
            family.add_metric(values, counter.value)
        return family


class HistogramFamily(_Family[Histogram]):
    def __init__(self, name: str, help: str, labels: Sequence[str], bounds: Sequence[float]) -> None:
        super().__init__(name, help, labels, lambda: Histogram(bounds))

    def collect(self) -> Metric:
        family = HistogramMetricFamily(self.name, self.help, labels=self.labels)
        for values, histogram in self.children():
            family.add_metric(values, histogram.buckets(), histogram.sum)
        return family

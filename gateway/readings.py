"""Figures that others already hold, read at a scrape, and the families that they become."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from gateway.diagnosis import Cause
from vocabulary import Trust

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from prometheus_client.metrics_core import Metric


@dataclass(frozen=True, slots=True)
class BackendReading:
    name: str
    up: bool
    in_flight: int
    pending_uncached_tokens: float
    trust: Trust
    draining: bool = False
    bias: float = 1.0
    suspect: Cause | None = None


@dataclass(frozen=True, slots=True)
class ReloadReading:
    applied: int
    refused: int
    last_applied: bool


@dataclass(frozen=True, slots=True)
class SourceReading:
    """Of one source of backends."""

    name: str
    backends: int
    errors_total: int


@dataclass(frozen=True, slots=True)
class ParityReading:
    """Of one model: how many backends are in which state."""

    model: str
    backends: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Reading:
    """What others hold, at the moment of a scrape."""

    backends: Collection[BackendReading] = ()
    discovery: Collection[SourceReading] = ()
    connections: int = 0
    request_bytes_buffered: int = 0
    sessions: int = 0
    index_blocks: int = 0
    index_entries: int = 0
    index_evicted_total: int = 0
    reloads: ReloadReading | None = None
    parity: Collection[ParityReading] = ()


def gauges(reading: Reading) -> Iterator[Metric]:
    up = GaugeMetricFamily("warmroute_backend_up", "1: takes requests. 0: down or ejected.", labels=("backend",))
    draining = GaugeMetricFamily(
        "warmroute_backend_draining", "1: takes no new requests, by order.", labels=("backend",)
    )
    in_flight = GaugeMetricFamily("warmroute_inflight", "Requests on a backend.", labels=("backend",))
    pending = GaugeMetricFamily(
        "warmroute_pending_uncached_tokens", "Prompt tokens to prefill before their first token.", labels=("backend",)
    )
    trust = GaugeMetricFamily(
        "warmroute_index_trust", "1 for the state in which the index is about a backend.", labels=("backend", "state")
    )
    bias = GaugeMetricFamily(
        "warmroute_cached_tokens_bias", "Reported over predicted cached tokens, running mean.", labels=("backend",)
    )
    suspect = GaugeMetricFamily(
        "warmroute_index_suspect",
        "1 for the likely cause why predictions for a backend do not come true.",
        labels=("backend", "cause"),
    )
    for backend in reading.backends:
        bias.add_metric((backend.name,), backend.bias)
        for cause in Cause:
            suspect.add_metric((backend.name, cause.value), float(cause is backend.suspect))
        up.add_metric((backend.name,), float(backend.up))
        draining.add_metric((backend.name,), float(backend.draining))
        in_flight.add_metric((backend.name,), backend.in_flight)
        pending.add_metric((backend.name,), backend.pending_uncached_tokens)
        for state in Trust:
            trust.add_metric((backend.name, state.value), float(state is backend.trust))
    yield from (up, draining, in_flight, pending, trust, bias, suspect)
    yield from _discovery(reading.discovery)
    if reading.reloads is not None:
        yield from _reloads(reading.reloads)
    if reading.parity:
        yield _parity(reading.parity)
    yield GaugeMetricFamily("warmroute_connections", "Client connections open.", value=reading.connections)
    yield GaugeMetricFamily(
        "warmroute_request_bytes_buffered", "Of request bodies, in memory.", value=reading.request_bytes_buffered
    )
    yield GaugeMetricFamily("warmroute_sessions", "Sessions known.", value=reading.sessions)
    yield GaugeMetricFamily("warmroute_index_blocks", "Distinct blocks in the index.", value=reading.index_blocks)
    yield GaugeMetricFamily("warmroute_index_entries", "(block, holder) pairs in it.", value=reading.index_entries)
    yield CounterMetricFamily(
        "warmroute_index_evicted_total", "Pairs that had to make room.", value=reading.index_evicted_total
    )


def _discovery(sources: Collection[SourceReading]) -> Iterator[Metric]:
    backends = GaugeMetricFamily("warmroute_discovery_backends", "Backends that a source has.", labels=("source",))
    errors = CounterMetricFamily("warmroute_discovery_errors_total", "Failures to ask it.", labels=("source",))
    for source in sources:
        backends.add_metric((source.name,), source.backends)
        errors.add_metric((source.name,), source.errors_total)
    yield from (backends, errors)


def _parity(models: Collection[ParityReading]) -> Metric:
    family = GaugeMetricFamily(
        "warmroute_parity", "Backends by whether their token ids equal the gateway's.", labels=("model", "state")
    )
    for reading in models:
        for state, backends in reading.backends.items():
            family.add_metric((reading.model, state), backends)
    return family


def _reloads(reading: ReloadReading) -> Iterator[Metric]:
    total = CounterMetricFamily("warmroute_config_reloads_total", "Reloads of the config.", labels=("outcome",))
    total.add_metric(("applied",), reading.applied)
    total.add_metric(("refused",), reading.refused)
    yield total
    yield GaugeMetricFamily(
        "warmroute_config_last_reload_successful",
        "0: the file on disk was refused, an older one runs.",
        value=float(reading.last_applied),
    )

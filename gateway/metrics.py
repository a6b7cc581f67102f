"""What the gateway exports to Prometheus, all under `warmroute_`.

Every label has a closed set of values: what clients send (model names, classes) becomes `unknown` unless the config or
a backend named it, so the number of series does not depend on traffic. Hot paths keep the instruments they add to;
figures that others already hold are read at a scrape, from one callback.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from prometheus_client import generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from gateway.access.metrics import AccessMetrics
from gateway.metric_families import BackendFamilies, ConnectionFamilies, RequestFamilies
from gateway.readings import Reading, gauges
from vocabulary import Kind
from vocabulary.errors import UpstreamError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

    from gateway.connections import CloseReason
    from gateway.instruments import Counter, CounterFamily, Histogram, HistogramFamily

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
UNKNOWN: Final = "unknown"
NO_BACKEND: Final = "none"
"""Backend label of a request that was answered before one was chosen."""
CLASSES: Final = ("interactive", "batch")
MAX_MODELS: Final = 1_000
"""Model names kept as label values; a backend that lists more gets `unknown` for the rest."""

Phase = Literal["receive", "route", "wait", "stream"]
"""When a client left: while sending its body, before a backend was chosen, before the response head, or after it."""
RetryReason = Literal["connect", "connect_timeout", "reset", "protocol", "status"]
EventKind = Literal["stored", "removed", "cleared", "ignored", "malformed"]
ReplayOutcome = Literal["filled", "hole", "failed"]
FallbackReason = Literal["mismatch", "error", "timeout", "too_large", "other"]


def _error_kinds(error: type[UpstreamError] = UpstreamError) -> Iterator[str]:
    yield error.reason
    for leaf in error.__subclasses__():
        yield from _error_kinds(leaf)


ERROR_KINDS: Final = frozenset({*_error_kinds(), "busy", "status"})
"""Of `upstream_errors_total`: the reasons of the error tree, `busy` for answers of 503 (engines whose queue is full say
so), and `status` for all others of 500 and above."""


@dataclass(frozen=True, slots=True)
class ModelMetrics:
    """Of one model on one backend."""

    ttft: Histogram
    prompt_tokens: Counter
    completion_tokens: Counter
    cached_predicted: Counter
    cached_reported: Counter


class BackendMetrics:
    """Of one backend; kept by whoever keeps the backend."""

    __slots__ = ("_metrics", "_models", "gap", "index_drops", "kv_gaps", "name", "truncated", "without_done")

    def __init__(self, metrics: Metrics, name: str) -> None:
        self.name = name
        self._metrics = metrics
        self._models: dict[str, ModelMetrics] = {}
        self.gap: Histogram = metrics.on_backends.gap.child(name)
        """Seconds between two chunks of a stream."""
        self.kv_gaps: Counter = metrics.on_backends.kv_gaps.child(name)
        self.truncated: Counter = metrics.on_backends.truncated.child(name)
        self.index_drops: Counter = metrics.on_backends.index_drops.child(name)
        self.without_done: Counter = metrics.on_backends.without_done.child(name)

    def model(self, model: str) -> ModelMetrics:
        """A model that nobody named counts as `unknown`."""
        found = self._models.get(model)
        if found is None:
            found = self._metrics.model_metrics(model, self.name)
            if model in self._metrics.models:  # unknown names must not fill this either
                self._models[model] = found
        return found

    def error(self, kind: str) -> Counter:
        """`kind` is one of ERROR_KINDS."""
        return self._metrics.on_backends.errors.child(self.name, kind if kind in ERROR_KINDS else "error")

    def kv_event(self, kind: EventKind) -> Counter:
        return self._metrics.on_backends.kv_events.child(self.name, kind)

    def kv_replay(self, outcome: ReplayOutcome) -> Counter:
        return self._metrics.on_backends.kv_replays.child(self.name, outcome)

    def forget_models(self) -> None:
        self._models.clear()

    def detach(self) -> None:
        """The backend is gone: what still ends on it must not bring its series back."""
        self.name = UNKNOWN
        self._models.clear()


class Metrics(Collector):
    """All metrics of one gateway; registers itself with the registry it is given."""

    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        models: Iterable[str] = (),
        routes: Iterable[str] = ("default",),
        classes: Iterable[str] = CLASSES,
        config_id: str = "",
    ) -> None:
        self.models: frozenset[str] = frozenset()
        self.config_id = config_id
        self.on_backends = BackendFamilies()
        self.access = AccessMetrics()
        self._of_connections = ConnectionFamilies()
        self._of_requests = RequestFamilies()
        self.decisions = {kind: self._of_requests.decisions.child(kind.value) for kind in Kind}
        self.decision_seconds = self._of_requests.decision_seconds.child()
        self._routes = frozenset(routes)
        self._classes = frozenset(classes)
        self._backends: dict[str, BackendMetrics] = {}
        self._answered: dict[tuple[str, str, str, str, int], Counter] = {}
        """As last looked up; empty after any change of the label values."""
        self._read: Callable[[], Reading] = Reading
        self._registry = registry
        self.set_models(models)
        registry.register(self)

    def read_from(self, source: Callable[[], Reading]) -> None:
        """Gauges come from this callback, called once per scrape."""
        self._read = source

    def request(self, route: str, model: str, backend: str, traffic_class: str, status: int) -> Counter:
        """Answered requests. `backend`: NO_BACKEND where none was chosen."""
        asked = (route, model, backend, traffic_class, status)
        found = self._answered.get(asked)
        if found is None:
            found = self._request(route, model, backend, traffic_class, status)
            if model in self.models or model == UNKNOWN:  # others are not bounded in number
                self._answered[asked] = found
        return found

    def _request(self, route: str, model: str, backend: str, traffic_class: str, status: int) -> Counter:
        return self._of_requests.requests.child(
            route if route in self._routes else UNKNOWN,
            model if model in self.models else UNKNOWN,
            backend if backend in self._backends or backend == NO_BACKEND else UNKNOWN,
            traffic_class if traffic_class in self._classes else UNKNOWN,
            str(status) if 100 <= status <= 599 else UNKNOWN,
        )

    def backend(self, name: str) -> BackendMetrics:
        """The metrics of a backend; from now on its name is a label value."""
        found = self._backends.get(name)
        if found is None:
            found = self._backends[name] = BackendMetrics(self, name)
            self._answered.clear()
        return found

    def model_metrics(self, model: str, backend: str) -> ModelMetrics:
        families = self.on_backends
        labels = (model if model in self.models else UNKNOWN, backend)
        return ModelMetrics(
            ttft=families.ttft.child(*labels),
            prompt_tokens=families.prompt_tokens.child(*labels),
            completion_tokens=families.completion_tokens.child(*labels),
            cached_predicted=families.cached_predicted.child(*labels),
            cached_reported=families.cached_reported.child(*labels),
        )

    def cancelled(self, route: str, phase: Phase) -> Counter:
        return self._of_requests.cancelled.child(route if route in self._routes else UNKNOWN, phase)

    def retry(self, reason: RetryReason) -> Counter:
        return self._of_requests.retries.child(reason)

    def count_closed(self, reason: CloseReason) -> None:
        """A client's connection, by the gateway."""
        self._of_connections.closed.child(reason).value += 1

    def encode_fallback(self, reason: FallbackReason) -> Counter:
        return self._of_requests.fallbacks.child(reason)

    def set_config(self, routes: Iterable[str], config_id: str) -> None:
        """Of a config that was reloaded. Series of routes that are gone stay: their counters must not reset."""
        self._routes |= frozenset(routes)
        self.config_id = config_id
        self._answered.clear()

    def set_models(self, models: Iterable[str]) -> None:
        """The models that config and backends name now. Series of those that are gone vanish only where room is needed:
        a backend that is away for a while must not reset counters."""
        names = frozenset(models)
        self._answered.clear()
        if len(self.models | names) <= MAX_MODELS:
            self.models |= names
            return
        kept = frozenset(sorted(names)[:MAX_MODELS])
        for gone in self.models - kept:
            for family in self._families():
                family.forget("model", gone)
        self.models = kept
        for backend in self._backends.values():
            backend.forget_models()

    def forget_backend(self, name: str) -> None:
        """Its series vanish; whatever still ends on it counts as `unknown` or unseen."""
        self._answered.clear()
        gone = self._backends.pop(name, None)
        if gone is not None:
            gone.detach()
        for family in self._families():
            family.forget("backend", name)

    def render(self) -> bytes:
        """The whole registry in the text format, for CONTENT_TYPE."""
        return generate_latest(self._registry)

    def describe(self) -> Iterable[Metric]:
        return ()  # nothing is read at registration

    def _families(self) -> Iterator[CounterFamily | HistogramFamily]:
        yield from vars(self._of_requests).values()
        yield from vars(self.on_backends).values()
        yield from vars(self._of_connections).values()

    def collect(self) -> Iterator[Metric]:
        for family in self._families():
            yield family.collect()
        yield from self.access.collect()
        yield from gauges(self._read())
        info = GaugeMetricFamily("warmroute_config_info", "Always 1; the id names the settings.", labels=("id",))
        info.add_metric((self.config_id,), 1)
        yield info

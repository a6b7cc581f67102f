"""Metrics: names, closed label sets, histograms, and what vanishes with a backend."""

from __future__ import annotations

import random
import string

import pytest
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.parser import text_string_to_metric_families

from gateway.diagnosis import Cause
from gateway.instruments import CounterFamily, Histogram
from gateway.metrics import CONTENT_TYPE, ERROR_KINDS, MAX_MODELS, NO_BACKEND, Metrics
from gateway.readings import BackendReading, Reading
from vocabulary import Kind, Trust

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def series(metrics: Metrics) -> Series:
    text = metrics.render().decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return series(metrics).get((name, frozenset(labels.items())))


@pytest.fixture
def metrics() -> Metrics:
    made = Metrics(CollectorRegistry(), models=["m", "n"], routes=["default"], config_id="abc")
    made.backend("a")
    made.backend("b")
    return made


def test_every_metric_has_its_name_type_and_help(metrics: Metrics) -> None:
    families = {f.name: f for f in text_string_to_metric_families(metrics.render().decode())}
    assert {name.removeprefix("warmroute_"): family.type for name, family in families.items()} == {
        "requests": "counter",
        "ttft_seconds": "histogram",
        "inter_chunk_gap_seconds": "histogram",
        "prompt_tokens": "counter",
        "completion_tokens": "counter",
        "cached_tokens_predicted": "counter",
        "cached_tokens_reported": "counter",
        "decisions": "counter",
        "inflight": "gauge",
        "pending_uncached_tokens": "gauge",
        "upstream_errors": "counter",
        "upstream_truncated": "counter",
        "streams_without_done": "counter",
        "client_cancelled": "counter",
        "retries": "counter",
        "index_blocks": "gauge",
        "index_entries": "gauge",
        "discovery_backends": "gauge",
        "discovery_errors": "counter",
        "index_evicted": "counter",
        "index_trust": "gauge",
        "index_suspect": "gauge",
        "index_drops": "counter",
        "cached_tokens_bias": "gauge",
        "sessions": "gauge",
        "connections": "gauge",
        "connections_closed": "counter",
        "request_bytes_buffered": "gauge",
        "decision_seconds": "histogram",
        "backend_up": "gauge",
        "backend_draining": "gauge",
        "encode_fallback": "counter",
        "unauthenticated": "counter",
        "tenant_requests": "counter",
        "tenant_inflight": "gauge",
        "jwks_failures": "counter",
        "config_info": "gauge",
        "kv_events": "counter",
        "kv_event_gaps": "counter",
        "kv_replays": "counter",
    }
    assert all(family.documentation for family in families.values())
    assert all(name.startswith("warmroute_") for name in families)
    assert "0.0.4" in CONTENT_TYPE


def test_counters_are_kept_and_added_to(metrics: Metrics) -> None:
    counter = metrics.request("default", "m", "a", "interactive", 200)
    counter.value += 1
    metrics.request("default", "m", "a", "interactive", 200).value += 2
    assert metrics.request("default", "m", "a", "interactive", 200) is counter
    labels = {"route": "default", "model": "m", "backend": "a", "class": "interactive", "status": "200"}
    assert value(metrics, "warmroute_requests_total", **labels) == 3


def test_o70_label_sets_are_closed(metrics: Metrics) -> None:
    draw = random.Random(70)
    before = 0
    for i in range(5_000):
        odd = "".join(draw.choices(string.printable, k=12))
        metrics.request(odd, odd, odd, odd, draw.choice([404, -1, 0, 1000, 10**9])).value += 1
        metrics.backend("a").model(odd).prompt_tokens.value += 1
        metrics.backend("a").error(odd).value += 1
        metrics.cancelled(odd, "stream").value += 1
        if i == 100:
            before = len(series(metrics))
    assert len(series(metrics)) == before
    unknown = dict.fromkeys(("route", "model", "backend", "class"), "unknown")
    found = [value(metrics, "warmroute_requests_total", **unknown, status=s) for s in ("404", "unknown")]
    assert sum(v or 0 for v in found) == 5_000
    assert found[0]
    assert value(metrics, "warmroute_prompt_tokens_total", model="unknown", backend="a") == 5_000


def test_a_request_without_backend_says_so(metrics: Metrics) -> None:
    metrics.request("default", "m", NO_BACKEND, "batch", 503).value += 1
    labels = {"route": "default", "model": "m", "backend": "none", "class": "batch", "status": "503"}
    assert value(metrics, "warmroute_requests_total", **labels) == 1


def test_per_model_instruments_of_a_backend(metrics: Metrics) -> None:
    of = metrics.backend("a").model("m")
    assert metrics.backend("a").model("m") is of
    of.ttft.observe(0.3)
    of.completion_tokens.value += 7
    of.cached_predicted.value += 32
    of.cached_reported.value += 16
    labels = {"model": "m", "backend": "a"}
    assert value(metrics, "warmroute_ttft_seconds_count", **labels) == 1
    assert value(metrics, "warmroute_ttft_seconds_sum", **labels) == 0.3
    assert value(metrics, "warmroute_ttft_seconds_bucket", **labels, le="0.25") == 0
    assert value(metrics, "warmroute_ttft_seconds_bucket", **labels, le="0.5") == 1
    assert value(metrics, "warmroute_completion_tokens_total", **labels) == 7
    assert value(metrics, "warmroute_cached_tokens_predicted_total", **labels) == 32
    assert value(metrics, "warmroute_cached_tokens_reported_total", **labels) == 16


def test_histogram_buckets_are_inclusive_cumulative_and_end_in_infinity() -> None:
    histogram = Histogram((1.0, 2.0))
    for seconds in (0.5, 1.0, 1.5, 2.0, 2.5, 99.0):
        histogram.observe(seconds)
    assert histogram.buckets() == [("1.0", 2), ("2.0", 4), ("+Inf", 6)]
    assert histogram.count == 6
    assert histogram.sum == 106.5


def test_the_error_tree_is_the_set_of_kinds(metrics: Metrics) -> None:
    assert {"connect", "connect_timeout", "first_byte_timeout", "idle_timeout", "reset", "truncated"} < ERROR_KINDS
    metrics.backend("a").error("reset").value += 1
    metrics.backend("a").error("status").value += 1
    metrics.retry("reset").value += 1
    metrics.cancelled("default", "wait").value += 1
    metrics.encode_fallback("mismatch").value += 1
    assert value(metrics, "warmroute_upstream_errors_total", backend="a", kind="reset") == 1
    assert value(metrics, "warmroute_upstream_errors_total", backend="a", kind="status") == 1
    assert value(metrics, "warmroute_retries_total", reason="reset") == 1
    assert value(metrics, "warmroute_client_cancelled_total", route="default", phase="wait") == 1
    assert value(metrics, "warmroute_encode_fallback_total", reason="mismatch") == 1


def test_all_kinds_of_decisions_are_there_from_the_start(metrics: Metrics) -> None:
    metrics.decisions[Kind.SESSION].value += 1
    metrics.decision_seconds.observe(3e-5)
    for kind in Kind:
        assert value(metrics, "warmroute_decisions_total", kind=kind.value) == (kind is Kind.SESSION)
    assert value(metrics, "warmroute_decision_seconds_bucket", le="5e-05") == 1
    assert value(metrics, "warmroute_config_info", id="abc") == 1


def test_gauges_are_read_at_the_scrape(metrics: Metrics) -> None:
    reading = Reading(
        backends=[
            BackendReading("a", True, 3, 512.0, Trust.ESTIMATED, bias=0.5, suspect=Cause.COLD_RESTART),
            BackendReading("b", False, 0, 0.0, Trust.BLIND),
        ],
        sessions=5,
        index_blocks=10,
        index_entries=12,
        index_evicted_total=4,
    )
    calls: list[None] = []

    def read() -> Reading:
        calls.append(None)
        return reading

    metrics.read_from(read)
    assert not calls
    found = series(metrics)
    assert len(calls) == 1

    def gauge(name: str, **labels: str) -> float:
        return found[f"warmroute_{name}", frozenset(labels.items())]

    assert (gauge("backend_up", backend="a"), gauge("backend_up", backend="b")) == (1, 0)
    assert gauge("inflight", backend="a") == 3
    assert [gauge("cached_tokens_bias", backend=name) for name in "ab"] == [0.5, 1]
    for cause in Cause:
        assert gauge("index_suspect", backend="a", cause=cause.value) == (cause is Cause.COLD_RESTART)
        assert gauge("index_suspect", backend="b", cause=cause.value) == 0
    assert gauge("pending_uncached_tokens", backend="a") == 512
    assert [gauge("index_trust", backend="a", state=s.value) for s in Trust] == [0, 1, 0]
    assert [gauge("index_trust", backend="b", state=s.value) for s in Trust] == [0, 0, 1]
    assert gauge("sessions") == 5
    assert gauge("index_blocks") == 10
    assert gauge("index_entries") == 12
    assert gauge("index_evicted_total") == 4


def use(metrics: Metrics, backend: str) -> None:
    of = metrics.backend(backend)
    of.gap.observe(0.02)
    of.truncated.value += 1
    of.without_done.value += 1
    of.error("connect").value += 1
    for model in ("m", "n"):
        of.model(model).prompt_tokens.value += 1
        metrics.request("default", model, backend, "batch", 200).value += 1


def test_series_of_a_removed_backend_vanish_and_stay_away(metrics: Metrics) -> None:
    use(metrics, "a")
    before = set(series(metrics))
    use(metrics, "gone")
    held = metrics.backend("gone")
    assert len(series(metrics)) > len(before)
    metrics.forget_backend("gone")
    assert set(series(metrics)) == before
    held.gap.observe(1.0)
    held.truncated.value += 1
    assert set(series(metrics)) == before
    held.error("reset").value += 1
    held.model("n").prompt_tokens.value += 1
    metrics.request("default", "m", "gone", "batch", 200).value += 1
    assert not any(("backend", "gone") in labels for _, labels in series(metrics))
    metrics.forget_backend("never-there")


def test_a_backend_may_come_back(metrics: Metrics) -> None:
    use(metrics, "a")
    metrics.forget_backend("a")
    use(metrics, "a")
    assert value(metrics, "warmroute_prompt_tokens_total", model="m", backend="a") == 1


def test_models_that_are_away_keep_their_counts(metrics: Metrics) -> None:
    use(metrics, "a")
    metrics.set_models(["m", "new"])
    use(metrics, "a")
    metrics.backend("a").model("new").prompt_tokens.value += 1
    for model, count in (("m", 2), ("n", 2), ("new", 1)):
        assert value(metrics, "warmroute_prompt_tokens_total", model=model, backend="a") == count


def test_models_make_room_for_others_and_are_bounded(metrics: Metrics) -> None:
    use(metrics, "a")
    metrics.set_models(["m", *(f"x{i:04}" for i in range(MAX_MODELS + 50))])
    assert len(metrics.models) == MAX_MODELS
    use(metrics, "a")
    assert value(metrics, "warmroute_prompt_tokens_total", model="m", backend="a") == 2
    assert value(metrics, "warmroute_prompt_tokens_total", model="n", backend="a") is None
    assert value(metrics, "warmroute_prompt_tokens_total", model="unknown", backend="a") == 1


def test_two_gateways_in_one_process_share_nothing() -> None:
    first, second = Metrics(CollectorRegistry()), Metrics(CollectorRegistry())
    first.decisions[Kind.LOAD].value += 1
    assert value(second, "warmroute_decisions_total", kind="load") == 0


def test_other_collectors_may_share_the_registry() -> None:
    registry = CollectorRegistry()
    Gauge("other", "of someone else", registry=registry).set(1)
    assert value(Metrics(registry), "other") == 1


def test_label_values_are_escaped() -> None:
    odd = 'a"b\\c\n'
    metrics = Metrics(CollectorRegistry(), models=[odd])
    metrics.request("default", odd, NO_BACKEND, "batch", 200).value += 1
    assert any(("model", odd) in labels for _, labels in series(metrics))


def test_a_family_refuses_the_wrong_number_of_labels() -> None:
    with pytest.raises(ValueError, match="takes 2 label values"):
        CounterFamily("x_total", "help", ("a", "b")).child("m")

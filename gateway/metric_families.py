"""The names, labels and buckets of what is counted. Part of the public interface: dashboards and alerts rely on it."""

from __future__ import annotations

from typing import Final

from gateway.instruments import CounterFamily, HistogramFamily

TTFT_BOUNDS_S: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0)
GAP_BOUNDS_S: Final = (0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
DECISION_BOUNDS_S: Final = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 0.1)
_PAIR: Final = ("model", "backend")


class RequestFamilies:
    """What happens to requests."""

    def __init__(self) -> None:
        self.requests = CounterFamily(
            "warmroute_requests_total",
            "Answered requests by the status that the client got.",
            ("route", "model", "backend", "class", "status"),
        )
        self.decisions = CounterFamily(
            "warmroute_decisions_total", "Decisions by what spoke for the backend.", ("kind",)
        )
        self.decision_seconds = HistogramFamily(
            "warmroute_decision_seconds", "Time of one routing decision.", (), DECISION_BOUNDS_S
        )
        self.cancelled = CounterFamily(
            "warmroute_client_cancelled_total",
            "Clients that left before their answer was complete.",
            ("route", "phase"),
        )
        self.retries = CounterFamily("warmroute_retries_total", "Second and later attempts, by cause.", ("reason",))
        self.fallbacks = CounterFamily(
            "warmroute_encode_fallback_total", "Prompts encoded by the slower way or not at all.", ("reason",)
        )


class ConnectionFamilies:
    """What happens to clients' connections."""

    def __init__(self) -> None:
        self.closed = CounterFamily(
            "warmroute_connections_closed_total", "Client connections that the gateway ended, by cause.", ("reason",)
        )


class BackendFamilies:
    """What happens on backends."""

    def __init__(self) -> None:
        self.ttft = HistogramFamily(
            "warmroute_ttft_seconds", "From the request received to the first byte of the answer.", _PAIR, TTFT_BOUNDS_S
        )
        self.gap = HistogramFamily(
            "warmroute_inter_chunk_gap_seconds", "Between two chunks of a streamed answer.", ("backend",), GAP_BOUNDS_S
        )
        self.prompt_tokens = CounterFamily("warmroute_prompt_tokens_total", "Prompt tokens sent.", _PAIR)
        self.completion_tokens = CounterFamily("warmroute_completion_tokens_total", "Tokens generated.", _PAIR)
        self.cached_predicted = CounterFamily(
            "warmroute_cached_tokens_predicted_total", "Prompt tokens that the index expected in the cache.", _PAIR
        )
        self.cached_reported = CounterFamily(
            "warmroute_cached_tokens_reported_total", "Prompt tokens that the engine found in its cache.", _PAIR
        )
        self.errors = CounterFamily(
            "warmroute_upstream_errors_total", "Failed attempts on a backend.", ("backend", "kind")
        )
        self.truncated = CounterFamily(
            "warmroute_upstream_truncated_total", "Answers that broke off in the middle.", ("backend",)
        )
        self.without_done = CounterFamily(
            "warmroute_streams_without_done_total", "Streams that ended cleanly but without [DONE].", ("backend",)
        )
        self.index_drops = CounterFamily(
            "warmroute_index_drops_total",
            "Times that all entries of a backend were dropped, as its answers kept missing what they predict.",
            ("backend",),
        )
        self.kv_events = CounterFamily(
            "warmroute_kv_events_total", "KV events of the engine, as they were understood.", ("backend", "kind")
        )
        self.kv_gaps = CounterFamily("warmroute_kv_event_gaps_total", "Messages missed in between.", ("backend",))
        self.kv_replays = CounterFamily(
            "warmroute_kv_replays_total", "Replays asked for, by what came of them.", ("backend", "outcome")
        )

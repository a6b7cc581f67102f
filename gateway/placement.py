"""One attempt's place on a backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from backends.instance import Lease
    from gateway.fleet import InstanceState
    from gateway.metrics import BackendMetrics, ModelMetrics
    from gateway.prepare import Prepared
    from routing import Decision


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
        "usage_asked",
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
        self.usage_asked = False
        """By the gateway, which takes the answer out of the stream."""
        self.held_blocks = 0
        """Blocks of the prompt that the index believed there before this request."""
        self.header_lines = b""

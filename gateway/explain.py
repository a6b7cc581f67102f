"""Why a request would go where it would go, without sending it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vocabulary import Kind

if TYPE_CHECKING:
    from gateway.prepare import Prepared
    from gateway.router import Router


def explain(router: Router, prepared: Prepared, now_s: float) -> dict[str, object]:
    """The decision for a request that is not sent: reserves nothing, learns nothing."""
    decision = router.decide(prepared, 0, router.candidates(prepared, (), now_s))
    record = decision.explain()
    record["model"] = prepared.model.name
    record["route"] = prepared.model.route
    if decision.chosen is None:
        record["kind"] = None
    elif decision.facts.failed_open:
        record["reason"] = "no backend is healthy; sent all the same by health.fail_open"
    elif decision.kind is Kind.FALLBACK:
        record["reason"] = "the prompt could not be encoded; routed by load"
    return record

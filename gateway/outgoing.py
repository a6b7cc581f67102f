"""What a backend gets of a request that was placed there, and why another one gets it after it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from backends.engines.protocol import EngineName
from backends.transport import UpstreamRequest
from vocabulary.errors import UpstreamConnectError, UpstreamConnectTimeout

if TYPE_CHECKING:
    from gateway.metrics import RetryReason
    from gateway.placement import Placement
    from gateway.request_head import RequestHead
    from vocabulary.errors import UpstreamError

_ASKED: Final = frozenset({EngineName.VLLM, EngineName.SGLANG, EngineName.TRTLLM})
"""Engines that may be asked for the usage of a stream and change nothing else for it (see gateway/usage_ask.py)."""


def outgoing(
    method: bytes, target: bytes, head: RequestHead, body: bytes, request_id: bytes, placement: Placement
) -> UpstreamRequest:
    """The body as it came, but for what this backend is to get otherwise; `placement` notes whether usage is asked."""
    instance, prepared = placement.lease.instance, placement.prepared
    lines = head.lines
    if prepared.rewrite is not None:
        body = prepared.rewrite.apply(body, takes_salt=instance.takes_cache_salt(target))
    if prepared.usage_ask is not None and placement.state.asks_usage:
        engine = instance.engine
        if engine is not None and engine.name in _ASKED:
            asking = prepared.usage_ask.apply(body)
            if asking is not body:
                body, placement.usage_asked = asking, True
                lines = lines if head.uncoded_lines is None else head.uncoded_lines
    lines = b"%bx-request-id: %b\r\n" % (lines, request_id)
    if head.credentials and instance.backend.spec.endpoint.authorization is None:
        lines += head.credentials
    return UpstreamRequest(method, target, lines, body)


def retry_reason(error: UpstreamError) -> RetryReason:
    if isinstance(error, UpstreamConnectTimeout):
        return "connect_timeout"
    return "connect" if isinstance(error, UpstreamConnectError) else "reset"

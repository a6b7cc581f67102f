"""A request as it comes in, before anybody looks at the fleet: who sent it, its body, and how it is refused.

Invariants: bytes that are kept count in the gateway's request buffer, and are given back exactly once; the tenant's
place is taken once and left once.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gateway.access.credential import WANTED
from gateway.headers import response_head
from vocabulary.errors import BodyTooLarge, RequestBufferFull, RequestFailed, Unauthenticated

if TYPE_CHECKING:
    from gateway.access.quota import Quota
    from gateway.app import Gateway
    from gateway.endpoints import Endpoint
    from gateway.hot import HotProtocol
    from gateway.request_head import RequestHead


class IncomingRequest:
    """Also the request cycle that uvicorn's protocol sees."""

    # The initial state stands here: most requests change few of it, and setting none is cheaper than setting all.
    http10 = False
    keep_alive = True
    expect_continue = False
    turn = False
    """Earlier requests of the connection are answered."""
    body_complete = False
    size = 0
    response_complete = False
    disconnected = False
    _held_bytes = 0
    """Of the gateway's request buffer."""
    _unkept: RequestFailed | None = None
    """Why the body is not kept."""
    _admitted: Quota | None = None
    """Where this request has a place."""
    _head_sent = False
    _status = 0
    _request_id = b""

    def __init__(
        self,
        gateway: Gateway,
        protocol: HotProtocol,
        endpoint: Endpoint,
        method: bytes,
        target: bytes,
        head: RequestHead,
    ) -> None:
        self._gateway = gateway
        self._protocol = protocol
        self.endpoint = endpoint
        self.method = method
        self.target = target
        self.head = head
        self._body: list[bytes] = []
        if head.caller is None:
            self._unkept = Unauthenticated(WANTED)

    # What uvicorn's protocol touches on its cycle.

    @property
    def message_event(self) -> IncomingRequest:
        return self

    def set(self) -> None:
        pass

    # The request.

    @property
    def stranger(self) -> bool:
        return self.head.caller is None

    def refuse_stranger(self) -> None:
        """Without waiting for the rest of the body."""
        self.keep_alive = False
        self.refuse(Unauthenticated(WANTED))

    def add_body(self, data: bytes) -> None:
        self.size += len(data)
        if self._unkept is not None:
            return  # read to its end all the same: the connection stays usable
        gateway, size = self._gateway, len(data)
        if self.size > gateway.limits.max_body_bytes:
            self._unkept = BodyTooLarge(gateway.limits.body_too_large_text)
            self._release_body()
        elif not gateway.request_buffer.take(size):
            self._unkept = RequestBufferFull(gateway.request_buffer.full_text)
            self._release_body()
        else:
            self._held_bytes += size
            self._body.append(data)

    def _release_body(self) -> None:
        if self._held_bytes:
            self._body.clear()
            self._gateway.request_buffer.give_back(self._held_bytes)
            self._held_bytes = 0

    def _whole_body(self) -> bytes:
        """Raises the reason why it was not kept."""
        if self._unkept is not None:
            raise self._unkept
        parts = self._body
        if len(parts) != 1:
            self._body = parts = [b"".join(parts)]
        return parts[0]

    def _broken(self, error: Exception) -> None:
        """A fault of ours: told by its class only, and this request's alone."""
        self._gateway.log.error("request_failed", error=type(error).__name__, endpoint=self.endpoint.name)
        self.refuse(RequestFailed("the gateway failed to handle this request"))

    def _leave(self) -> None:
        """The tenant's next request may have this one's place."""
        quota, self._admitted = self._admitted, None
        if quota is not None:
            quota.release(self._gateway.clock())

    def refuse(self, error: RequestFailed) -> None:
        """Answer with a JSON error; the connection stays usable."""
        if self.disconnected or self._head_sent:
            return
        self._head_sent = True
        self._request_id = self._request_id or self.head.request_id or self._gateway.request_ids.new()
        self._status = error.status
        if isinstance(error, BodyTooLarge):  # a limit of ours that the operator may have to raise (O26)
            self._gateway.log_refusal(self.endpoint.name, error, self._request_id)
        body = self.endpoint.dialect.error_body(error, self._request_id)
        lines = [b"content-type: application/json\r\nx-request-id: ", self._request_id, b"\r\n"]
        if isinstance(error, Unauthenticated):
            lines.append(b"www-authenticate: Bearer\r\n")
            if self.head.refusal is not None:
                self._gateway.metrics.access.refused(self.head.refusal)
        if error.retry_after_s is not None:
            lines.append(b"retry-after: %d\r\n" % max(1, math.ceil(error.retry_after_s)))
        framing = b"content-length: %d\r\n" % len(body)
        if not self.keep_alive:
            framing += b"connection: close\r\n"
        self._protocol.transport.write(response_head(error.status, b"", b"".join(lines), framing) + body)
        self._finish()

    def _finish(self) -> None:
        raise NotImplementedError

"""The life of one request on a hot route, from its last body byte to the last byte of its answer.

It is the sink of the backend's response. Callbacks only; no task, unless the prompt is encoded off the loop.
Invariants: the lease ends in every outcome; nothing is sent to the client before the backend's head is known; another
backend is tried only while nothing was sent (O16); once the head is out, a failure is told in band or by closing the
connection, never by a clean end (O15).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.headers import response_head, trailer_lines
from gateway.incoming import IncomingRequest
from gateway.observe import Blind, Observer, StreamObserver
from gateway.outgoing import outgoing, retry_reason
from gateway.prepare import Prepared
from gateway.usage_ask import UsageSieve
from vocabulary.errors import RequestFailed, UpstreamTruncated

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable

    from backends.transport import Call, Headers, ResponseHead
    from gateway.metrics import Phase, RetryReason
    from gateway.placement import Placement
    from vocabulary.errors import UpstreamError

_LAST_CHUNK: Final = b"0\r\n\r\n"
_BUSY: Final = 503


class Exchange(IncomingRequest):
    _prepared: Prepared | None = None
    _preparing: asyncio.Task[None] | None = None
    _placement: Placement | None = None
    _call: Call | None = None
    _attempt = 0
    _tried: frozenset[int] = frozenset()
    _chunked = False
    _observer: Observer = Blind()
    _streaming = False
    _sieve: UsageSieve | None = None
    _last_data_s = 0.0
    _heard = False
    """Something of the answer's body has come."""

    def prepare(self) -> None:
        """The body is complete and it is this request's turn on the connection: parse, identify, encode."""
        if self.disconnected:
            return
        gateway, head = self._gateway, self.head
        self._request_id = head.request_id or gateway.request_ids.new()
        try:
            body = self._whole_body()
            caller = head.caller
            assert caller is not None
            if caller.quota is not None:
                caller.quota.admit(gateway.clock())
                self._admitted = caller.quota
            prepared = gateway.preparer.prepare(self.endpoint, body, head.session_id, caller, head.content_type)
            if isinstance(prepared, Prepared):
                self._prepared = prepared
            else:
                self._preparing = gateway.spawn(self._prepare_later(prepared))
        except RequestFailed as error:
            self.refuse(error)
        except Exception as error:
            self._broken(error)

    async def _prepare_later(self, preparing: Awaitable[Prepared]) -> None:
        try:
            self._prepared = await preparing
        except RequestFailed as error:
            self.refuse(error)
        except Exception as error:
            self._broken(error)
        self._preparing = None
        self.place()
        self.send()

    def place(self) -> None:
        """Choose a backend and reserve a place there."""
        if self._prepared is None or self.disconnected or self.response_complete:
            return
        try:
            self._place(self._prepared)
        except RequestFailed as error:
            self.refuse(error)
        except Exception as error:
            self._broken(error)

    def _place(self, prepared: Prepared) -> None:
        """Raises GatewayError where no backend is left."""
        if self.endpoint.stateful:
            prepared.tied_to = self._gateway.response_ids.holder(prepared.caller.tenant, self.target, self._body[0])
        self._placement = placement = self._gateway.router.place(prepared, self._attempt, self._tried)
        self._tried |= {placement.lease.instance.id}
        self._attempt += 1

    def send(self) -> None:
        """Off to the backend that has been chosen."""
        placement = self._placement
        if placement is None or self.response_complete:
            return
        request = outgoing(self.method, self.target, self.head, self._body[0], self._request_id, placement)
        self._call = placement.lease.instance.backend.upstream.send(request, self)
        if self._protocol.flow.write_paused:  # by answers before this one
            self._call.pause()

    def _try_another(self, reason: RetryReason) -> bool:
        """Place the request again; False where the attempts or the backends are used up."""
        if self._attempt >= self._gateway.limits.max_attempts or self._prepared is None:
            return False
        try:
            self._place(self._prepared)
        except RequestFailed:
            return False
        except Exception as error:  # nobody above would answer the client
            self._broken(error)
            return True
        self.send()
        self._gateway.metrics.retry(reason).value += 1
        return True

    # The response: sink of the upstream.

    def on_head(self, head: ResponseHead, data: bytes) -> None:
        gateway = self._gateway
        placement, call = self._placement, self._call
        assert placement is not None
        assert call is not None
        status = head.status
        if status >= 500:
            if status == _BUSY:
                gateway.router.busy(placement)
            else:
                gateway.router.answered(placement, failed=True)
            if status in gateway.limits.retry_statuses and self._try_another("status"):
                call.cancel()
                gateway.router.abandon(placement)
                return
        self._status = status
        self._observer = observer = self.endpoint.dialect.observer(head)
        self._streaming = isinstance(observer, StreamObserver)
        shown = data
        if self._streaming and placement.usage_asked:
            self._sieve = UsageSieve()
            shown = self._sieve.sift(data)
        self._head_sent = True
        self._release_body()  # no other backend will be asked
        own = b"x-request-id: %b\r\n%b" % (self._request_id, placement.header_lines)
        passed = placement.state.response_lines.of(head.headers)
        text = response_head(status, passed, own, self._framing(head))
        if shown:
            text += b"%x\r\n%b\r\n" % (len(shown), shown) if self._chunked else shown
        self._protocol.transport.write(text)
        if data:
            self._watch(data)

    def _framing(self, head: ResponseHead) -> bytes:
        """Decides how the body reaches the client, and the header lines that say so."""
        length = head.content_length if self._sieve is None else None
        if head.status in (204, 304):  # whatever length it claims: no body follows
            framing = b""
        elif length is not None:
            framing = b"content-length: %d\r\n" % length
        elif self.http10:
            framing = b""
            self.keep_alive = False
        else:
            framing = b"transfer-encoding: chunked\r\n"
            self._chunked = True
        return framing if self.keep_alive else framing + b"connection: close\r\n"

    def on_data(self, data: bytes) -> None:
        shown = data if self._sieve is None else self._sieve.sift(data)
        if shown:
            self._protocol.transport.write(b"%x\r\n%b\r\n" % (len(shown), shown) if self._chunked else shown)
        self._watch(data)

    def _pass_rest(self) -> None:
        """No more comes of a stream that was sifted."""
        sieve, self._sieve = self._sieve, None
        if sieve is not None:
            if rest := sieve.end():
                self._protocol.transport.write(b"%x\r\n%b\r\n" % (len(rest), rest) if self._chunked else rest)
            if sieve.took_timings and self._placement is not None:
                self._placement.state.asks_usage = False

    def _watch(self, data: bytes) -> None:
        """After the bytes have gone on: times and usage."""
        if not self._heard:
            self._hear()
        if self._streaming:
            placement = self._placement
            assert placement is not None
            now_s = self._gateway.clock()
            if self._last_data_s:
                placement.metrics.gap.observe(now_s - self._last_data_s)
            else:
                self._gateway.router.first_token(placement, now_s)
            self._last_data_s = now_s
        self._observer.feed(data)

    def _hear(self) -> None:
        """A head is no sign of life: a server sends it while the engine behind it is frozen (O62)."""
        self._heard = True
        if self._status < 500:
            assert self._placement is not None
            self._gateway.router.answered(self._placement, failed=False)

    def on_end(self, trailers: Headers) -> None:
        self._call = None
        if not self._heard:
            self._hear()
        self._observer.finish()
        self._pass_rest()
        if self._chunked:
            lines = trailer_lines(trailers) if trailers else b""
            self._protocol.transport.write(b"0\r\n" + lines + b"\r\n" if lines else _LAST_CHUNK)
        observer = self._observer
        if self._status == 200 and not observer.done:
            assert self._placement is not None
            self._placement.metrics.without_done.value += 1  # passed as it came; who watches shall know
        self._finish()

    def on_error(self, error: UpstreamError) -> None:
        gateway = self._gateway
        placement = self._placement
        assert placement is not None
        self._call = None
        gateway.router.failed(placement, error)
        gateway.log_failure(placement, error, self._request_id)
        if not self._head_sent:
            gateway.router.abandon(placement)
            if not (error.retryable and self._try_another(retry_reason(error))):
                self.refuse(error)
            return
        placement.metrics.truncated.value += 1
        self._pass_rest()
        if self._streaming and self._chunked:
            if not isinstance(error, UpstreamTruncated):
                error = UpstreamTruncated(str(error))
            event = self.endpoint.dialect.error_event(error)
            if not self._observer.at_boundary:
                event = self.endpoint.dialect.break_off + event
            self._protocol.transport.write(b"%x\r\n%b\r\n" % (len(event), event) + _LAST_CHUNK)
        else:
            self.keep_alive = False
        self._finish(truncated=True)

    # The end.

    def _finish(self, *, truncated: bool = False) -> None:
        placement, self._placement = self._placement, None
        gateway = self._gateway
        if placement is not None:
            if self.endpoint.stateful and (answer_id := self._observer.answer_id) is not None:
                tenant = placement.prepared.caller.tenant
                gateway.response_ids.learn(tenant, answer_id, placement.lease.instance.id)
            if self._status >= 400:
                gateway.router.abandon(placement)
            else:
                gateway.router.settle(placement, None if truncated else self._observer.usage, self._observer.chunks)
        gateway.count_request(self._prepared, placement, self._status)
        caller = self.head.caller
        if caller is not None and caller.quota is not None:
            gateway.metrics.access.answered(caller, self._status)
            self._leave()
        self._release_body()
        self.response_complete = True
        protocol = self._protocol
        if not self.keep_alive and self.body_complete:
            protocol.transport.close()
        protocol.exchange_done(self)

    def client_gone(self) -> None:
        """The client's connection is closed: stop the backend at once, in whatever phase (O01, O02, O03)."""
        if self.disconnected or self.response_complete:
            return
        self.disconnected = True
        call, self._call = self._call, None
        if call is not None:
            call.cancel()
        if self._preparing is not None:
            self._preparing.cancel()
        placement, self._placement = self._placement, None
        waiting: Phase = "wait" if placement is not None else "route" if self.body_complete else "receive"
        phase: Phase = "stream" if self._head_sent else waiting
        if placement is not None:
            self._gateway.router.abandon(placement, cancelled=True)
        self._gateway.count_cancelled(self._prepared, phase)
        self._leave()
        self._release_body()

    def pause(self) -> None:
        """The client does not read: neither do we."""
        if self._call is not None:
            self._call.pause()

    def resume(self) -> None:
        if self._call is not None:
            self._call.resume()

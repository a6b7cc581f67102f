"""uvicorn's HttpToolsProtocol with the hot routes taken out before ASGI: callbacks, no task and no message per request.

All other paths, and everything about connections (keep-alive, shutdown, TLS), stay uvicorn's. Requests that a client
pipelines wait for their turn in uvicorn's own queue, hot or not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gateway.client_connection import BETWEEN, BODY, ClientConnection
from gateway.exchange import Exchange
from gateway.request_head import RequestHeadReader
from gateway.strict import check_head, head_too_large_text, origin_form
from vocabulary.errors import BadHttp, BodyTooLarge, HeadTooLarge, RequestBufferFull

if TYPE_CHECKING:
    import asyncio

    from gateway.app import Gateway
    from gateway.endpoints import Endpoint, Endpoints
    from gateway.request_head import RequestHead

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_SHORT_TARGET_BYTES: Final = 512
_READ_AHEAD_REQUESTS: Final = 16
"""Pipelined requests read ahead. Reading must go on while one is answered: a socket that is not read hides that its
client has left."""
_READ_AHEAD_BYTES: Final = 1 << 20
"""Of their bodies."""


class _Unheard(list[tuple[bytes, bytes]]):
    """Where trailers go: they are no headers, and the list of headers may be in use."""

    def append(self, field: tuple[bytes, bytes]) -> None:
        pass


_UNHEARD: Final = _Unheard()


class HotProtocol(ClientConnection):
    """One client connection. `gateway` is bound by `hot_protocol`."""

    _running: Exchange | None = None
    _upgrade_offered = False
    _checked: RequestHead | None = None
    """The last head that was found good."""
    _ahead_bytes = 0
    """Of bodies whose turn has not come."""

    # Where the last request went.
    _known_url = b""
    _known_method = b""
    _known_endpoints: Endpoints | None = None
    _endpoint: Endpoint | None = None
    _origin = b""
    """Its target in origin form."""

    _head_reader: RequestHeadReader

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_reader = RequestHeadReader(self.gateway.access, self.client[0] if self.client is not None else None)

    def connection_lost(self, exc: Exception | None) -> None:
        for exchange in (self._running, self._reading, *(cycle for cycle, _ in self.pipeline)):
            if isinstance(exchange, Exchange):
                exchange.client_gone()
        self._running = self._reading = None
        self.pipeline.clear()
        super().connection_lost(exc)

    def on_headers_complete(self) -> None:
        parser = self.parser
        self._upgrade_offered = parser.should_upgrade()
        if self._upgrade_offered:
            return
        method, version = parser.get_method(), parser.get_http_version()
        http10 = version == "1.0"
        if not http10 and version != "1.1":
            raise BadHttp("the request is not valid HTTP/1.1")
        limits = self.watch.limits
        endpoints = self._endpoints()
        if self.url != self._known_url or method != self._known_method or endpoints is not self._known_endpoints:
            self._find(method, limits.max_head_bytes, endpoints)
        endpoint, url = self._endpoint, self._origin
        if endpoint is None:
            self.url = url
            check_head(self.headers, http10, limits.max_head_bytes)
            self._reading = None
            self._leave_to_uvicorn()
            return
        head = self._head_reader.read(self.headers)
        if head is not self._checked or http10:  # the reader gives the same one while the headers stay the same
            check_head(self.headers, http10, self.watch.limits.max_head_bytes)
            self._checked = head
        exchange = Exchange(self.gateway, self, endpoint, method, url, head)
        exchange.http10 = http10
        exchange.keep_alive = not http10 and self.parser.should_keep_alive() and not self.gateway.draining
        exchange.expect_continue = self.expect_100_continue
        self.headers = _UNHEARD
        self._stage = BODY
        existing = self.cycle
        self.cycle = exchange  # type: ignore[assignment]
        self._reading = exchange
        if existing is None or existing.response_complete:
            exchange.turn = True
            if self.expect_100_continue:
                self._continue_or_refuse(exchange)
        else:
            self.pipeline.appendleft((exchange, self.app))  # type: ignore[arg-type]
            self._regulate()

    def _unusual_target(self, target: bytes, method: bytes) -> bytes:
        most = self.watch.limits.max_head_bytes
        if len(target) > most:
            raise HeadTooLarge(head_too_large_text(most))
        return origin_form(target, method)

    def _endpoints(self) -> Endpoints | None:
        """What is served before ASGI; None: nothing."""
        return self.gateway.endpoints

    def _find(self, method: bytes, max_head_bytes: int, endpoints: Endpoints | None) -> None:
        """Where the request goes. A client mostly asks one thing, so the last answer is kept."""
        asked, self._known_url = self.url, b""
        url = origin_form(asked, method)
        if len(url) > max_head_bytes:
            raise HeadTooLarge(head_too_large_text(max_head_bytes))
        path, _, _ = url.partition(b"?")
        self._endpoint = endpoints.find(method, path) if endpoints is not None else None
        self._origin = url
        self._known_method, self._known_endpoints = method, endpoints
        self._known_url = asked

    def _leave_to_uvicorn(self) -> None:
        url, headers, expect = self.url, self.headers, self.expect_100_continue
        super(ClientConnection, self).on_message_begin()
        self.url, self.expect_100_continue = url, expect
        self.headers.extend(headers)
        if self._content_length is not None:
            self.headers.append((b"content-length", self._content_length))
        super().on_headers_complete()
        self.headers = _UNHEARD
        self._plain_bytes = 0
        self._stage = BODY
        self._regulate()

    def _regulate(self) -> None:
        """Read on, or no further for now."""
        if (
            len(self.pipeline) >= _READ_AHEAD_REQUESTS
            or self._ahead_bytes > _READ_AHEAD_BYTES
            or (self.flow.write_paused and self._running is None)
        ):
            self.flow.pause_reading()
        else:
            self.flow.resume_reading()

    def _bound(self, size: int) -> None:
        """The body of a request that is refused anyway is not waited for."""
        exchange = self._reading
        if exchange is not None and exchange.stranger and exchange.turn and not exchange.response_complete:
            exchange.refuse_stranger()
        else:
            super()._bound(size)

    def _continue_or_refuse(self, exchange: Exchange) -> None:
        size, buffer = int(self._content_length or 0), self.gateway.request_buffer
        if exchange.stranger:
            exchange.refuse_stranger()
        elif size > self.gateway.limits.max_body_bytes:
            exchange.keep_alive = False
            exchange.refuse(BodyTooLarge(self.gateway.limits.body_too_large_text))
        elif size > buffer.max_bytes - buffer.used:
            exchange.keep_alive = False
            exchange.refuse(RequestBufferFull(buffer.full_text))
        else:
            self.transport.write(_CONTINUE)

    def on_body(self, body: bytes) -> None:
        exchange = self._reading
        if exchange is None:
            self._plain_bytes += len(body)
            if self._plain_bytes > self.gateway.limits.max_drained_bytes:
                raise BodyTooLarge(self.gateway.limits.body_too_large_text)
            super().on_body(body)
        elif not exchange.response_complete:
            exchange.add_body(body)
            if not exchange.turn:
                self._ahead_bytes += len(body)
                if self._ahead_bytes > _READ_AHEAD_BYTES:
                    self._regulate()
            elif exchange.size > self.gateway.limits.max_drained_bytes:
                self.watch.count_closed("body_too_large")
                exchange.keep_alive = False
                exchange.refuse(BodyTooLarge(self.gateway.limits.body_too_large_text))

    def on_message_complete(self) -> None:
        if self._upgrade_offered:
            return
        self._stage = BETWEEN
        exchange = self._reading
        if exchange is None:
            super().on_message_complete()
            return
        self._reading = None
        if exchange.response_complete:
            return
        exchange.body_complete = True
        if exchange.turn:
            self._running = exchange
            self.gateway.batch.add(exchange)

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        """uvicorn starts the next request of its queue."""
        if isinstance(cycle, Exchange):
            # not from here: a thousand tiny pipelined requests would be a thousand frames deep
            self.loop.call_soon(self._take_turn, cycle)
        else:
            super()._start_asgi_task(cycle, app)

    def _take_turn(self, exchange: Exchange) -> None:
        if self.transport.is_closing():
            exchange.client_gone()
            return
        exchange.turn = True
        self._ahead_bytes -= exchange.size
        self._regulate()
        if not exchange.body_complete:
            if exchange.expect_continue:
                self._continue_or_refuse(exchange)
            elif exchange.stranger:
                exchange.refuse_stranger()
        if exchange.body_complete and not exchange.response_complete:
            self._running = exchange
            self.gateway.batch.add(exchange)
        else:
            self._say_last_word()

    def on_response_complete(self) -> None:
        """As uvicorn's, but for its timer per response: idle connections are closed by the pass over all."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        if self.pipeline or self.flow.read_paused or self.flow.write_paused:
            self._regulate()
        if self._last_word is not None:
            self._say_last_word()

    def exchange_done(self, exchange: Exchange) -> None:
        self._running = None
        self.on_response_complete()
        if not exchange.keep_alive and not exchange.body_complete:
            self._linger()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._running is not None:
            self._running.pause()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._running is not None:
            self._running.resume()
        self._regulate()

    def shutdown(self) -> None:
        if self._running is not None:
            self._running.keep_alive = False
        super().shutdown()


class SideProtocol(HotProtocol):
    """Of the admin and metrics addresses: the same care for the connection, and nothing before ASGI."""

    def _endpoints(self) -> Endpoints | None:
        return None


def hot_protocol(gateway: Gateway) -> type[HotProtocol]:
    """uvicorn builds its protocols from a class: one that knows this gateway."""
    return type("GatewayProtocol", (HotProtocol,), {"gateway": gateway, "watch": gateway.connections})


def side_protocol(gateway: Gateway) -> type[SideProtocol]:
    """For the listeners that are not traffic's, counted apart: a gateway that is full can still be asked why."""
    return type("AdminProtocol", (SideProtocol,), {"gateway": gateway, "watch": gateway.side_connections})

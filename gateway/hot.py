"""uvicorn's HttpToolsProtocol with the hot routes taken out before ASGI: callbacks, no task and no message per request.

All other paths, and everything about connections (keep-alive, shutdown, TLS), stay uvicorn's. Requests that a client
pipelines wait for their turn in uvicorn's own queue, hot or not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.exchange import Exchange
from gateway.headers import error_body, response_head
from gateway.request_head import RequestHeadReader
from vocabulary.errors import BadHttp, BodyTooLarge

if TYPE_CHECKING:
    import asyncio

    from gateway.app import Gateway

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_WRITE_BUFFER_BYTES: Final = 256 * 1024
_READ_AHEAD_REQUESTS: Final = 16
"""Pipelined requests read ahead. Reading must go on while one is answered: a socket that is not read hides that its
client has left."""

_LINGER_S: Final = 1.0

HOT_ROUTES: Final = {b"/v1/chat/completions": "chat", b"/v1/completions": "completions"}


class HotProtocol(HttpToolsProtocol):
    """One client connection. `gateway` is bound by `hot_protocol`."""

    gateway: Gateway

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_reader = RequestHeadReader()
        self._content_length: bytes | None = None
        self._reading: Exchange | None = None
        self._running: Exchange | None = None
        self._upgrade_offered = False
        self._malformed = False
        """What came last is no HTTP: a 400 goes out after the answers before it."""
        self._deaf = False
        """What the client still sends is thrown away."""
        self.idle_since_s: float | None = None
        """Waiting for a next request, since then. uvicorn's timer outlives a reset, with the request (O67)."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        self.gateway.connections.add(self)
        self.idle_since_s = self.gateway.clock()

    def connection_lost(self, exc: Exception | None) -> None:
        self.gateway.connections.discard(self)
        running, self._running = self._running, None
        if running is not None:
            running.client_gone()
        self._unset_keepalive_if_required()  # lingering
        self.pipeline.clear()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        self.idle_since_s = None
        rest = memoryview(data)
        try:
            while True:
                try:
                    self.parser.feed_data(rest)
                    return
                except httptools.HttpParserUpgrade as error:
                    # the parser takes what follows for another protocol (h2c, as Java's HttpClient offers): the offer
                    # is declined by reading the head again without it
                    rest = rest[error.args[0] :]
                    self.parser.feed_data(self._head_without_upgrade())
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._malformed = self._deaf = True
            self._refuse_malformed()

    def _head_without_upgrade(self) -> bytes:
        lines = [b"%b: %b\r\n" % pair for pair in self.headers if pair[0] != b"upgrade"]
        if self._content_length is not None:
            lines.append(b"content-length: %b\r\n" % self._content_length)
        version = self.parser.get_http_version().encode()
        return b"%b %b HTTP/%b\r\n%b\r\n" % (self.parser.get_method(), self.url, version, b"".join(lines))

    def on_message_begin(self) -> None:
        self.url = b""
        self.headers = []
        self._content_length = None
        self.expect_100_continue = False

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"content-length":
            self._content_length = value  # apart: it differs where all else is as in the request before
            return
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._upgrade_offered = self.parser.should_upgrade()
        if self._upgrade_offered:
            return
        if not self.url.startswith(b"/") and b"://" in self.url:  # absolute form
            parts = httptools.parse_url(self.url)
            self.url = (parts.path or b"/") + (b"?" + parts.query if parts.query else b"")
        path, _, _ = self.url.partition(b"?")
        route = HOT_ROUTES.get(path)
        if route is None or self.parser.get_method() != b"POST":
            self._reading = None
            self._leave_to_uvicorn()
            return
        exchange = Exchange(self.gateway, self, route, self.url, self._head_reader.read(self.headers))
        exchange.http10 = self.parser.get_http_version() == "1.0"
        exchange.keep_alive = not exchange.http10 and self.parser.should_keep_alive() and not self.gateway.draining
        exchange.expect_continue = self.expect_100_continue
        self.headers = []  # trailers are no headers
        existing = self.cycle
        self.cycle = exchange  # type: ignore[assignment]
        self._reading = exchange
        if existing is None or existing.response_complete:
            exchange.turn = True
            if self.expect_100_continue:
                self._continue_or_refuse(exchange)
        else:
            self.pipeline.appendleft((exchange, self.app))  # type: ignore[arg-type]
            self._hold_back()

    def _leave_to_uvicorn(self) -> None:
        url, headers, expect = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expect
        self.headers.extend(headers)
        if self._content_length is not None:
            self.headers.append((b"content-length", self._content_length))
        super().on_headers_complete()
        self.flow.resume_reading()
        self._hold_back()

    def _hold_back(self) -> None:
        """Read no further requests for now."""
        if len(self.pipeline) >= _READ_AHEAD_REQUESTS or (self.flow.write_paused and self._running is None):
            self.flow.pause_reading()

    def _continue_or_refuse(self, exchange: Exchange) -> None:
        if int(self._content_length or 0) > self.gateway.limits.max_body_bytes:
            exchange.keep_alive = False
            exchange.refuse(BodyTooLarge(self.gateway.limits.body_too_large_text))
        else:
            self.transport.write(_CONTINUE)

    def on_body(self, body: bytes) -> None:
        exchange = self._reading
        if exchange is None:
            super().on_body(body)
        elif not exchange.response_complete:
            exchange.add_body(body)
            if exchange.turn and exchange.size > self.gateway.limits.max_drained_bytes:
                exchange.keep_alive = False
                exchange.refuse(BodyTooLarge(self.gateway.limits.body_too_large_text))

    def on_message_complete(self) -> None:
        if self._upgrade_offered:
            return
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
            return
        exchange.turn = True
        if exchange.expect_continue and not exchange.body_complete:
            self._continue_or_refuse(exchange)
        if exchange.body_complete and not exchange.response_complete:
            self._running = exchange
            self.gateway.batch.add(exchange)
        elif self._malformed:
            self._refuse_malformed()

    def on_response_complete(self) -> None:
        """As uvicorn's, but for its timer per response: the gateway closes idle connections in one pass a second."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        else:
            self.idle_since_s = self.gateway.clock()
        self._hold_back()
        if self._malformed:
            self._refuse_malformed()

    def close_if_idle(self, before_s: float) -> None:
        """Nothing was asked since `before_s`."""
        if self.idle_since_s is not None and self.idle_since_s <= before_s:
            self.transport.close()

    def exchange_done(self, exchange: Exchange) -> None:
        self._running = None
        self.on_response_complete()
        if not exchange.keep_alive and not exchange.body_complete:
            self._linger()

    def _linger(self) -> None:
        """Answered for the last time, but the client is still sending: closing now would be a reset, which takes the
        answer with it."""
        if self.transport.is_closing():
            return
        self._deaf = True
        self.flow.resume_reading()
        self.transport.write_eof()
        self.timeout_keep_alive_task = self.loop.call_later(_LINGER_S, self.transport.close)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._running is not None:
            self._running.pause()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._running is not None:
            self._running.resume()
        self.flow.resume_reading()
        self._hold_back()

    def shutdown(self) -> None:
        if self._running is not None:
            self._running.keep_alive = False
        super().shutdown()

    def _refuse_malformed(self) -> None:
        """The same JSON shape as every other error; never into the middle of another request's answer."""
        cycle: Any = self.cycle
        reading = self._reading
        half_read = reading is not None and reading is cycle and reading.turn
        if cycle is not None and not cycle.response_complete and not half_read:
            return
        body = error_body(BadHttp("the request is not valid HTTP/1.1"))
        framing = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n" % len(body)
        self.transport.write(response_head(400, b"", b"", framing) + body)
        self._linger()


def hot_protocol(gateway: Gateway) -> type[HotProtocol]:
    """uvicorn builds its protocols from a class: one that knows this gateway."""
    return type("GatewayProtocol", (HotProtocol,), {"gateway": gateway})

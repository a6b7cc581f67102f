"""HTTP/1.1 for the simulated engine: httptools on a raw asyncio protocol. One request at a time per connection; what
a client pipelines waits. Knows nothing of engines.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, cast

import httptools

from backends.engine.errors import ApiError
from backends.engine.rendering import response_head

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

MAX_BODY: Final = 64 * 2**20
_MAX_PIPELINED: Final = 8
_RESET: Final = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """`path` without the query; header names in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    keep_alive: bool


class Handler(Protocol):
    def handle(self, request: HttpRequest, connection: Connection) -> None:
        """Answer now or later, by `respond`, or by `start`, `write` and `finish`."""
        ...

    def reject(self, error: ApiError, connection: Connection) -> None: ...


class Connection(asyncio.Protocol):
    """One client. `on_leave` and `on_resume` belong to whoever answers the current request."""

    def __init__(self, handler: Handler, connections: set[Connection]) -> None:
        self._handler = handler
        self._connections = connections
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._queue: deque[HttpRequest] = deque()
        self._current: HttpRequest | None = None
        self._url = b""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._broken = False
        self.paused = False
        self.write: Callable[[bytes], None] = _discard
        """Bytes of the current response's body, already framed."""
        self.on_leave: Callable[[], object] | None = None
        self.on_resume: Callable[[], None] | None = None

    # asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.write = self._transport.write
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self._queue.clear()
        self.write = _discard
        self._transport = None
        on_leave = self.on_leave
        self._forget()
        if on_leave is not None:
            on_leave()

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        if self.on_resume is not None:
            self.on_resume()

    def data_received(self, data: bytes) -> None:
        if self._broken:
            return
        try:
            self._parser.feed_data(data)
        except ApiError as error:
            self._refuse(error)
        except httptools.HttpParserUpgrade:
            self._refuse(ApiError(400, "protocol upgrades are not served"))
        except httptools.HttpParserError as error:
            cause = error.__context__
            refusal = cause if isinstance(cause, ApiError) else ApiError(400, "this is not HTTP/1.1")
            self._refuse(refusal)

    # httptools

    def on_message_begin(self) -> None:
        self._url = b""
        self._headers = {}
        self._body = []
        self._body_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._headers.get("expect", "").lower() == "100-continue" and self._current is None:
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes > MAX_BODY:
            raise ApiError(413, f"the body is larger than {MAX_BODY} bytes")
        self._body.append(body)

    def on_message_complete(self) -> None:
        request = HttpRequest(
            self._parser.get_method().decode("latin-1"),
            self._url.partition(b"?")[0].decode("latin-1"),
            self._headers,
            b"".join(self._body),
            self._parser.should_keep_alive(),
        )
        self._body = []
        self._queue.append(request)
        if self._current is None:
            self._next()
        elif len(self._queue) >= _MAX_PIPELINED and self._transport is not None:
            self._transport.pause_reading()

    # responses

    @property
    def request_id(self) -> str | None:
        """The client's x-request-id of the current request."""
        return self._current.headers.get("x-request-id") if self._current else None

    @property
    def path(self) -> str:
        """Of the current request; empty where none could be read."""
        return self._current.path if self._current else ""

    def respond(
        self,
        status: int,
        body: bytes,
        content_type: str = "application/json",
        headers: Iterable[tuple[str, str]] = (),
    ) -> None:
        """A whole response."""
        framing = (("content-type", content_type), ("content-length", str(len(body))))
        self.start(status, (*framing, *headers), body)
        self.finish()

    def start(self, status: int, headers: Iterable[tuple[str, str]], body: bytes = b"") -> None:
        """The head, and `body` with it."""
        request = self._current
        echoed = self.request_id
        all_headers = [*headers, ("x-request-id", echoed)] if echoed else headers
        self.write(response_head(status, all_headers, keep_alive=request is not None and request.keep_alive) + body)

    def finish(self) -> None:
        """The response is complete; the next request has its turn."""
        request = self._current
        self._forget()
        if self._transport is None:
            return
        if request is None or not request.keep_alive:
            self._transport.close()
        elif self._queue:
            asyncio.get_running_loop().call_soon(self._next)

    def reset(self) -> None:
        """Cut the connection as a dying process does: what was sent arrives, then a TCP reset."""
        if self._transport is not None:
            self.write = _discard
            sock = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            asyncio.get_running_loop().call_soon(self._transport.abort)  # uvloop sends at the end of a turn

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def _next(self) -> None:
        if self._current is not None or not self._queue or self._transport is None:
            return
        self._current = request = self._queue.popleft()
        self._transport.resume_reading()
        self._handler.handle(request, self)

    def _refuse(self, error: ApiError) -> None:
        """The byte stream cannot be followed any more: answer if nothing else is being answered, and close."""
        self._broken = True
        if self._transport is None:
            return
        if self._current is None:
            self._handler.reject(error, self)
        else:
            self._transport.close()

    def _forget(self) -> None:
        self._current = None
        self.on_leave = None
        self.on_resume = None


def _discard(data: bytes) -> None:
    """Writes after the client left."""

"""An upstream and a client for many streams at once: callbacks only, no task and no buffer per stream.

The request itself says how it is to be answered, in its field `pace` (see `paced`). Invariant: a stream that nobody
cuts has exactly the events that were asked for and then `[DONE]`.
"""

from __future__ import annotations

import asyncio
import json
import socket
from typing import TYPE_CHECKING, Any, Self, cast

import httptools

from tests.support.gateway import request_bytes
from tests.support.upstream import DONE, SSE_HEAD, chunk

if TYPE_CHECKING:
    from types import TracebackType

_METRICS = b"vllm:num_requests_running 0\nvllm:num_requests_waiting 0\nprocess_start_time_seconds %d\n"
_SEND_BUFFER_BYTES = 32 * 1024
_LAST = chunk(DONE) + b"0\r\n\r\n"


def paced(
    text: str, *, events: int = 3, gap_s: float = 0.0, head_s: float | None = 0.0, size: int = 100, model: str = "m"
) -> dict[str, Any]:
    """A chat request for a stream of `events` events of about `size` bytes. `head_s`: seconds before the response
    head, None never sends one."""
    pace = {"events": events, "gap_s": gap_s, "head_s": head_s, "size": size}
    return {"model": model, "stream": True, "messages": [{"role": "user", "content": text}], "pace": pace}


class StreamUpstream:
    """A backend on a port of its own. `kill` and `listen` again are a process that dies and comes back."""

    def __init__(self, models: tuple[str, ...] = ("m",)) -> None:
        self.models = models
        self.port = 0
        self.lives = 0
        self.requests = 0
        self.open = 0
        """Requests under way."""
        self.cut = 0
        """Requests whose connection ended before they were answered."""
        self.connections: set[_Connection] = set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def listen(self) -> None:
        loop = asyncio.get_running_loop()
        self.lives += 1
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)  # connections inherit it
        listener.bind(("127.0.0.1", self.port))
        self._server = await loop.create_server(lambda: _Connection(self), sock=listener, backlog=2048)
        self.port = listener.getsockname()[1]

    async def kill(self) -> None:
        """Stop listening and reset every connection."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        for connection in list(self.connections):
            connection.transport.abort()
        await server.wait_closed()

    def freeze(self) -> socket.socket:
        """Accept no connection any more, with a queue of one. The caller closes the listening socket that it gets."""
        assert self._server is not None
        kept = self._server.sockets[0].dup()
        self._server.close()
        kept.listen(0)
        return kept

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.kill()

    def probe_answer(self, target: bytes) -> bytes:
        if target == b"/metrics":
            return _METRICS % (1000 * self.lives)
        models = [{"id": model, "object": "model"} for model in self.models]
        return json.dumps({"object": "list", "data": models}).encode()


class _Connection(asyncio.Protocol):
    def __init__(self, upstream: StreamUpstream) -> None:
        self._upstream = upstream
        self._parser = httptools.HttpRequestParser(self)
        self._target = b""
        self._body: list[bytes] = []
        self._left = 0
        self._gap_s = 0.0
        self._event = b""
        self._answering = False
        self._paused = False
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._loop = asyncio.get_running_loop()
        self._upstream.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._upstream.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._answering:
            self._answering = False
            self._upstream.open -= 1
            self._upstream.cut += 1

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._target, self._body = b"", []

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        if self._parser.get_method() != b"POST":
            answer = self._upstream.probe_answer(self._target)
            self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(answer), answer))
            return
        request = json.loads(b"".join(self._body))
        self._body = []
        upstream = self._upstream
        upstream.requests += 1
        upstream.open += 1
        self._answering = True
        pace = request["pace"]
        self._left, self._gap_s = pace["events"], pace["gap_s"]
        text = json.dumps({"choices": [{"index": 0, "delta": {"content": "x" * pace["size"]}}]})
        self._event = chunk(f"data: {text}\n\n".encode())
        head_s = pace["head_s"]
        if head_s == 0:
            self._begin()
        elif head_s is not None:
            self._timer = self._loop.call_later(head_s, self._begin)

    def _begin(self) -> None:
        self.transport.write(SSE_HEAD)
        self._tick()

    def _tick(self) -> None:
        """Write what is due; where the peer does not read, nothing until it does."""
        self._timer = None
        while self._left and not self._paused:
            self._left -= 1
            self.transport.write(self._event)
            if self._gap_s:
                self._timer = self._loop.call_later(self._gap_s, self._tick)
                return
        if not self._left and self._answering:
            self._answering = False
            self._upstream.open -= 1
            self.transport.write(_LAST)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        if self._answering and self._timer is None:
            self._loop.call_soon(self._tick)


class StreamClient(asyncio.Protocol):
    """One connection to a gateway: one request after another, counted and thrown away as they come."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._tail = b""
        self._length: int | None = None
        self._ended: asyncio.Future[None] | None = None
        self._head_read = False
        self.status = 0
        """Of the last answer; 0 before its head."""
        self.head = b""
        self.events = 0
        self.done = False
        """`[DONE]` was seen."""
        self.error = b""
        """The end of an answer that was not a whole stream."""
        self.lost = asyncio.Event()

    @classmethod
    async def connect(cls, host: str, port: int, receive_buffer_bytes: int | None = None) -> StreamClient:
        """A small receive buffer makes a client that does not read felt early."""
        sock = socket.socket()
        if receive_buffer_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_connect(sock, (host, port))
            _, client = await loop.create_connection(cls, sock=sock)
        except BaseException:
            sock.close()
            raise
        return client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()
        self._finish()

    def send(self, body: dict[str, Any], headers: dict[str, str] | None = None) -> asyncio.Future[None]:
        """The future is done when the answer, or the connection, has ended."""
        self.status, self.head, self.events, self.done, self.error = 0, b"", 0, False, b""
        self._head_read, self._tail, self._length = False, b"", None
        self._ended = self._loop.create_future()
        self.transport.write(request_bytes(body, headers=headers or {}))
        return self._ended

    @property
    def whole(self) -> bool:
        """The last answer was a stream, from its head to its end mark."""
        return self.status == 200 and self.done and not self.error

    def header(self, name: str) -> str | None:
        lines = self.head.decode("latin-1").split("\r\n")
        return next((v.strip() for n, _, v in (line.partition(":") for line in lines) if n.lower() == name), None)

    def data_received(self, data: bytes) -> None:
        if not self._head_read:
            self.head += data
            if b"\r\n\r\n" not in self.head:
                return
            self.head, data = self.head.split(b"\r\n\r\n", 1)
            self._head_read = True
            self.status = int(self.head.split(b" ", 2)[1])
            length = self.header("content-length")
            self._length = int(length) if length is not None else None
        if self._length is not None:
            self._tail += data
            if len(self._tail) >= self._length:
                self.error = self._tail
                self._finish()
            return
        self.events += data.count(b"data: {")
        tail = self._tail + data
        if b'"error"' in tail:
            self.error = tail
        self.done = self.done or b"data: [DONE]" in tail
        self._tail = tail[-512:]
        if tail.endswith(b"\r\n0\r\n\r\n"):
            self._finish()

    def _finish(self) -> None:
        ended, self._ended = self._ended, None
        if ended is not None and not ended.done():
            ended.set_result(None)

    async def close(self) -> None:
        self.transport.abort()
        await self.lost.wait()

"""A backend that trusts nobody: it keeps every byte and reads requests by the letter of RFC 9112, with code of its own.

Anything that is no whole, unambiguous request in the one form that the gateway writes is a fault.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self, cast

if TYPE_CHECKING:
    from types import TracebackType

_REQUEST_LINE = re.compile(rb"(GET|POST|DELETE) (/[!-\"$-~]*) HTTP/1\.1")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+): ?([\t\x20-\x7e\x80-\xff]*)")
_MODELS = b'{"object": "list", "data": [{"id": "m", "object": "model"}]}'


@dataclass
class Request:
    method: bytes
    target: bytes
    fields: list[tuple[bytes, bytes]]
    body: bytes = b""

    def all(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.fields if key.lower() == name]


@dataclass
class Oracle:
    port: int = 0
    requests: list[Request] = field(default_factory=list)
    """Without the gateway's own probes."""
    faults: list[bytes] = field(default_factory=list)
    answer: bytes = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
    _server: asyncio.Server | None = None
    _connections: set[_Connection] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for connection in list(self._connections):
            connection.transport.abort()
        await self._server.wait_closed()

    def bodies(self) -> list[bytes]:
        return [request.body for request in self.requests]


class _Connection(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._oracle._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._oracle._connections.discard(self)
        if self._data and exc is None:
            self._oracle.faults.append(b"half a request: " + self._data[:500])

    def data_received(self, data: bytes) -> None:
        self._data += data
        while b"\r\n\r\n" in self._data:
            head, rest = self._data.split(b"\r\n\r\n", 1)
            request = self._read(head)
            if request is None:
                self._oracle.faults.append(self._data[:500])
                self._data = b""
                self.transport.abort()
                return
            length = int((request.all(b"content-length") or [b"0"])[0])
            if len(rest) < length:
                return
            request.body, self._data = rest[:length], rest[length:]
            if self._data:
                self._oracle.faults.append(b"two requests in one: " + self._data[:500])
            self._answer(request)

    def _read(self, head: bytes) -> Request | None:
        first, *lines = head.split(b"\r\n")
        line = _REQUEST_LINE.fullmatch(first)
        fields = [_FIELD.fullmatch(line) for line in lines]
        if line is None or not all(fields):
            return None
        request = Request(line[1], line[2], [(match[1], match[2]) for match in fields if match is not None])
        probe = request.method == b"GET" and not request.all(b"x-request-id")
        lengths = request.all(b"content-length")
        whole = len(lengths) == 1 and lengths[0].isdigit()
        if request.all(b"transfer-encoding") or len(request.all(b"host")) != 1 or not (whole or probe):
            return None
        return request

    def _answer(self, request: Request) -> None:
        if request.method == b"GET" and not request.all(b"x-request-id"):
            body = _MODELS if request.target == b"/v1/models" else b""
            self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
            return
        self._oracle.requests.append(request)
        self.transport.write(self._oracle.answer)

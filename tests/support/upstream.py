"""A backend that does what a test says, byte for byte, on a real socket.

Health, models and metrics are answered as an engine would; every POST runs the test's script.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    Script = Callable[["Served"], Awaitable[None]]


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(payload: object) -> bytes:
    return b"data: " + (payload if isinstance(payload, bytes) else json.dumps(payload).encode()) + b"\n\n"


def token(text: str = "tok") -> bytes:
    return event({"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": text}}]})


DONE = event(b"[DONE]")
SSE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


@dataclass
class Served:
    """One request, and the means to answer it."""

    upstream: ScriptedUpstream
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    method: str
    target: str
    headers: list[tuple[bytes, bytes]]
    body: bytes
    number: int
    """0 for the first POST that this upstream got."""
    sent: int = 0

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def header(self, name: str) -> str | None:
        return next((v.decode() for n, v in self.headers if n.decode().lower() == name), None)

    async def write(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()
        self.sent += len(data)

    async def respond(self, body: bytes | dict[str, Any], status: int = 200, headers: bytes = b"") -> None:
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
        head = b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\n%bcontent-length: %d\r\n\r\n" % (
            status,
            headers,
            len(body),
        )
        await self.write(head + body)

    async def stream(self, *events: bytes, done: bool = True, gap_s: float = 0.0) -> None:
        await self.write(SSE_HEAD)
        for one in (*events, *([DONE] if done else [])):
            await self.write(chunk(one))
            if gap_s:
                await asyncio.sleep(gap_s)
        await self.write(b"0\r\n\r\n")

    def reset(self) -> None:
        """RST."""
        self.writer.transport.abort()

    async def until_closed(self) -> None:
        """Returns when the gateway closed the socket; records that it did."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(65536):
                pass
        self.upstream.count_closed()


async def answer(served: Served) -> None:
    """The plain script: a stream of three tokens or one JSON answer."""
    usage = {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}
    if served.json.get("stream"):
        await served.stream(token("a"), token("b"), token("c"))
    else:
        await served.respond({"object": "chat.completion", "choices": [], "usage": usage})


@dataclass
class ScriptedUpstream:
    script: Script = answer
    models: tuple[str, ...] = ("m",)
    metrics: str = "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\nprocess_start_time_seconds 1000\n"
    health_status: int = 200
    owner: str | None = None
    """`owned_by` in the model list."""
    pages: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    """Status and body by path, before all that a GET gets otherwise."""
    tls: ssl.SSLContext | None = None
    port: int = 0
    requests: list[Served] = field(default_factory=list)
    connections: int = 0
    """Open now."""
    accepted: int = 0
    closed: int = 0
    """Exchanges that ended by the gateway closing its socket, as seen by `until_closed`."""
    probes: int = 0
    health_probes: int = 0
    asked: Counter[str] = field(default_factory=Counter)
    """GETs by path."""

    def __post_init__(self) -> None:
        self._changed = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def listen(self) -> None:
        self._server = await asyncio.start_server(
            self._accept, "127.0.0.1", self.port, ssl=self.tls, limit=1 << 26, backlog=2048
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.shut()

    async def shut(self) -> None:
        """Stop listening and reset every connection, as a killed process does."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await server.wait_closed()

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    def count_closed(self) -> None:
        self.closed += 1
        self._notify()

    def _notify(self) -> None:
        task = asyncio.get_running_loop().create_task(self._wake())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _wake(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def until(self, condition: Callable[[ScriptedUpstream], bool], timeout_s: float = 10.0) -> None:
        async with asyncio.timeout(timeout_s), self._changed:
            await self._changed.wait_for(lambda: condition(self))

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        self.connections += 1
        self.accepted += 1
        try:
            await self._serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the root of this task: `shut` cancels it, and asyncio's streams would report that as an error
        finally:
            self.connections -= 1
            self._writers.discard(writer)
            self._tasks.discard(task)
            writer.close()
            if self._server is not None:
                self._notify()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            first, *lines = head[:-4].split(b"\r\n")
            method, target, _ = first.decode().split(" ")
            headers = [(name.strip(), value.strip()) for name, _, value in (line.partition(b":") for line in lines)]
            length = int(next((value for name, value in headers if name.lower() == b"content-length"), b"0"))
            body = await reader.readexactly(length)
            served = Served(self, reader, writer, method, target, headers, body, len(self.requests))
            if method == "GET":
                await self._probe(served)
                continue
            self.requests.append(served)
            self._notify()
            await self.script(served)
            if writer.transport.is_closing():
                return

    async def _probe(self, served: Served) -> None:
        self.probes += 1
        self.asked[served.target] += 1
        if served.target in self.pages:
            status, body = self.pages[served.target]
            await served.respond(body, status)
        elif served.target == "/health":
            self.health_probes += 1
            await served.respond({}, self.health_status)
        elif served.target == "/v1/models":
            owned = {} if self.owner is None else {"owned_by": self.owner}
            cards = [{"id": m, "object": "model", **owned} for m in self.models]
            await served.respond({"object": "list", "data": cards})
        elif served.target == "/metrics":
            await served.respond(self.metrics.encode())
        else:
            await served.respond({}, 404)

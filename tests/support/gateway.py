"""A whole gateway on real sockets inside the test's loop, and a raw client that sees every byte."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from gateway.config import default_config
from gateway.hot import HotProtocol
from gateway.serve import Process

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from gateway.app import Gateway
    from gateway.config import Config
    from gateway.reload import Outcome

    Backends = Iterable[str | dict[str, Any]] | Mapping[str, str]

FAST: dict[str, dict[str, Any]] = {
    "listen": {"port": 0, "drain_delay_s": 0, "grace_s": 1},
    "admin": {"port": 0},
    "health": {"interval_s": 0.2, "timeout_s": 1, "metrics_interval_s": 0.2},
}
"""Free ports, and waiting times a tenth of an operator's."""


class RunningGateway:
    def __init__(self, process: Process, source: _Source) -> None:
        self.process = process
        self._source = source
        self.gateway: Gateway = process.gateway
        self.url = process.addresses.traffic
        self.admin_url = process.addresses.admin
        parts = urlsplit(self.url)
        self.host, self.port = str(parts.hostname), int(parts.port or 0)

    async def reload(self, backends: Backends | None = None, **sections: Any) -> Outcome:
        """By a config that differs in these."""
        self._source.change(backends, sections)
        return await self.process.reloader.reload("admin")

    async def connect(self) -> RawClient:
        reader, writer = await asyncio.open_connection(self.host, self.port, limit=1 << 26)
        return RawClient(reader, writer)

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[RawClient]:
        client = await self.connect()
        try:
            yield client
        finally:
            await client.close()

    async def until(self, condition: Callable[[Gateway], bool], timeout_s: float = 10.0) -> None:
        """Poll the gateway's own state; for what no socket shows."""
        async with asyncio.timeout(timeout_s):
            while not condition(self.gateway):
                await asyncio.sleep(0.002)

    @property
    def connections(self) -> list[HotProtocol]:
        """Of clients, as the gateway sees them."""
        return [one for one in self.gateway.connections if isinstance(one, HotProtocol)]

    @property
    def in_flight(self) -> int:
        return sum(backend.instance.in_flight for backend in self.gateway.registry)

    def in_flight_of(self, name: str) -> int:
        return next(b.instance.in_flight for b in self.gateway.registry if b.name == name)

    def assert_at_rest(self) -> None:
        """No lease, no call and no task is left."""
        for backend in self.gateway.registry:
            instance = backend.instance
            assert instance.in_flight == 0
            assert not instance.pending
            assert instance.pending_prefill_s == 0
            assert instance.pending_uncached_tokens == 0
            assert backend.upstream.active == 0  # type: ignore[attr-defined]
        assert self.gateway.tasks == 0


class _Source:
    """What the config file would be."""

    def __init__(self, backends: Backends, sections: dict[str, Any]) -> None:
        self._sections: dict[str, Any] = {name: dict(section) for name, section in FAST.items()}
        self._entries = _entries(backends)
        self.change(None, sections)

    def change(self, backends: Backends | None, sections: dict[str, Any]) -> None:
        if backends is not None:
            self._entries = _entries(backends)
        for name, section in sections.items():
            merges = isinstance(section, dict)
            self._sections[name] = {**self._sections.get(name, {}), **section} if merges else section

    def read(self) -> Config:
        return default_config(backends=self._entries, **self._sections)


def _entries(backends: Backends) -> list[dict[str, Any]]:
    if isinstance(backends, Mapping):
        return [{"name": name, "url": url} for name, url in backends.items()]
    return [
        entry if isinstance(entry, dict) else {"name": chr(ord("a") + i), "url": entry}
        for i, entry in enumerate(backends)
    ]


@contextlib.asynccontextmanager
async def running_gateway(backends: Backends, **sections: Any) -> AsyncIterator[RunningGateway]:
    """A gateway in front of these URLs (named a, b, c, ...). `sections` are merged over FAST, key by key."""
    source = _Source(backends, sections)
    process = Process(source.read(), source.read)
    ready = asyncio.Event()
    task = asyncio.create_task(process.run(lambda _: ready.set()))
    waiting = asyncio.create_task(ready.wait())
    try:
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        yield RunningGateway(process, source)
    finally:
        waiting.cancel()
        process.stop()
        await asyncio.wait_for(task, 20)


class Response:
    def __init__(self, status: int, headers: list[tuple[str, str]], reader: asyncio.StreamReader) -> None:
        self.status = status
        self.headers = headers
        self._reader = reader
        self.trailers: list[bytes] = []
        self.complete = False
        """The framing said that the body ended."""

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name), None)

    async def chunks(self) -> AsyncIterator[bytes]:
        """Pieces as framed. Ends at the end of the body or of the connection; `complete` tells which."""
        if self.header("transfer-encoding") == "chunked":
            try:
                while size := int((await self._reader.readuntil(b"\r\n")).split(b";")[0], 16):
                    yield (await self._reader.readexactly(size + 2))[:-2]
                while (line := await self._reader.readuntil(b"\r\n")) != b"\r\n":
                    self.trailers.append(line[:-2])
                self.complete = True
            except (asyncio.IncompleteReadError, ConnectionError):
                return
        elif (length := self.header("content-length")) is not None:
            left = int(length)
            while left and (data := await self._reader.read(left)):
                left -= len(data)
                yield data
            self.complete = left == 0
        else:
            while data := await self._reader.read(65536):
                yield data
            self.complete = True

    async def read(self) -> bytes:
        return b"".join([piece async for piece in self.chunks()])

    async def json(self) -> Any:
        return json.loads(await self.read())

    async def error(self) -> dict[str, Any]:
        error = (await self.json())["error"]
        assert isinstance(error, dict)
        return error


class RawClient:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(
        self,
        body: bytes | dict[str, Any],
        path: str = "/v1/chat/completions",
        method: str = "POST",
        headers: Mapping[str, str] | Iterable[tuple[str, str]] = (),
        version: str = "1.1",
    ) -> None:
        self.writer.write(request_bytes(body, path, method, headers, version))
        await self.writer.drain()

    async def receive(self, timeout_s: float = 10.0) -> Response:
        """The next response head; 1xx are skipped."""
        async with asyncio.timeout(timeout_s):
            while True:
                head = await self.reader.readuntil(b"\r\n\r\n")
                first, *lines = head[:-4].decode("latin-1").split("\r\n")
                status = int(first.split(" ")[1])
                if status >= 200:
                    break
        headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
        return Response(status, headers, self.reader)

    async def ask(self, body: bytes | dict[str, Any], **request: Any) -> Response:
        await self.send(body, **request)
        return await self.receive()

    def reset(self) -> None:
        self.writer.transport.abort()

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


def request_bytes(
    body: bytes | dict[str, Any],
    path: str = "/v1/chat/completions",
    method: str = "POST",
    headers: Mapping[str, str] | Iterable[tuple[str, str]] = (),
    version: str = "1.1",
) -> bytes:
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    pairs = list(headers.items()) if isinstance(headers, Mapping) else list(headers)
    names = {name.lower() for name, _ in pairs}
    defaults = [("host", "gateway"), ("content-type", "application/json"), ("content-length", str(len(body)))]
    pairs = [pair for pair in defaults if pair[0] not in names] + pairs
    if any(name.lower() == "transfer-encoding" for name, _ in pairs):
        pairs = [pair for pair in pairs if pair[0].lower() != "content-length"]
    lines = "".join(f"{name}: {value}\r\n" for name, value in pairs)
    return f"{method} {path} HTTP/{version}\r\n{lines}\r\n".encode("latin-1") + body


def chat(text: str = "hello", *, stream: bool = False, model: str = "m", **fields: Any) -> dict[str, Any]:
    return {"model": model, "stream": stream, "messages": [{"role": "user", "content": text}], **fields}

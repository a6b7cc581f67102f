"""A Kubernetes API server that knows EndpointSlices only: lists in pages, watches with history, and faults."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable
    from types import TracebackType


def pod(name: str, address: str, **conditions: bool | None) -> dict[str, Any]:
    """One endpoint; `conditions` are ready, serving and terminating."""
    return {
        "addresses": [address],
        "conditions": conditions,
        "targetRef": {"kind": "Pod", "namespace": "inference", "name": name},
    }


def endpoint_slice(
    name: str, *endpoints: dict[str, Any], ports: dict[str, int] | None = None, kind: str = "IPv4"
) -> dict[str, Any]:
    return {
        "kind": "EndpointSlice",
        "apiVersion": "discovery.k8s.io/v1",
        "metadata": {"name": name, "namespace": "inference", "labels": {"kubernetes.io/service-name": "vllm"}},
        "addressType": kind,
        "ports": [{"name": label, "port": port, "protocol": "TCP"} for label, port in (ports or {"": 8000}).items()],
        "endpoints": list(endpoints),
    }


@dataclass(frozen=True)
class Asked:
    path: str
    query: dict[str, str]
    authorization: str | None

    @property
    def watches(self) -> bool:
        return self.query.get("watch") == "True"


@dataclass
class ApiServer:
    tls: ssl.SSLContext | None = None
    token: str | None = None
    """Others get 401."""
    page: int | None = None
    """Slices in one page of a list."""
    statuses: list[int] = field(default_factory=list)
    """Given as answers, one each, before anything else is."""
    slices: dict[str, dict[str, Any]] = field(default_factory=dict)
    version: int = 100
    asked: list[Asked] = field(default_factory=list)
    port: int = 0

    def __post_init__(self) -> None:
        self._history: list[tuple[int, bytes]] = []
        self._oldest = self.version
        self._watchers: set[asyncio.StreamWriter] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._changed = asyncio.Event()

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    @property
    def watchers(self) -> int:
        return len(self._watchers)

    @property
    def lists(self) -> int:
        return sum(not one.watches for one in self.asked)

    # What a test does to the cluster.

    def put(self, item: dict[str, Any]) -> None:
        name = item["metadata"]["name"]
        self._event("MODIFIED" if name in self.slices else "ADDED", item)
        self.slices[name] = item

    def delete(self, name: str) -> None:
        self._event("DELETED", self.slices.pop(name))

    def bookmark(self) -> None:
        self._event("BOOKMARK", {"kind": "EndpointSlice", "metadata": {}})

    def send(self, line: bytes) -> None:
        """To all that watch."""
        for writer in self._watchers:
            writer.write(b"%x\r\n%b\r\n" % (len(line) + 1, line + b"\n"))

    def forget_history(self) -> None:
        self._history.clear()
        self._oldest = self.version

    def end_watches(self) -> None:
        """As after `timeoutSeconds`."""
        for writer in self._watchers:
            writer.write(b"0\r\n\r\n")
        self._watchers.clear()

    def cut_watches(self) -> None:
        for writer in self._watchers:
            writer.transport.abort()

    def _event(self, kind: str, item: dict[str, Any]) -> None:
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)
        line = json.dumps({"type": kind, "object": item}).encode()
        self._history.append((self.version, line))
        self.send(line)

    # The server.

    async def until(self, condition: Callable[[ApiServer], bool], timeout_s: float = 10.0) -> None:
        async with asyncio.timeout(timeout_s):
            while not condition(self):
                self._changed.clear()
                await self._changed.wait()

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.shut()

    async def shut(self) -> None:
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                self._answer(head.decode(), writer)
                self._changed.set()
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._tasks.discard(task)
            self._writers.discard(writer)
            self._watchers.discard(writer)
            self._changed.set()
            writer.close()

    def _answer(self, head: str, writer: asyncio.StreamWriter) -> None:
        first, *lines = head.split("\r\n")
        parts = urlsplit(first.split(" ")[1])
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        asked = Asked(parts.path, query, headers.get("authorization"))
        self.asked.append(asked)
        if self.statuses:
            _respond(writer, self.statuses.pop(0), {"kind": "Status"})
        elif self.token is not None and asked.authorization != f"Bearer {self.token}":
            _respond(writer, 401, {"kind": "Status"})
        elif asked.watches:
            self._watch(int(query["resourceVersion"]), writer)
        else:
            self._list(int(query.get("continue", "0")), writer)

    def _list(self, start: int, writer: asyncio.StreamWriter) -> None:
        names = sorted(self.slices)
        end = len(names) if self.page is None else min(len(names), start + self.page)
        more = {"continue": str(end)} if end < len(names) else {}
        items = [self.slices[name] for name in names[start:end]]
        _respond(writer, 200, {"metadata": {"resourceVersion": str(self.version), **more}, "items": items})

    def _watch(self, version: int, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
        lines = [line for number, line in self._history if number > version]
        if version < self._oldest:
            lines = [json.dumps({"type": "ERROR", "object": {"kind": "Status", "code": 410}}).encode()]
        for line in lines:
            writer.write(b"%x\r\n%b\r\n" % (len(line) + 1, line + b"\n"))
        self._watchers.add(writer)


def _respond(writer: asyncio.StreamWriter, status: int, body: dict[str, Any]) -> None:
    content = json.dumps(body).encode()
    writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (status, len(content), content))

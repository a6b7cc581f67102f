"""`python -m tests.bench.memory`: resident memory of a gateway that holds what a fleet's edge holds at its worst.

10,000 idle connections, 5,000 open streams with 100 KB prompts, and clients that do not read answers of 200 MB. The
gateway has a process of its own, whose figures these are; upstream and clients share this one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import resource
import urllib.request
from typing import TYPE_CHECKING, Any, Final

import uvloop

from tests.bench.contenders import free_port, our_config
from tests.bench.cpu import process_tree, resident_mib
from tests.bench.report import micro_table
from tests.bench.streams import gateway_process
from tests.support.streams import StreamClient, StreamUpstream, paced

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

IDLE: Final = 10_000
STREAMS: Final = 5_000
PROMPT_BYTES: Final = 100_000
NON_READERS: Final = 20
ANSWER_BYTES: Final = 200_000_000
_EVENT_BYTES: Final = 10_000
_GAP_S: Final = 1.0
_HOLD_S: Final = 10.0
_AT_ONCE: Final = 64
_SMALL_BUFFER_BYTES: Final = 65_536


class Bench:
    def __init__(self, pids: list[int], port: int, admin_port: int) -> None:
        self._pids = pids
        self._port = port
        self._admin_port = admin_port
        self.rows: list[dict[str, Any]] = []

    def row(self, name: str, value: float, unit: str = "MiB") -> None:
        self.rows.append({"name": name, "value": round(value, 2), "unit": unit, "peer": None, "ratio": None})

    def resident_mib(self) -> float:
        return resident_mib(self._pids)

    async def gauge(self, name: str) -> float:
        """From `/metrics`."""

        def read() -> str:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._admin_port}/metrics", timeout=30) as answer:
                return str(answer.read().decode())

        found = re.search(rf"^{name} ([0-9.e+]+)$", await asyncio.to_thread(read), re.MULTILINE)
        return float(found[1]) if found else float("nan")

    async def connected(self, count: int, receive_buffer_bytes: int | None = None) -> list[StreamClient]:
        clients: list[StreamClient] = []
        while len(clients) < count:
            batch = min(_AT_ONCE, count - len(clients))
            connecting = (StreamClient.connect("127.0.0.1", self._port, receive_buffer_bytes) for _ in range(batch))
            clients += await asyncio.gather(*connecting)
        return clients

    async def idle(self) -> None:
        """Each has been served once."""
        before_mib = self.resident_mib()
        clients = await self.connected(IDLE)
        for start in range(0, IDLE, _AT_ONCE):
            await asyncio.wait([client.send(paced("hello", events=1)) for client in clients[start : start + _AT_ONCE]])
        open_mib = self.resident_mib()
        await asyncio.sleep(_HOLD_S)
        self.row("idle_10000_failed", sum(not client.whole for client in clients), "1")
        self.row("idle_10000_before", before_mib)
        self.row("idle_10000_open", open_mib)
        self.row("idle_10000_after_10s", self.resident_mib())
        self.row("idle_10000_per_connection", (open_mib - before_mib) * 1024 / IDLE, "KiB")
        await self.closed(clients)
        self.row("idle_10000_closed", self.resident_mib())

    async def streams(self) -> None:
        before_mib = self.resident_mib()
        clients: list[StreamClient] = []
        answers = []
        text = "a prompt that many share. " * (PROMPT_BYTES // 26)
        while len(clients) < STREAMS:
            fresh = await self.connected(8)
            for number, client in enumerate(fresh, len(clients)):
                answers.append(client.send(paced(f"{text}{number}", events=10_000, gap_s=_GAP_S, size=20)))
            clients += fresh
        async with asyncio.timeout(120):
            while not all(client.events for client in clients):
                await asyncio.sleep(0.2)
        open_mib = self.resident_mib()
        await asyncio.sleep(_HOLD_S)
        self.row("streams_5000_failed", sum(answer.done() for answer in answers), "1")
        self.row("streams_5000_before", before_mib)
        self.row("streams_5000_open", open_mib)
        self.row("streams_5000_after_10s", self.resident_mib())
        self.row("streams_5000_per_stream", (open_mib - before_mib) * 1024 / STREAMS, "KiB")
        self.row("streams_5000_request_bytes", await self.gauge("warmroute_request_bytes_buffered"), "B")
        await self.closed(clients)
        self.row("streams_5000_closed", self.resident_mib())

    async def non_readers(self) -> None:
        """Beside them one client that reads 20 small answers."""
        before_mib = self.resident_mib()
        clients = await self.connected(NON_READERS, _SMALL_BUFFER_BYTES)
        for client in clients:
            client.transport.pause_reading()
            client.send(paced("much", events=ANSWER_BYTES // _EVENT_BYTES, size=_EVENT_BYTES))
        await asyncio.sleep(_HOLD_S)
        stalled_mib = self.resident_mib()
        self.row("non_readers_20_before", before_mib)
        self.row("non_readers_20_stalled", stalled_mib)
        self.row("non_readers_20_each", (stalled_mib - before_mib) * 1024 / NON_READERS, "KiB")
        (neighbour,) = await self.connected(1)
        slowest_s = 0.0
        for _ in range(20):
            begun_s = asyncio.get_running_loop().time()
            await neighbour.send(paced("little"))
            slowest_s = max(slowest_s, asyncio.get_running_loop().time() - begun_s)
        self.row("non_readers_20_neighbour_slowest", slowest_s * 1000, "ms")
        await self.closed([*clients, neighbour])

    async def closed(self, clients: list[StreamClient]) -> None:
        for client in clients:
            await client.close()
        async with asyncio.timeout(60):
            while await self.gauge("warmroute_connections") > 0:
                await asyncio.sleep(0.2)


@contextlib.asynccontextmanager
async def _benched() -> AsyncIterator[Bench]:
    async with StreamUpstream() as upstream:
        port, admin_port = free_port(), free_port()
        config = our_config(port, admin_port, [upstream.port])
        config["listen"]["max_connections"] = IDLE + NON_READERS  # by default half the limit of open files
        loop = asyncio.get_running_loop()
        with contextlib.ExitStack() as stack:
            # the upstream, which the gateway probes at its start, needs this loop meanwhile
            pid = await loop.run_in_executor(None, stack.enter_context, gateway_process(config, port))
            try:
                yield Bench(process_tree(pid), port, admin_port)
            finally:
                await loop.run_in_executor(None, stack.close)


async def _run() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for part in (Bench.idle, Bench.streams, Bench.non_readers):  # a fresh gateway each
        async with _benched() as bench:
            await part(bench)
            rows += bench.rows
    return rows


def run() -> list[dict[str, Any]]:
    """Resident memory with each kind of clients open, later, and after they have gone. Raises ContenderError."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return uvloop.run(_run())


if __name__ == "__main__":
    found = run()
    print(micro_table(found))
    print(json.dumps(found))

"""The load generator: keep-alive connections that send prepared requests and check every answer.

Invariant: requests are bytes before the clock starts, every answer is read to its end and checked (status, and the
number of events of a stream), and the CPU of the measured process is read right around the traffic: after the
connections are open, and again a moment after the last answer so that what is settled late is counted too.

Run as `python -m tests.bench.load`: one JSON command per line on standard input, one JSON answer per line.
"""

import asyncio
import gc
import json
import random
import sys
import time
from dataclasses import dataclass, field
from typing import Any, cast

import httptools
import uvloop

from tests.bench import bodies
from tests.bench.cpu import cpu_s
from tests.bench.mock import CHUNKS, GAP_S

SETTLE_S = 0.05
EVENTS_PER_STREAM = CHUNKS + 1  # the last one is [DONE]
_RUN_TIMEOUT_S = 90.0
_OPEN_LOOP_RATE_PER_S = 200.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What each connection sends: first `primer`, off the clock, then `bodies`. One list per connection.

    `start_at_s` holds arrival times for an open loop, where any free connection takes the next body of the first list.
    """

    bodies: list[list[bytes]]
    primer: list[list[bytes]] = field(default_factory=list)
    stream: bool = False
    first_delay_s: float = 0.0
    start_at_s: list[float] = field(default_factory=list)
    connections: int = 16


def plan(workload: str, seed: int, size: int) -> Plan:
    """The requests of a workload. `size` is per connection: requests, sessions or streams; in all for an open loop."""
    if workload == "request_1k":
        return Plan([bodies.small(seed + n, size) for n in range(16)])
    if workload == "request_60k":
        sessions = [[list(bodies.session(seed + n * 100 + s)) for s in range(size)] for n in range(16)]
        return Plan(
            primer=[[turns[0] for turns in mine] for mine in sessions],
            bodies=[[body for turns in mine for body in turns[1:]] for mine in sessions],
        )
    if workload == "request_60k_cold":
        return Plan([bodies.cold(seed + n, size) for n in range(16)])
    if workload == "chunk":
        streams = [bodies.small(seed + n, size, stream=True) for n in range(64)]
        return Plan(streams, stream=True, first_delay_s=GAP_S, connections=64)
    if workload == "added_latency":
        rng = random.Random(seed)
        at_s = [0.0]
        while len(at_s) < size:
            at_s.append(at_s[-1] + rng.expovariate(_OPEN_LOOP_RATE_PER_S))
        return Plan([bodies.small(seed, size)], start_at_s=at_s, connections=32)
    raise ValueError(f"unknown workload {workload!r}")


class Client(asyncio.Protocol):
    """One connection with one request on the way; `ask` answers with the number of events (0 if not a stream)."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.parts: list[bytes] = []
        self.waiter: asyncio.Future[int] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.parser = httptools.HttpResponseParser(self)

    def data_received(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"bad response: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail("connection closed")

    def on_body(self, body: bytes) -> None:
        self.parts.append(body)

    def on_message_complete(self) -> None:
        status = self.parser.get_status_code()
        body = b"".join(self.parts)
        self.parts = []
        if status != 200:
            self._fail(f"status {status}: {body[:200]!r}")
        elif self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(body.count(b"data: "))

    def _fail(self, why: str) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_exception(ConnectionError(why))

    def ask(self, request: bytes) -> "asyncio.Future[int]":
        """Send one request; ConnectionError if it is not answered with 200."""
        self.waiter = self.loop.create_future()
        if self.transport.is_closing():
            self._fail("connection closed")
        else:
            self.transport.write(request)
        return self.waiter


class Run:
    """One workload against one port."""

    def __init__(self, port: int, work: Plan) -> None:
        self.port = port
        self.work = work
        self.latencies_s: list[float] = []
        self.events = 0
        self.errors: list[str] = []

    async def measure(self, pids: list[int], seed: int) -> dict[str, Any]:
        """Send everything; the answer has counts, CPU seconds of `pids`, latencies and the first errors."""
        loop = asyncio.get_running_loop()
        rng = random.Random(seed)
        work = self.work
        requests = [[bodies.raw_request(self.port, body) for body in mine] for mine in work.bodies]
        clients: list[Client] = []
        try:
            for _ in range(work.connections):
                _, client = await loop.create_connection(lambda: Client(loop), "127.0.0.1", self.port)
                clients.append(client)
            for client, primer in zip(clients, work.primer, strict=False):
                for body in primer:
                    await client.ask(bodies.raw_request(self.port, body))
            gc.collect()
            gc.disable()  # a collection would show up as somebody's latency
            await asyncio.sleep(SETTLE_S)
            start_s, start_cpu_s = time.perf_counter(), cpu_s(pids)
            if work.start_at_s:
                await self._open_loop(clients, requests[0], start_s)
            else:
                delays_s = [work.first_delay_s * rng.random() for _ in clients]
                await asyncio.gather(*map(self._closed_loop, clients, requests, delays_s))
            wall_s = time.perf_counter() - start_s
            await asyncio.sleep(SETTLE_S)
            used_s = cpu_s(pids) - start_cpu_s
        finally:
            gc.enable()
            for client in clients:
                client.transport.close()
        return {
            "requests": len(self.latencies_s),
            "events": self.events,
            "errors": len(self.errors),
            "first_errors": self.errors[:3],
            "cpu_s": used_s,
            "wall_s": wall_s,
            "latencies_s": sorted(self.latencies_s),
        }

    async def _one(self, client: Client, request: bytes, start_s: float) -> None:
        try:
            events = await client.ask(request)
        except ConnectionError as error:
            self.errors.append(str(error))
            return
        self.latencies_s.append(time.perf_counter() - start_s)
        self.events += events
        if self.work.stream and events != EVENTS_PER_STREAM:
            self.errors.append(f"{events} events instead of {EVENTS_PER_STREAM}")

    async def _closed_loop(self, client: Client, requests: list[bytes], delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        for request in requests:
            await self._one(client, request, time.perf_counter())

    async def _open_loop(self, clients: list[Client], requests: list[bytes], start_s: float) -> None:
        free: asyncio.LifoQueue[Client] = asyncio.LifoQueue()
        for client in clients:
            free.put_nowait(client)

        async def arrival(request: bytes) -> None:
            start_s = time.perf_counter()
            client = await free.get()
            try:
                await self._one(client, request, start_s)
            finally:
                free.put_nowait(client)

        async with asyncio.TaskGroup() as group:
            for request, at_s in zip(requests, self.work.start_at_s, strict=True):
                await asyncio.sleep(max(0.0, start_s + at_s - time.perf_counter()))
                group.create_task(arrival(request))


async def obey() -> None:
    """Answer commands `{"workload", "seed", "size", "port", "pids"}` until standard input closes.

    A command without a port only prepares. The plan is kept until another workload or seed is asked for.
    """
    loop = asyncio.get_running_loop()
    prepared: tuple[object, Plan] | None = None
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        command = json.loads(line)
        key = (command["workload"], command["seed"], command["size"])
        if prepared is None or prepared[0] != key:
            prepared = (key, plan(*key))
        if command.get("port") is None:
            print("{}", flush=True)
            continue
        run = Run(command["port"], prepared[1])
        async with asyncio.timeout(_RUN_TIMEOUT_S):
            result = await run.measure(command["pids"], command["seed"])
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(obey())

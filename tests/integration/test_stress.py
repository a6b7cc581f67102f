"""A thousand streams, aborts in every phase, a backend that dies: nothing may be left, and memory stays flat."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
import sys
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.gateway import RunningGateway, running_gateway
from tests.support.streams import StreamClient, StreamUpstream, paced

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

STREAMS = 1000
ABORTS = 400
EVENT_BYTES = 1000
MAX_GROWTH_MIB = 4.0
"""Half of the events seen in between would be more."""
_PAGE_BYTES = resource.getpagesize()

LIMITS = {"max_idle_connections": 50, "keepalive_idle_s": 0.2, "connect_timeout_s": 60}


@pytest.fixture(autouse=True)
def _enough_files() -> Iterator[None]:
    """Client, gateway and upstream are in this process: four sockets a stream."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 8192), hard), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES / 2**20


async def eventually(condition: Callable[[], bool], what: Callable[[], object], timeout_s: float = 15.0) -> None:
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + timeout_s
    while not condition():
        assert loop.time() < deadline_s, what()
        await asyncio.sleep(0.01)


@asynccontextmanager
async def leaving_nothing(*upstreams: StreamUpstream) -> AsyncIterator[RunningGateway]:
    """A gateway in front of them; in the end all must be as before the first request, and then as before it started."""
    before_gateway = open_files()
    sections = {"limits": LIMITS, "health": {"interval_s": 0.2, "metrics_interval_s": 60, "fail_threshold": 100}}
    async with running_gateway([upstream.url for upstream in upstreams], **sections) as gw:
        pools = [backend.upstream for backend in gw.gateway.registry]
        tasks = len(asyncio.all_tasks())
        before_requests = open_files()
        yield gw
        # the probes' connections, one per backend, may come and go: both ends of them are in this process
        slack = 2 * len(upstreams)
        await eventually(lambda: not gw.gateway.connections, lambda: len(gw.gateway.connections))
        await eventually(lambda: gw.in_flight == 0, lambda: gw.in_flight)
        gw.assert_at_rest()
        assert all(pool.sockets == pool.idle for pool in pools)  # type: ignore[attr-defined]
        await eventually(
            lambda: all(pool.sockets == 0 for pool in pools),  # type: ignore[attr-defined]
            lambda: "idle connections outlive keepalive_idle_s",
        )
        await eventually(lambda: abs(open_files() - before_requests) <= slack, open_files)
        await eventually(lambda: len(asyncio.all_tasks()) <= tasks, lambda: asyncio.all_tasks())
        await eventually(
            lambda: not sum(upstream.open for upstream in upstreams), lambda: [upstream.open for upstream in upstreams]
        )
    await eventually(lambda: open_files() <= before_gateway, lambda: (before_gateway, open_files()))


async def clients_of(gw: RunningGateway, count: int, receive_buffer_bytes: int | None = None) -> list[StreamClient]:
    return [await StreamClient.connect(gw.host, gw.port, receive_buffer_bytes) for _ in range(count)]


async def close_all(clients: list[StreamClient]) -> None:
    for client in clients:
        await client.close()


async def test_a_thousand_streams_in_flat_memory() -> None:
    events, gap_s = 15, 0.2
    async with StreamUpstream() as upstream, leaving_nothing(upstream) as gw:
        clients = await clients_of(gw, STREAMS)
        answers = []
        for number, client in enumerate(clients):
            answers.append(client.send(paced(f"stream {number}", events=events, gap_s=gap_s, size=EVENT_BYTES)))
            if number % 50 == 0:
                await asyncio.sleep(0)

        def seen() -> int:
            return sum(client.events for client in clients)

        def streamed(share: float) -> Callable[[], bool]:
            return lambda: seen() >= share * STREAMS * events

        await eventually(streamed(0.3), seen, 60)
        assert (gw.in_flight, upstream.open) == (STREAMS, STREAMS)
        middle_mib = resident_mib()
        await eventually(streamed(0.85), seen, 60)
        growth_mib = resident_mib() - middle_mib
        await asyncio.wait_for(asyncio.gather(*answers), 60)
        assert all(client.whole and client.events == events for client in clients)
        assert growth_mib <= MAX_GROWTH_MIB
        await close_all(clients)


def paused(client: StreamClient) -> StreamClient:
    client.transport.pause_reading()
    return client


@pytest.mark.parametrize("phase", ["at once", "before the head", "mid-stream", "paused reader"])
async def test_400_aborts_leave_nothing_and_disturb_nobody(phase: str) -> None:
    async with StreamUpstream() as upstream, leaving_nothing(upstream) as gw:
        others = await clients_of(gw, 100)
        answers = [client.send(paced("steady", events=20, gap_s=0.05)) for client in others]
        await eventually(lambda: upstream.open == 100, lambda: upstream.open)
        if phase == "paused reader":
            # small kernel buffers between gateway and client: its own are to fill, not 4 MB of the kernel's first
            gw.process._traffic.listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * 1024)
        leaving = await clients_of(gw, ABORTS, 4096 if phase == "paused reader" else None)
        for number, client in enumerate(leaving):
            match phase:
                case "before the head":
                    client.send(paced(f"abort {number}", head_s=None))
                case "mid-stream":
                    client.send(paced(f"abort {number}", events=1000, gap_s=0.2))
                case "paused reader":
                    paused(client).send(paced(f"abort {number}", events=1000, size=40_000))
                case _:
                    # some before their request is read, some while the gateway connects, some later
                    client.send(paced(f"abort {number}", head_s=None))
                    if number % 3:
                        await asyncio.sleep(0)
                    client.transport.abort()
        if phase != "at once":
            await eventually(lambda: upstream.requests >= 100 + ABORTS, lambda: upstream.requests)
        if phase == "mid-stream":
            await eventually(lambda: all(client.events for client in leaving), lambda: "not all begun")
        if phase == "paused reader":
            await eventually(lambda: bool(_stalled(gw)) and len(_stalled(gw)) >= ABORTS, lambda: len(_stalled(gw)))
            assert upstream.open >= ABORTS
        await close_all(leaving)
        await eventually(lambda: gw.in_flight <= 100, lambda: gw.in_flight)
        await asyncio.wait_for(asyncio.gather(*answers), 30)
        assert all(client.whole and client.events == 20 for client in others)
        await close_all(others)


def _stalled(gw: RunningGateway) -> list[object]:
    """Connections whose client does not take what is written."""
    return [connection for connection in gw.connections if connection.flow.write_paused]


async def test_400_aborts_while_connecting() -> None:
    """A backend whose queue of new connections is full: the kernel lets every further connect wait."""
    async with StreamUpstream() as upstream, leaving_nothing(upstream) as gw, AsyncExitStack() as stack:
        pool = next(iter(gw.gateway.registry)).upstream
        kept = upstream.freeze()
        stack.callback(kept.close)
        fillers = []
        for _ in range(16):
            filler = socket.socket()
            stack.callback(filler.close)
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", upstream.port))
            fillers.append(filler)
        tasks, files = len(asyncio.all_tasks()), open_files()
        leaving = await clients_of(gw, ABORTS)
        for number, client in enumerate(leaving):
            client.send(paced(f"abort {number}"))
        await eventually(lambda: pool.active == ABORTS, lambda: pool.active)  # type: ignore[attr-defined]
        assert pool.sockets == pool.idle, "all of them are connecting"  # type: ignore[attr-defined]
        await close_all(leaving)
        await eventually(lambda: pool.active == 0, lambda: pool.active)  # type: ignore[attr-defined]
        # while the queue is still full: attempts end by the abort, not by an answer
        await eventually(lambda: len(asyncio.all_tasks()) <= tasks + 1, lambda: len(asyncio.all_tasks()))
        await eventually(lambda: open_files() <= files + 2, lambda: (files, open_files()))


async def test_a_backend_dies_and_comes_back_under_load() -> None:
    async with (
        StreamUpstream() as a,
        StreamUpstream() as b,
        StreamUpstream() as c,
        leaving_nothing(a, b, c) as gw,
    ):
        outcomes: Counter[str] = Counter()
        stopping = asyncio.Event()

        async def talk(client: StreamClient, number: int) -> None:
            turn = 0
            while not stopping.is_set():
                turn += 1
                await client.send(paced(f"talk {number}.{turn}", events=10, gap_s=0.01))
                if client.whole:
                    assert client.events == 10
                    outcomes["whole"] += 1
                else:
                    assert client.status == 200, (client.status, client.error)
                    assert b"upstream_truncated" in client.error
                    outcomes["cut"] += 1

        clients = await clients_of(gw, 200)
        async with asyncio.TaskGroup() as group:
            for number, client in enumerate(clients):
                group.create_task(talk(client, number))
            await eventually(lambda: min(a.requests, b.requests, c.requests) > 100, lambda: "no even load")
            dying = next(backend for backend in gw.gateway.registry if backend.name == "a")
            first_life = dying.instance
            cut = a.open
            await a.kill()
            whole = outcomes["whole"]
            await eventually(lambda: outcomes["whole"] > whole + 300, lambda: outcomes)
            assert first_life.in_flight == 0
            served = a.requests
            await a.listen()
            await eventually(lambda: a.requests > served + 50, lambda: "it does not come back")
            stopping.set()
        assert dying.instance is not first_life, "a restart is a new instance"
        assert first_life.in_flight == 0
        assert outcomes["cut"] <= cut, "only streams that ran there were cut"
        await close_all(clients)


async def test_the_usual_soft_limit_on_open_files_is_no_limit_on_clients(tmp_path: Path) -> None:
    """Shells start processes with 1,024 open files, a stream takes two, and the system allows more."""
    soft, streams = 128, 100
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard > 1024
    async with StreamUpstream() as upstream:
        config = tmp_path / "warmroute.yaml"
        with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
            port, admin_port = one.getsockname()[1], other.getsockname()[1]
        sections = {
            "listen": {"port": port, "drain_delay_s": 0},
            "admin": {"port": admin_port},
            "backends": [{"name": "a", "url": upstream.url}],
        }
        config.write_text(json.dumps(sections))  # JSON is YAML
        process = await asyncio.create_subprocess_exec(
            *("sh", "-c", 'ulimit -Sn "$1" && exec "$2" serve --config "$3"', "sh"),
            *(str(soft), str(Path(sys.executable).with_name("warmroute")), str(config)),
            stderr=asyncio.subprocess.DEVNULL,
        )
        clients: list[StreamClient] = []
        try:
            await eventually(lambda: _listens(port), lambda: "it does not start")
            clients += [await StreamClient.connect("127.0.0.1", port) for _ in range(streams)]
            answers = [client.send(paced("one of many", events=3, gap_s=0.3)) for client in clients]
            await asyncio.wait(answers, timeout=20)
            assert all(client.whole for client in clients), Counter(client.status for client in clients)
        finally:
            await close_all(clients)
            process.terminate()
            assert await asyncio.wait_for(process.wait(), 20) == 0


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0

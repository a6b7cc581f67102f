"""Probes on real sockets: one task per backend, which nothing but `drop` and `stop` ends."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
import time
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
import trustme

from backends import prober as module
from backends.backend import Backend, BackendSpec
from backends.health import HealthPolicy, State
from backends.prober import ProbePolicy, Prober
from backends.registry import Registry
from backends.upstream import Endpoint
from tests.support.fleet import NoUpstream
from tests.support.upstream import ScriptedUpstream
from vocabulary import BackendId

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

FAST = ProbePolicy(interval_s=0.02, timeout_s=1.0, metrics_interval_s=0.02)
SELDOM = ProbePolicy(interval_s=600.0, timeout_s=1.0, metrics_interval_s=600.0)


class Flowing(NoUpstream):
    """Streams run on it, or not."""

    flows = False

    def heard_within(self, seconds: float) -> bool:
        return self.flows


class Probed:
    def __init__(self, policy: ProbePolicy, health: HealthPolicy) -> None:
        self.changes: list[tuple[str, State]] = []
        self.registry = Registry(health, lambda _: Flowing(), time.monotonic, lambda: None)
        self.prober = Prober(self.registry, policy, time.monotonic, self._changed)

    def _changed(self, backend: Backend) -> None:
        self.changes.append((backend.name, backend.health.state))

    def add(self, port: int, name: str = "a", **fields: Any) -> Backend:
        endpoint = Endpoint("127.0.0.1", port)
        backend = self.registry.add(BackendSpec(BackendId(name), endpoint, **fields))
        self.prober.watch(backend)
        return backend


@contextlib.asynccontextmanager
async def probed(policy: ProbePolicy = FAST, **health: Any) -> AsyncIterator[Probed]:
    made = Probed(policy, HealthPolicy(**health))
    try:
        yield made
    finally:
        await made.prober.stop()


def checkers() -> list[str]:
    return sorted(task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("probe "))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.002)


async def test_each_backend_has_one_task_however_often_it_is_watched() -> None:
    async with ScriptedUpstream() as upstream, probed() as made:
        one = made.add(upstream.port)
        for _ in range(5):
            made.prober.watch(one)
        two = made.add(upstream.port, "b")
        assert checkers() == ["probe a", "probe b"]
        assert made.prober.watched == {one, two}
        await made.prober.first_round(5)
        await made.prober.unwatch(one)
        await made.prober.unwatch(one)
        assert checkers() == ["probe b"]
        made.prober.watch(one)
        assert checkers() == ["probe a", "probe b"]
    assert checkers() == []


async def test_dropped_and_watched_again_in_one_step_is_one_task_again() -> None:
    async with ScriptedUpstream() as upstream, probed() as made:
        one = made.add(upstream.port)
        await made.prober.first_round(5)
        for _ in range(5):
            made.prober.drop(one)
            made.prober.watch(one)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len([name for name in checkers() if name == "probe a"]) <= 2, "the last one may be ending"
        probes = upstream.probes
        await until(lambda: upstream.probes > probes + 2)
        assert checkers() == ["probe a"]


async def test_the_first_round_waits_for_those_there_are_and_not_for_those_that_leave() -> None:
    async with ScriptedUpstream() as upstream, probed(SELDOM) as made:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            slow = made.add(silent.getsockname()[1], "slow")
            fast = made.add(upstream.port, "fast")
            waiting = asyncio.create_task(made.prober.first_round(30))
            await until(lambda: fast.health.state is State.UP)
            assert not waiting.done()
            late = made.add(upstream.port, "late")
            made.prober.drop(slow)
            await asyncio.wait_for(waiting, 5)
            await made.prober.first_round(5)
            assert late.health.state is State.UP


async def test_a_first_round_that_is_cancelled_leaves_no_task() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with probed(SELDOM) as made:
            made.add(silent.getsockname()[1])
            waiting = asyncio.create_task(made.prober.first_round(30))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])


async def test_a_new_policy_is_followed_at_once() -> None:
    async with ScriptedUpstream() as upstream, probed(SELDOM) as made:
        backend = made.add(upstream.port)
        await made.prober.first_round(5)
        upstream.health_status = 500
        made.prober.set_policy(FAST)
        await until(lambda: backend.health.state is State.DOWN)
        assert checkers() == ["probe a"]
        probes = upstream.probes
        made.prober.set_policy(FAST)
        await until(lambda: upstream.probes > probes)


@contextlib.asynccontextmanager
async def server(answer: Callable[[asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator[int]:
    """The port of a server that gives this to every GET."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                await answer(writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the root of this task: asyncio's streams would report that as an error
        finally:
            writer.transport.abort()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listening:
        yield listening.sockets[0].getsockname()[1]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


@pytest.mark.parametrize(
    ("part", "pause_s", "error"), [(b"x", 0.02, "TimeoutError"), (b"x" * 1_000_000, 0.0, "ValueError")]
)
async def test_an_answer_without_end_is_a_failed_probe(part: bytes, pause_s: float, error: str) -> None:
    """A timeout per read would wait for ever, and keep all of it."""
    policy = ProbePolicy(interval_s=0.05, timeout_s=0.2 if pause_s else 5.0)

    async def trickle(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100000000\r\n\r\n")
        while True:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(pause_s)

    async with server(trickle) as port, probed(policy) as made:
        backend = made.add(port)
        await until(lambda: backend.health.state is State.DOWN)
        assert backend.last_error == error


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"{",
        b"[" * 100_000,
        b'{"data": 5}',
        b'{"data": [5]}',
        b'{"data": [{"id": "m"}, null]}',
        b"\xff\xfe",
    ],
)
async def test_whatever_a_backend_answers_the_next_probe_comes(answer: bytes) -> None:
    async def give(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(answer) + answer)

    async with server(give) as port, probed() as made:
        odd = made.add(port, "odd")
        named = made.add(port, "named", models=("m",))
        await made.prober.first_round(5)
        assert odd.health.state is State.DOWN
        assert named.health.state is State.UP, "its models are the operator's word"
        assert checkers() == ["probe named", "probe odd"]


async def test_o61_streams_that_flow_are_life() -> None:
    async with ScriptedUpstream() as upstream, probed(fail_threshold=1) as made:
        backend = made.add(upstream.port)
        await made.prober.first_round(5)
        flowing = backend.upstream
        assert isinstance(flowing, Flowing)
        flowing.flows = True
        upstream.health_status = 500
        probes = upstream.health_probes
        await until(lambda: upstream.health_probes > probes + 3)
        assert backend.health.state is State.UP
        assert backend.last_error == "HTTPStatusError"
        flowing.flows = False
        await until(lambda: backend.health.state is State.DOWN)
        flowing.flows = True
        upstream.health_status = 200
        await until(lambda: backend.health.state is State.UP)
        await upstream.shut()
        await until(lambda: backend.health.state is State.DOWN)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS])
async def test_o63_what_we_lack_ourselves_says_nothing_of_a_backend(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ScriptedUpstream() as upstream, probed(fail_threshold=1) as made:
        backend = made.add(upstream.port)
        await made.prober.first_round(5)
        asked = 0

        async def no_socket(*_: object) -> bytes:
            nonlocal asked
            asked += 1
            none_left = ExceptionGroup("all failed", [OSError(number, "none left")])
            raise httpx2.ConnectError("no") from none_left

        def failing(*_: object) -> Any:
            return no_socket()

        monkeypatch.setattr(module.Prober, "_get", failing)
        await until(lambda: asked > 5)
        assert backend.health.state is State.UP
        monkeypatch.undo()
        await until(lambda: backend.last_error is None)


async def test_a_name_that_is_not_found_is_no_refusal() -> None:
    async with probed(fail_threshold=1000) as made:
        spec = BackendSpec(BackendId("a"), Endpoint("nowhere.invalid", 1), ("m",))
        backend = made.registry.add(spec)
        backend.health.probe_passed()
        made.prober.watch(backend)
        await made.prober.first_round(10)
        assert backend.last_error == "ConnectError"
        assert backend.health.state is State.UP


async def test_a_certificate_is_checked_by_the_name_behind_an_address() -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("engines.test").configure_cert(context)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    async with ScriptedUpstream(tls=context) as upstream, probed(SELDOM) as made:
        for name, server_hostname in (("known", "engines.test"), ("nameless", None)):
            endpoint = Endpoint("127.0.0.1", upstream.port, trusting, server_hostname=server_hostname)
            made.prober.watch(made.registry.add(BackendSpec(BackendId(name), endpoint)))
        await made.prober.first_round(5)
        states = {backend.name: backend.health.state for backend in made.registry}
        assert states == {"known": State.UP, "nameless": State.DOWN}

"""The connection pool against a scripted backend on real sockets."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest

from backends.transport import UpstreamRequest
from backends.upstream import Endpoint, Pool, Timeouts
from tests.support.upstream import SSE_HEAD, ScriptedUpstream, Served, chunk, token
from vocabulary.errors import (
    UpstreamConnectError,
    UpstreamConnectTimeout,
    UpstreamError,
    UpstreamFirstByteTimeout,
    UpstreamIdleTimeout,
    UpstreamProtocolError,
    UpstreamReset,
    UpstreamTruncated,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from backends.transport import Headers, ResponseHead

REQUEST = UpstreamRequest(b"POST", b"/v1/chat/completions", b"x-a: 1\r\n", b"{}")


class Recorder:
    """A sink that keeps what it hears."""

    def __init__(self) -> None:
        self.head: ResponseHead | None = None
        self.data: list[bytes] = []
        self.trailers: Headers | None = None
        self.error: UpstreamError | None = None
        self.ended = asyncio.Event()
        self.started = asyncio.Event()

    def on_head(self, head: ResponseHead, data: bytes) -> None:
        assert self.head is None
        self.head = head
        if data:
            self.data.append(data)
        self.started.set()

    def on_data(self, data: bytes) -> None:
        assert data
        assert self.head is not None
        self.data.append(data)

    def on_end(self, trailers: Headers) -> None:
        assert not self.ended.is_set()
        self.trailers = trailers
        self.ended.set()

    def on_error(self, error: UpstreamError) -> None:
        assert not self.ended.is_set()
        self.error = error
        self.ended.set()

    async def result(self) -> Recorder:
        await asyncio.wait_for(self.ended.wait(), 10)
        return self

    @property
    def body(self) -> bytes:
        return b"".join(self.data)


def make_pool(port: int, **timeouts: float) -> Pool:
    return Pool(Endpoint("127.0.0.1", port), Timeouts(**timeouts), asyncio.get_running_loop())  # type: ignore[arg-type]


async def close(pool: Pool) -> None:
    await asyncio.wait_for(pool.close(), 10)
    assert (pool.active, pool.idle, pool.sockets) == (0, 0, 0)


@pytest.fixture
async def upstream() -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream() as upstream:
        yield upstream


async def exchange(pool: Pool) -> Recorder:
    sink = Recorder()
    pool.send(REQUEST, sink)
    return await sink.result()


async def test_request_and_response_pass_with_own_framing(upstream: ScriptedUpstream) -> None:
    pool = make_pool(upstream.port)
    sink = await exchange(pool)
    assert sink.error is None
    assert sink.head is not None
    assert sink.head.status == 200
    assert sink.body.startswith(b'{"object"')
    request = upstream.requests[0]
    assert request.headers == [
        (b"host", f"127.0.0.1:{upstream.port}".encode()),
        (b"x-a", b"1"),
        (b"content-length", b"2"),
    ]
    await close(pool)


async def test_connections_are_reused_last_in_first_out(upstream: ScriptedUpstream) -> None:
    pool = make_pool(upstream.port)
    await asyncio.gather(*(exchange(pool) for _ in range(3)))
    assert upstream.accepted == 3
    assert pool.idle == 3
    await exchange(pool)
    assert upstream.accepted == 3
    await close(pool)


RESPONSES: dict[str, tuple[bytes, bytes]] = {
    "length": (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", b"ok"),
    "no body": (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
    "empty": (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", b""),
    "chunks": (SSE_HEAD + chunk(b"a") + chunk(b"bc") + b"0\r\n\r\n", b"abc"),
    "interim": (b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", b"ok"),
}


@pytest.mark.parametrize("name", RESPONSES)
@pytest.mark.parametrize("bytewise", [False, True])
async def test_every_framing_is_read_and_the_connection_kept(name: str, bytewise: bool) -> None:
    raw, body = RESPONSES[name]

    async def script(served: Served) -> None:
        for piece in [bytes([b]) for b in raw] if bytewise else [raw]:
            await served.write(piece)
            await asyncio.sleep(0)

    async with ScriptedUpstream(script) as upstream:
        pool = make_pool(upstream.port)
        for _ in range(2):
            sink = await exchange(pool)
            assert (sink.error, sink.body, sink.trailers) == (None, body, [])
        assert upstream.accepted == 1
        await close(pool)


async def test_trailers_arrive() -> None:
    async def script(served: Served) -> None:
        await served.write(SSE_HEAD + chunk(b"a") + b"0\r\nx-sum: abc\r\n\r\n")

    async with ScriptedUpstream(script) as upstream:
        pool = make_pool(upstream.port)
        assert (await exchange(pool)).trailers == [(b"x-sum", b"abc")]
        await close(pool)


async def test_a_body_without_framing_ends_with_the_connection() -> None:
    async def script(served: Served) -> None:
        await served.write(b"HTTP/1.1 200 OK\r\n\r\nhello")
        await served.write(b" world")
        served.writer.close()

    async with ScriptedUpstream(script) as upstream:
        pool = make_pool(upstream.port)
        sink = await exchange(pool)
        assert (sink.error, sink.body) == (None, b"hello world")
        assert pool.idle == 0
        await close(pool)


async def test_bytes_after_a_response_cost_only_the_connection() -> None:
    async def script(served: Served) -> None:
        ok = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
        await served.write(ok + b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil")
        await served.until_closed()

    async with ScriptedUpstream(script) as upstream:
        pool = make_pool(upstream.port)
        sink = await exchange(pool)
        assert (sink.error, sink.body) == (None, b"ok")
        await upstream.until(lambda u: u.closed == 1)
        assert pool.idle == 0
        await close(pool)


@pytest.mark.parametrize(
    "raw", [b"SSH-2.0-x\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n", b"\x16\x03\x01\r\n"]
)
async def test_what_is_no_http_is_a_protocol_error(raw: bytes) -> None:
    async def script(served: Served) -> None:
        await served.write(raw)
        await served.until_closed()

    async with ScriptedUpstream(script) as upstream:
        pool = make_pool(upstream.port)
        assert isinstance((await exchange(pool)).error, UpstreamProtocolError)
        await upstream.until(lambda u: u.closed == 1)
        await close(pool)


async def test_an_endless_head_is_refused() -> None:
    async def script(served: Served) -> None:
        await served.write(b"HTTP/1.1 200 OK\r\n")
        for _ in range(100):
            await served.write(b"x-filler: " + b"y" * 8192 + b"\r\n")
        await served.until_closed()

    async with ScriptedUpstream(script) as upstream:
        pool = make_pool(upstream.port)
        assert isinstance((await exchange(pool)).error, UpstreamProtocolError)
        await close(pool)


async def test_an_upgrade_is_refused() -> None:
    async def script(served: Served) -> None:
        await served.write(b"HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n")
        await served.until_closed()

    async with ScriptedUpstream(script) as upstream:
        pool = make_pool(upstream.port)
        assert isinstance((await exchange(pool)).error, UpstreamProtocolError)
        await close(pool)


@pytest.mark.parametrize("fin", [False, True])
async def test_death_before_the_head_is_a_reset_and_within_the_body_a_truncation(fin: bool) -> None:
    async def script(served: Served) -> None:
        if served.number == 1:
            await served.write(SSE_HEAD + chunk(token()))
        if fin:
            served.writer.close()
        else:
            served.reset()

    async with ScriptedUpstream(script) as upstream:
        pool = make_pool(upstream.port)
        assert isinstance((await exchange(pool)).error, UpstreamReset)
        assert isinstance((await exchange(pool)).error, UpstreamTruncated)
        await close(pool)


async def test_a_connection_that_died_idle_is_replaced_silently(upstream: ScriptedUpstream) -> None:
    pool = make_pool(upstream.port)
    await exchange(pool)
    await upstream.shut()  # the pool does not know yet: no loop turn passes in between
    await upstream.listen()
    sink = await exchange(pool)
    assert sink.error is None
    await close(pool)


async def test_o65_stale_keep_alive_is_retried_once_on_a_new_connection() -> None:
    async def script(served: Served) -> None:
        if served.number == 1:
            served.reset()  # the reused connection dies as the request arrives
        else:
            await served.respond({})

    async with ScriptedUpstream(script) as upstream:
        pool = make_pool(upstream.port)
        await exchange(pool)
        sink = await exchange(pool)
        assert sink.error is None
        assert upstream.accepted == 2
        await close(pool)


async def test_a_second_death_is_not_retried() -> None:
    async def script(served: Served) -> None:
        if served.number == 0:
            await served.respond({})
        else:
            served.reset()

    async with ScriptedUpstream(script) as upstream:
        pool = make_pool(upstream.port)
        await exchange(pool)
        assert isinstance((await exchange(pool)).error, UpstreamReset)
        assert len(upstream.requests) == 3
        await close(pool)


async def test_refused_connection(unused_tcp_port: int) -> None:
    pool = make_pool(unused_tcp_port)
    assert isinstance((await exchange(pool)).error, UpstreamConnectError)
    await close(pool)


async def test_connect_timeout() -> None:
    async with ScriptedUpstream(tls=None) as upstream:
        # a TLS handshake that the other side never answers
        import ssl

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        endpoint = Endpoint("127.0.0.1", port, ssl.create_default_context())
        pool = Pool(endpoint, Timeouts(connect_timeout_s=0.1), asyncio.get_running_loop())
        assert isinstance((await exchange(pool)).error, UpstreamConnectTimeout)
        await close(pool)
        server.close()
        await server.wait_closed()
        assert upstream.accepted == 0


async def test_first_byte_and_idle_timeouts_are_separate() -> None:
    async def script(served: Served) -> None:
        if served.number == 1:
            await served.write(SSE_HEAD + chunk(token()))
        await served.until_closed()

    async with ScriptedUpstream(script) as upstream:
        pool = make_pool(upstream.port, first_byte_timeout_s=0.1, idle_timeout_s=0.2)
        assert isinstance((await exchange(pool)).error, UpstreamFirstByteTimeout)
        assert isinstance((await exchange(pool)).error, UpstreamIdleTimeout)
        await upstream.until(lambda u: u.closed == 2)
        await close(pool)


async def test_a_paused_reader_is_no_idle_timeout_and_slows_the_backend() -> None:
    size, count = 16384, 2000

    async def script(served: Served) -> None:
        await served.write(SSE_HEAD)
        for _ in range(count):
            await served.write(chunk(b"x" * size))
        await served.write(b"0\r\n\r\n")

    async with ScriptedUpstream(script) as upstream:
        pool = make_pool(upstream.port, idle_timeout_s=0.05)
        sink = Recorder()
        call = pool.send(REQUEST, sink)
        await sink.started.wait()
        call.pause()
        served = upstream.requests[0]
        sent = -1
        while sent != served.sent:
            sent = served.sent
            await asyncio.sleep(0.15)
        assert sent < size * count / 2
        call.resume()
        await sink.result()
        assert sink.error is None
        assert len(sink.body) == size * count
        await close(pool)


@pytest.mark.parametrize("phase", ["connecting", "waiting", "streaming", "done"])
async def test_cancel_closes_the_socket_in_every_phase(phase: str) -> None:
    async def script(served: Served) -> None:
        if phase == "streaming":
            await served.write(SSE_HEAD + chunk(token()))
        if phase == "done":
            await served.respond({})
        await served.until_closed()

    async with ScriptedUpstream(script) as upstream:
        pool = make_pool(upstream.port)
        sink = Recorder()
        call = pool.send(REQUEST, sink)
        if phase == "waiting":
            await upstream.until(lambda u: len(u.requests) == 1)
        elif phase == "streaming":
            await sink.started.wait()
        elif phase == "done":
            await sink.result()
        call.cancel()
        call.cancel()
        call.pause()
        call.resume()
        assert pool.active == 0
        if phase in ("waiting", "streaming"):
            await upstream.until(lambda u: u.closed == 1)
            assert not sink.ended.is_set()
        await close(pool)
        await upstream.until(lambda u: u.connections == 0)


async def test_close_waits_for_the_last_call() -> None:
    release = asyncio.Event()

    async def script(served: Served) -> None:
        await served.write(SSE_HEAD + chunk(token()))
        await release.wait()
        await served.write(b"0\r\n\r\n")

    async with ScriptedUpstream(script) as upstream:
        pool = make_pool(upstream.port)
        sink = Recorder()
        pool.send(REQUEST, sink)
        await sink.started.wait()
        closing = asyncio.create_task(pool.close())
        await asyncio.sleep(0)
        assert not closing.done()
        release.set()
        await asyncio.wait_for(closing, 10)
        assert sink.error is None
        assert pool.sockets == 0


async def test_idle_connections_expire() -> None:
    async with ScriptedUpstream() as upstream:
        pool = make_pool(upstream.port, keepalive_idle_s=0.05)
        await exchange(pool)
        assert pool.idle == 1
        await upstream.until(lambda u: u.connections == 0)
        assert pool.idle == 0
        await close(pool)


async def test_at_most_so_many_idle_connections_are_kept(upstream: ScriptedUpstream) -> None:
    pool = make_pool(upstream.port, max_idle_connections=2)
    await asyncio.gather(*(exchange(pool) for _ in range(5)))
    assert pool.idle == 2
    await close(pool)


@pytest.mark.parametrize("keep_alive", [False, True])
async def test_o06_a_storm_of_cancels_loses_no_slot(keep_alive: bool) -> None:
    async def script(served: Served) -> None:
        await served.respond({}, headers=b"" if keep_alive else b"connection: close\r\n")
        if not keep_alive:
            served.writer.close()

    rng = random.Random(6)
    async with ScriptedUpstream(script) as upstream:
        pool = make_pool(upstream.port)
        for _ in range(40):
            sinks = [Recorder() for _ in range(25)]
            calls = [pool.send(REQUEST, sink) for sink in sinks]
            cancelled = set(rng.sample(range(25), 12))
            for i in sorted(cancelled):
                if rng.random() < 0.5:
                    await asyncio.sleep(0)
                calls[i].cancel()
            for i, sink in enumerate(sinks):
                if i not in cancelled:
                    assert (await sink.result()).error is None
            assert pool.active == 0
        assert (await exchange(pool)).error is None
        assert pool.sockets == pool.idle
        await close(pool)

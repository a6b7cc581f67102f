"""The task that keeps a key set fresh."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gateway.access.jwks_fetcher import MAX_BYTES, JwksFetcher

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


@dataclass
class KeyServer:
    """Answers as it is told; `asked` counts."""

    answer: bytes = b'{"keys": 1}'
    status: int = 200
    headers: bytes = b""
    hold: asyncio.Event | None = None
    asked: int = 0
    heads: list[bytes] = field(default_factory=list)
    url: str = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.heads.append(await reader.readuntil(b"\r\n\r\n"))
            self.asked += 1
            if self.hold is not None:
                await self.hold.wait()
            framing = self.headers or b"content-length: %d\r\n" % len(self.answer)
            writer.write(b"HTTP/1.1 %d X\r\n%bconnection: close\r\n\r\n%b" % (self.status, framing, self.answer))
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # asyncio's streams would report a cancelled handler as an error
        finally:
            writer.close()


@dataclass
class Fetching:
    fetcher: JwksFetcher
    taken: list[bytes]
    failed: list[Exception]
    now_s: list[float]
    changed: asyncio.Condition

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10), self.changed:
            await self.changed.wait_for(condition)


@contextlib.asynccontextmanager
async def fetching(
    server: KeyServer, refresh_s: float = 300.0, unfit: tuple[bytes, ...] = ()
) -> AsyncIterator[Fetching]:
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    url = server.url or f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/keys"
    taken: list[bytes] = []
    failed: list[Exception] = []
    now_s = [1000.0]
    changed = asyncio.Condition()
    notifying: set[asyncio.Task[None]] = set()

    def notify() -> None:
        async def wake() -> None:
            async with changed:
                changed.notify_all()

        task = asyncio.get_running_loop().create_task(wake())
        notifying.add(task)
        task.add_done_callback(notifying.discard)

    def take(body: bytes) -> None:
        if body in unfit:
            raise ValueError("unfit")
        taken.append(body)
        notify()

    def fail(error: Exception) -> None:
        failed.append(error)
        notify()

    fetcher = JwksFetcher(url, refresh_s, take, fail, lambda: now_s[0], lambda: 0.0)
    task = asyncio.create_task(fetcher.run())
    try:
        yield Fetching(fetcher, taken, failed, now_s, changed)
    finally:
        task.cancel()
        await asyncio.wait([task, *notifying])
        listener.close()
        await listener.wait_closed()


async def test_a_set_is_fetched_at_once_and_again() -> None:
    server = KeyServer()
    async with fetching(server, refresh_s=0.01) as run:
        await run.fetcher.first(10)
        assert run.taken == [b'{"keys": 1}']
        server.answer = b'{"keys": 2}'
        await run.until(lambda: len(run.taken) > 1)
        assert run.taken == [b'{"keys": 1}', b'{"keys": 2}']
        assert not run.failed
    assert b"authorization" not in server.heads[0].lower()


async def test_an_equal_set_is_not_taken_again() -> None:
    server = KeyServer()
    async with fetching(server, refresh_s=0.001) as run:
        while server.asked < 4:
            await asyncio.sleep(0.001)
        assert len(run.taken) == 1


async def test_failures_are_told_and_the_next_good_set_is_taken() -> None:
    server = KeyServer(status=500)
    async with fetching(server, refresh_s=0.01, unfit=(b"unfit",)) as run:
        await run.until(lambda: len(run.failed) >= 1)
        server.status, server.answer = 302, b""
        await run.until(lambda: len(run.failed) >= 3)
        server.status, server.answer = 200, b"unfit"
        seen = len(run.failed)
        await run.until(lambda: len(run.failed) >= seen + 2)
        assert not run.taken
        server.answer = b"good"
        await run.until(lambda: bool(run.taken))
        assert run.taken == [b"good"]


async def test_an_endless_answer_is_cut_off() -> None:
    server = KeyServer(answer=b"x" * (MAX_BYTES + 1), headers=b"content-type: application/json\r\n")
    async with fetching(server) as run:
        await run.until(lambda: bool(run.failed))
        assert "larger" in str(run.failed[0])
        assert not run.taken


async def test_a_server_that_is_away_is_told() -> None:
    server = KeyServer(url="http://127.0.0.1:1/keys")
    async with fetching(server) as run:
        await run.until(lambda: bool(run.failed))
        await run.fetcher.first(10)


async def test_an_unknown_key_causes_one_early_fetch_in_ten_seconds() -> None:
    server = KeyServer()
    async with fetching(server) as run:
        await run.fetcher.first(10)
        run.now_s[0] += 9.9
        for _ in range(100):
            run.fetcher.fetch_soon()
        run.now_s[0] += 0.2
        server.answer = b"new"
        for _ in range(100):
            run.fetcher.fetch_soon()
        await run.until(lambda: len(run.taken) == 2)
        assert server.asked == 2


async def test_waiting_for_the_first_set_ends_with_the_timeout() -> None:
    server = KeyServer(hold=asyncio.Event())
    async with fetching(server) as run:
        await run.fetcher.first(0.01)
        assert not run.taken
        assert server.hold is not None
        server.hold.set()
        await run.fetcher.first(10)
        assert run.taken


async def test_the_task_ends_in_the_middle_of_a_fetch() -> None:
    server = KeyServer(hold=asyncio.Event())
    async with fetching(server):
        while not server.asked:
            await asyncio.sleep(0.001)
    assert server.hold is not None
    server.hold.set()

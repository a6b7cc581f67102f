"""A feed on real sockets, against a publisher and a replay server that the test drives by hand."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import zmq

from prefix_index.events.zmq_feed import ZmqFeed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

END = b"\xff" * 8


def number(sequence: int) -> bytes:
    return sequence.to_bytes(8, "big")


class Told:
    """A receiver that keeps what it is told, in order."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.steps = 0
        """Of work that is left."""
        self.feed: ZmqFeed | None = None
        self.close_at: int | None = None

    def connected(self) -> None:
        self.calls.append(("connected",))

    def disconnected(self) -> None:
        self.calls.append(("disconnected",))

    def message(self, sequence: int, payload: bytes) -> None:
        assert not self.steps, "the last message's work is not done"
        self.calls.append((sequence, payload))
        if sequence == self.close_at and self.feed is not None:
            self.feed.close()

    def replayed(self, sequence: int, payload: bytes) -> None:
        self.calls.append(("replayed", sequence, payload))

    def replay_ended(self) -> None:
        self.calls.append(("ended",))

    def malformed(self) -> None:
        self.calls.append(("malformed",))

    def work(self) -> bool:
        if not self.steps:
            return False
        self.steps -= 1
        return True

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0.002)

    async def has(self, *call: Any) -> None:
        await self.until(lambda: call in self.calls)


class Engine:
    """The engine's side: PUB and ROUTER on free ports."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.context = context
        self.pub = context.socket(zmq.XPUB)
        self.pub.setsockopt(zmq.LINGER, 0)
        self.pub.bind("tcp://127.0.0.1:*")
        self.router = context.socket(zmq.ROUTER)
        self.router.setsockopt(zmq.LINGER, 0)
        self.router.bind("tcp://127.0.0.1:*")

    @property
    def endpoint(self) -> str:
        return address(self.pub)

    @property
    def replay_endpoint(self) -> str:
        return address(self.router)

    async def subscribed(self) -> bytes:
        return (await ready(self.pub))[0][1:]

    async def asked(self) -> tuple[bytes, int]:
        """(who asks, from which number)."""
        client, empty, start = await ready(self.router)
        assert empty == b""
        return client, int.from_bytes(start, "big")

    def publish(self, sequence: int, payload: bytes = b"x", topic: bytes = b"") -> None:
        self.pub.send_multipart([topic, number(sequence), payload])


def address(socket: zmq.Socket[bytes]) -> str:
    return socket.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode()  # type: ignore[union-attr]


async def ready(socket: zmq.Socket[bytes]) -> list[bytes]:
    """Polled, so that the test's own sockets need nothing of the loop."""
    async with asyncio.timeout(10):
        while True:
            try:
                return socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                await asyncio.sleep(0.002)


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield context
    context.destroy(linger=0)


@pytest.fixture
def engine(context: zmq.Context[zmq.Socket[bytes]]) -> Engine:
    return Engine(context)


@asynccontextmanager
async def opened(engine: Engine, told: Told, **options: Any) -> AsyncIterator[ZmqFeed]:
    options = {"endpoint": engine.endpoint, "replay_endpoint": engine.replay_endpoint, **options}
    feed = ZmqFeed(engine.context, asyncio.get_running_loop(), told, **options)
    told.feed = feed
    feed.open()
    try:
        yield feed
    finally:
        feed.close()


async def test_messages_come_in_order_with_their_numbers(engine: Engine) -> None:
    told = Told()
    async with opened(engine, told) as feed:
        await told.has("connected")
        assert feed.peers == 1
        await engine.subscribed()
        for sequence in range(300):
            engine.publish(sequence, b"%d" % sequence)
        await told.has(299, b"299")
    assert [call for call in told.calls if call != ("connected",)] == [(n, b"%d" % n) for n in range(300)]


async def test_only_the_topic_is_heard(engine: Engine) -> None:
    told = Told()
    async with opened(engine, told, topic="kv@a"):
        assert await engine.subscribed() == b"kv@a"
        engine.publish(0, topic=b"kv@b")
        engine.publish(1, topic=b"kv@a")
        await told.has(1, b"x")
    assert (0, b"x") not in told.calls


@pytest.mark.parametrize("frames", [[b""], [b"", number(1)], [b"", b"123", b"x"], [b"", number(1), b"x", b"y"]])
async def test_other_frames_are_counted_and_passed_over(engine: Engine, frames: list[bytes]) -> None:
    told = Told()
    async with opened(engine, told):
        await engine.subscribed()
        engine.pub.send_multipart(frames)
        engine.publish(7)
        await told.has(7, b"x")
    assert told.calls.count(("malformed",)) == 1


async def test_no_message_before_the_work_of_the_last_one_is_done(engine: Engine) -> None:
    class Slow(Told):
        def message(self, sequence: int, payload: bytes) -> None:
            super().message(sequence, payload)
            self.steps = 1000

    told = Slow()
    async with opened(engine, told, slice_s=0.0) as feed:
        await engine.subscribed()
        for sequence in range(20):
            engine.publish(sequence)
        await told.has(19, b"x")
        assert feed.peers == 1


async def test_a_slice_of_work_gives_the_loop_a_turn(engine: Engine) -> None:
    """With slices of no length, others run between any two messages."""
    told = Told()
    turns = 0

    def turn() -> None:
        nonlocal turns
        turns += 1
        if (19, b"x") not in told.calls:
            asyncio.get_running_loop().call_soon(turn)

    async with opened(engine, told, slice_s=0.0):
        await engine.subscribed()
        for sequence in range(20):
            engine.publish(sequence)
        await asyncio.sleep(0.05)  # all of them are in the queue, or have been told
        turn()
        before = len(told.calls)
        await told.has(19, b"x")
        assert turns >= len(told.calls) - before


@pytest.mark.parametrize("topic", [[], [b"kv"]], ids=["3 frames", "4 frames"])
async def test_a_replay_of_either_form(engine: Engine, topic: list[bytes]) -> None:
    told = Told()
    async with opened(engine, told) as feed:
        await told.has("connected")
        feed.ask_replay(3)
        client, start = await engine.asked()
        assert start == 3
        for sequence in (3, 4):
            engine.router.send_multipart([client, b"", *topic, number(sequence), b"old"])
        engine.router.send_multipart([client, b"", *[b"" for _ in topic], END, b""])
        await told.has("ended")
        assert not feed.replaying
    assert told.calls == [("connected",), ("replayed", 3, b"old"), ("replayed", 4, b"old"), ("ended",)]


async def test_live_messages_wait_for_the_replay(engine: Engine) -> None:
    told = Told()
    async with opened(engine, told) as feed:
        await engine.subscribed()
        await told.has("connected")
        feed.ask_replay(0)
        client, _ = await engine.asked()
        engine.publish(1)
        engine.router.send_multipart([client, b"", b"", number(0), b"old"])
        await told.has("replayed", 0, b"old")
        engine.router.send_multipart([client, b"", b"", END, b""])
        await told.has(1, b"x")
    assert told.calls[-3:] == [("replayed", 0, b"old"), ("ended",), (1, b"x")]


async def test_answers_to_a_replay_that_was_given_up_are_not_told(engine: Engine) -> None:
    told = Told()
    async with opened(engine, told) as feed:
        feed.ask_replay(0)
        first, _ = await engine.asked()
        feed.ask_replay(5)
        second, start = await engine.asked()
        assert (start, first != second) == (5, True)
        engine.router.send_multipart([first, b"", b"", number(0), b"old"])
        engine.router.send_multipart([second, b"", b"", number(5), b"new"])
        engine.router.send_multipart([second, b"", b"", END, b""])
        await told.has("ended")
    assert ("replayed", 0, b"old") not in told.calls
    assert ("replayed", 5, b"new") in told.calls


async def test_a_replay_given_up_lets_live_messages_go_on(engine: Engine) -> None:
    told = Told()
    async with opened(engine, told) as feed:
        await engine.subscribed()
        feed.ask_replay(0)
        engine.publish(0)
        await engine.asked()
        feed.end_replay()
        await told.has(0, b"x")


async def test_an_engine_that_goes_and_comes_back_is_noticed(engine: Engine) -> None:
    told = Told()
    async with opened(engine, told) as feed:
        await told.has("connected")
        endpoint = engine.endpoint
        engine.pub.close(linger=0)
        await told.has("disconnected")
        assert feed.peers == 0
        told.calls.clear()
        engine.pub = engine.context.socket(zmq.XPUB)
        await rebind(engine.pub, endpoint)
        await told.has("connected")
        await engine.subscribed()
        engine.publish(0)
        await told.has(0, b"x")


async def rebind(socket: zmq.Socket[bytes], endpoint: str) -> None:
    """ZMQ gives the port back in its own thread."""
    async with asyncio.timeout(10):
        while True:
            try:
                socket.bind(endpoint)
                return
            except zmq.ZMQError:
                await asyncio.sleep(0.01)


async def test_an_engine_that_connects_to_us(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    told = Told()
    feed = ZmqFeed(context, asyncio.get_running_loop(), told, endpoint="tcp://127.0.0.1:*", bind=True)
    feed.open()
    pub = context.socket(zmq.XPUB)
    try:
        pub.connect(feed.address)
        await told.has("connected")
        await ready(pub)
        pub.send_multipart([b"", number(0), b"x"])
        await told.has(0, b"x")
        assert not feed.replays
    finally:
        feed.close()
        pub.close(linger=0)


async def test_nothing_is_told_after_the_end(engine: Engine) -> None:
    told = Told()
    told.close_at = 1
    async with opened(engine, told):
        await engine.subscribed()
        for sequence in range(4):
            engine.publish(sequence)
        await told.has(1, b"x")
        await asyncio.sleep(0.02)
    assert told.calls[-1] == (1, b"x")


async def test_an_address_that_cannot_be_used_leaves_nothing_open(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    taken = context.socket(zmq.PUB)
    taken.bind("tcp://127.0.0.1:*")
    feed = ZmqFeed(context, asyncio.get_running_loop(), Told(), endpoint=address(taken), bind=True)
    with pytest.raises(zmq.ZMQError):
        feed.open()
    feed.close()
    taken.close(linger=0)
    assert feed.peers == 0

"""Streams of events with loss, late and double delivery, replays and restarts end where the engine is."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefix_index.encoding.protocol import Namespace
from prefix_index.events.codec import decode
from prefix_index.events.feed import Feed, Step
from prefix_index.events.mirror import Mirror
from prefix_index.keys import extend, root_state
from prefix_index.memory import MemoryIndex
from prefix_index.naive import NaiveIndex
from prefix_index.protocol import Holder, PrefixIndex, Tier
from tests.support.kv_events import packed
from vocabulary import BlockKeys, InstanceId

A = InstanceId(1)
MEDIA = {"GPU": Tier.GPU, "CPU": Tier.HOST}
PROMPTS = [f"{number:05b}" for number in range(32)]
"""Blocks are bits, so that prompts share heads and branch often."""


def root(namespace: Namespace) -> bytes:
    return root_state(b"", namespace, 1).digest


def keys(prompt: str) -> BlockKeys:
    return extend(root_state(b"", Namespace(""), 1), packed([int(bit) for bit in prompt]), 4)[0]


class Engine:
    """The truth: which blocks lie where, and the messages that told so. Blocks come and go in any order."""

    def __init__(self, buffer: int) -> None:
        self.buffer = buffer
        self.begin()

    def begin(self) -> None:
        self.held: dict[str, set[str]] = {medium: set() for medium in MEDIA}
        self.sent: list[bytes] = []

    def store(self, medium: str, prompt: str, skip: int) -> None:
        """Tell all blocks of a prompt but the first `skip`, those that are there already too."""
        heads = [prompt[: at + 1] for at in range(len(prompt))][skip:]
        self.held[medium].update(heads)
        parent = self.name(prompt[:skip]) if skip else None
        event: dict[str, object] = {
            "type": "BlockStored",
            "block_hashes": [self.name(head) for head in heads],
            "parent_block_hash": parent,
            "token_ids": [int(head[-1]) for head in heads],
            "block_size": 1,
            "medium": medium,
        }
        self.tell(event)

    def remove(self, medium: str, heads: list[str]) -> None:
        self.held[medium].difference_update(heads)
        self.tell({"type": "BlockRemoved", "block_hashes": [self.name(head) for head in heads], "medium": medium})

    def clear(self) -> None:
        for held in self.held.values():
            held.clear()
        self.tell({"type": "AllBlocksCleared"})

    def tell(self, event: dict[str, object]) -> None:
        self.sent.append(msgspec.msgpack.encode([float(id(self.sent)), [event], 0]))

    def name(self, head: str) -> int:
        return int("1" + head, 2)

    def cached(self, medium: str, prompt: str) -> int:
        return next((at for at in range(len(prompt)) if prompt[: at + 1] not in self.held[medium]), len(prompt))

    def replay(self, start: int) -> list[tuple[int, bytes]]:
        oldest = max(len(self.sent) - self.buffer, 0)
        return [(number, self.sent[number]) for number in range(max(start, oldest), len(self.sent))]


class Listener:
    """The feed and the mirror, and a transport that carries out steps at once."""

    def __init__(self, engine: Engine, index: PrefixIndex, *, can_replay: bool) -> None:
        self.engine = engine
        self.index = index
        self.feed = Feed(can_replay=can_replay, max_pending=3)
        self.mirror = Mirror(index, A, root, block_size=1)
        self.asked: int | None = None

    def carry_out(self, step: Step) -> None:
        if step.new_life:
            self.asked = None
        if step.purge:
            self.mirror.purge()
        for payload in step.payloads:
            for event in decode(payload).events:
                self.mirror.apply(event)
        if step.ask is not None:
            self.asked = step.ask

    def hear(self, number: int) -> None:
        self.carry_out(self.feed.message(number, self.engine.sent[number]))

    def run_replays(self) -> None:
        while self.asked is not None:
            start, self.asked = self.asked, None
            for number, payload in self.engine.replay(start):
                self.carry_out(self.feed.replayed(number, payload))
                if self.asked_again():
                    break
            else:
                self.carry_out(self.feed.replay_ended())

    def asked_again(self) -> bool:
        return self.asked is not None

    def found(self, medium: str, prompt: str) -> int:
        return self.index.match(keys(prompt)).get(Holder(A, MEDIA[medium]), 0)


media = st.sampled_from(sorted(MEDIA))
prompts = st.text("01", min_size=1, max_size=5)
changes = st.one_of(
    st.tuples(st.just("store"), media, prompts, st.integers(0, 4)),
    st.tuples(st.just("store"), media, prompts, st.just(0)),
    st.tuples(st.just("remove"), media, st.lists(prompts, min_size=1, max_size=3), st.just(0)),
    st.tuples(st.just("clear"), st.just(""), st.just(""), st.just(0)),
)
deliveries = st.sampled_from(["heard", "heard", "heard", "lost", "twice", "late", "replay", "reconnect", "restart"])


def change(engine: Engine, kind: str, medium: str, what: str | list[str], skip: int) -> None:
    if kind == "clear":
        engine.clear()
    elif isinstance(what, str):
        engine.store(medium, what, min(skip, len(what) - 1))
    else:
        engine.remove(medium, what)


def check(listener: Listener, *, whole: bool) -> None:
    for medium in MEDIA:
        for prompt in PROMPTS:
            found, true = listener.found(medium, prompt), listener.engine.cached(medium, prompt)
            assert found == true if whole else found <= true, (medium, prompt)


@pytest.mark.parametrize("make", [NaiveIndex, MemoryIndex])
@settings(max_examples=80, deadline=None)
@given(events=st.lists(changes, max_size=30))
def test_without_loss_the_index_has_what_the_engine_has_after_every_event(
    make: type[NaiveIndex | MemoryIndex],
    events: list[tuple[str, str, str | list[str], int]],
) -> None:
    engine = Engine(100)
    listener = Listener(engine, make(10_000), can_replay=True)
    for event in events:
        change(engine, *event)
        listener.hear(len(engine.sent) - 1)
        check(listener, whole=True)
    stats = listener.mirror.stats
    assert stats.blocks >= listener.index.stats().blocks
    for medium, held in engine.held.items():
        if held:
            engine.remove(medium, sorted(held))
            listener.hear(len(engine.sent) - 1)
    assert (listener.mirror.stats.blocks, listener.mirror.stats.waiting, listener.index.stats().entries) == (0, 0, 0)


@settings(max_examples=150, deadline=None)
@given(
    steps=st.lists(st.tuples(changes, deliveries), max_size=40),
    buffer=st.sampled_from([2, 5, 100]),
    can_replay=st.booleans(),
)
def test_with_loss_replay_and_restart_it_converges(
    steps: list[tuple[tuple[str, str, str | list[str], int], str]], buffer: int, can_replay: bool
) -> None:
    engine = Engine(buffer)
    listener = Listener(engine, MemoryIndex(10_000), can_replay=can_replay)
    late: list[int] = []
    for event, delivery in steps:
        if delivery == "restart":
            engine.begin()
            late.clear()  # the connection went, and with it what was on the way
            listener.carry_out(listener.feed.connected())
        change(engine, *event)
        deliver(listener, delivery, len(engine.sent) - 1, late)
    engine.store("GPU", "0", 0)
    listener.run_replays()
    listener.hear(len(engine.sent) - 1)
    listener.run_replays()
    assert listener.feed.unbroken
    check(listener, whole=listener.feed.complete)


def deliver(listener: Listener, delivery: str, last: int, late: list[int]) -> None:
    if delivery == "late":
        late.append(last)
        return
    if delivery == "lost":
        return
    listener.hear(last)
    if delivery == "twice":
        listener.hear(last)
    if delivery == "replay":
        listener.run_replays()
    if delivery == "reconnect":
        listener.carry_out(listener.feed.connected())
    while late:
        listener.hear(late.pop())

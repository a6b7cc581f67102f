"""The memory index answers every sequence of calls as the brute-force index does, and stays within its bounds."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from prefix_index.encoding.protocol import Namespace
from prefix_index.keys import extend, root_state
from prefix_index.memory import MemoryIndex
from prefix_index.naive import NaiveIndex
from prefix_index.protocol import Holder, Tier
from tests.support.memory import resident_mib
from vocabulary import KEY_BYTES, BlockKeys, InstanceId

if TYPE_CHECKING:
    from prefix_index.tree import Node

HOLDERS = [
    Holder(InstanceId(1)),
    Holder(InstanceId(1), Tier.HOST),
    Holder(InstanceId(2)),
    Holder(InstanceId(3)),
]
holders = st.sampled_from(HOLDERS)
prompts = st.binary(max_size=12).map(lambda raw: bytes(byte % 2 for byte in raw))
"""Blocks are bits, so that prompts share heads and branch often."""

ROOT = root_state(b"", Namespace("m"), 1)


def run(prompt: bytes) -> BlockKeys:
    return extend(ROOT, prompt, 1)[0]


def check_tree(index: MemoryIndex) -> None:
    """Structure and counters that the answers cannot show."""
    nodes = blocks = 0
    stack: list[Node] = list((index._root.children or {}).values())
    while stack:
        node = stack.pop()
        nodes += 1
        blocks += node.blocks
        assert node.entries, "a node that nobody has"
        assert node.blocks == max(entry.count for entry in node.entries) > 0
        for first, child in (node.children or {}).items():
            assert child.parent is node
            assert child.run[:KEY_BYTES] == first
            for entry in child.entries:
                above = node.entry(entry.order)
                assert above is not None, "not prefix-closed"
                assert above.count == node.blocks, "not prefix-closed"
                assert above.stamp >= entry.stamp
            stack.append(child)
    assert (nodes, blocks) == (index.nodes, index.stats().blocks)
    for order in index._orders.values():
        check_order(order.holder, index)


def check_order(holder: Holder, index: MemoryIndex) -> None:
    order = index._orders[holder]
    entry, before, seen = order.oldest, None, 0
    passed: set[int] = set()
    while entry is not None:
        assert entry.older is before
        assert entry.order is order
        assert before is None or before.stamp <= entry.stamp
        assert entry.node.parent is not None
        assert id(entry.node.parent) not in passed, "an ancestor is older than its descendant"
        passed.add(id(entry.node))
        seen += entry.count
        before, entry = entry, entry.newer
    assert order.newest is before
    assert seen == order.blocks


class MemoryEqualsNaive(RuleBasedStateMachine):
    @initialize(cap=st.integers(1, 60))
    def begin(self, cap: int) -> None:
        self.cap = cap
        self.naive, self.memory = NaiveIndex(cap), MemoryIndex(cap)

    @rule(holder=holders, prompt=prompts, start=st.integers(0, 3) | st.just(0))
    def store(self, holder: Holder, prompt: bytes, start: int) -> None:
        keys = run(prompt)
        assert self.memory.store(holder, keys, start) == self.naive.store(holder, keys, start)

    @rule(holder=holders, prompt=prompts, turns=st.lists(st.integers(1, 4), max_size=5))
    def grow(self, holder: Holder, prompt: bytes, turns: list[int]) -> None:
        for turn in turns:
            prompt += bytes(turn)
            assert self.memory.store(holder, run(prompt)) == self.naive.store(holder, run(prompt))

    @rule(holder=holders, prompt=prompts, keep=st.integers(0, 12))
    def remove(self, holder: Holder, prompt: bytes, keep: int) -> None:
        assert self.memory.remove(holder, run(prompt), keep) == self.naive.remove(holder, run(prompt), keep)

    @rule(instance=st.sampled_from([InstanceId(1), InstanceId(2), InstanceId(9)]))
    def clear(self, instance: InstanceId) -> None:
        assert self.memory.clear(instance) == self.naive.clear(instance)

    @rule(holder=holders, blocks=st.none() | st.integers(0, 20))
    def set_capacity(self, holder: Holder, blocks: int | None) -> None:
        self.memory.set_capacity(holder, blocks)
        self.naive.set_capacity(holder, blocks)

    @rule(prompt=prompts)
    def look(self, prompt: bytes) -> None:
        keys = run(prompt)
        assert self.memory.match(keys) == self.naive.match(keys)
        assert self.memory.holders(keys) == self.naive.holders(keys)

    @invariant()
    def same_content(self) -> None:
        if not hasattr(self, "cap"):
            return
        assert self.memory.stats() == self.naive.stats()
        assert self.memory.stats().entries <= self.cap
        for held in self.naive._held.values():
            for keys in held:
                assert self.memory.match(BlockKeys(keys)) == self.naive.match(BlockKeys(keys))

    @invariant()
    def sound_tree(self) -> None:
        if hasattr(self, "cap"):
            check_tree(self.memory)


TestMemoryEqualsNaive = MemoryEqualsNaive.TestCase
TestMemoryEqualsNaive.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_a_session_that_grows_is_one_run() -> None:
    index = MemoryIndex(10_000)
    for turns in range(1, 200):
        index.store(HOLDERS[0], run(b"system" + bytes(turns)))
    assert index.nodes == 1
    check_tree(index)


def test_a_chain_that_no_longer_branches_becomes_one_run_again() -> None:
    index = MemoryIndex(10_000)
    long = run(bytes(range(100)))
    for blocks in range(99, 0, -3):
        index.store(HOLDERS[0], BlockKeys(long[: blocks * KEY_BYTES]))
    assert index.nodes > 30
    for _ in range(10):
        index.store(HOLDERS[0], long)
    assert index.nodes == 1
    check_tree(index)


def test_o38_a_thousand_backends_that_come_and_go_leave_nothing_behind() -> None:
    index = MemoryIndex(100_000)
    stays = Holder(InstanceId(0))
    for session in range(20):
        index.store(stays, run(b"shared system prompt" + bytes([session]) * 30))
    baseline = (index.nodes, index.stats())
    for number in range(1, 1001):
        guest = Holder(InstanceId(number))
        index.set_capacity(guest, 500)
        for session in range(0, 20, 4):
            index.store(guest, run(b"shared system prompt" + bytes([session]) * 40))
            index.store(guest, run(b"shared sys" + bytes([200 - session]) * 3))
        assert index.clear(guest.instance) > 0
    assert (index.nodes, index.stats()) == baseline
    assert list(index._orders) == [stays]
    assert len(index._queue) == 1
    check_tree(index)


def test_o40_unique_prompts_without_end_stay_within_the_bound() -> None:
    index = MemoryIndex(5_000)
    workers = [Holder(InstanceId(number)) for number in range(8)]
    rng = random.Random(40)
    head = run(b"shared")
    for number in range(100_000):
        keys = BlockKeys(head + rng.randbytes(4 * KEY_BYTES))
        index.store(workers[number % 8], keys)
    stats = index.stats()
    assert stats.entries <= 5_000
    assert stats.evicted_total == 400_000 + 48 - stats.entries
    assert index.match(keys) == {worker: 10 if worker == workers[7] else 6 for worker in workers}
    assert index.nodes <= 5_000
    check_tree(index)


def test_o40_a_million_unique_prompts_in_flat_memory_and_steady_time() -> None:
    """Each prompt has one block of its own behind a shared head: what costs is their number, not their length."""
    index = MemoryIndex(20_000)
    worker = Holder(InstanceId(1))
    rng = random.Random(40)
    head = run(b"shared head")
    rounds, each = 10, 100_000
    nodes, evicted, times_s, memory_mib = [], [], [], []
    for _ in range(rounds):
        fresh = rng.randbytes(each * KEY_BYTES)
        started_s = time.process_time()
        for start in range(0, len(fresh), KEY_BYTES):
            index.store(worker, BlockKeys(head + fresh[start : start + KEY_BYTES]))
        times_s.append(time.process_time() - started_s)
        nodes.append(index.nodes)
        memory_mib.append(resident_mib())
        evicted.append(index.stats().evicted_total)
        assert index.stats().entries <= 20_000
        last = BlockKeys(head + fresh[-KEY_BYTES:])
        assert index.match(last) == {worker: len(last) // KEY_BYTES}
        assert index.match(BlockKeys(head + fresh[:KEY_BYTES])) == {worker: len(head) // KEY_BYTES}, "long evicted"
    assert evicted[-1] == rounds * each + len(head) // KEY_BYTES - index.stats().entries
    assert max(nodes) == min(nodes)
    assert memory_mib[-1] - memory_mib[1] < 32
    assert sorted(times_s)[rounds // 2] < 5 * times_s[0]
    check_tree(index)

"""Who computes what in the next step: the order of vLLM v1. No clock, no I/O.

1. Running sequences in admission order: a decode takes one token, an unfinished prefill all that is left, or the
   long-prefill threshold when others are there.
2. Then the waiting queue, by arrival or by priority, while token budget is left and the whole prompt fits into free and
   evictable blocks. What is cached is matched here, full blocks only; at least one token is computed again.
A running sequence that finds no block preempts the newest (fcfs) or the least urgent (priority), which starts over
later.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from backends.engine.cache import BlockCache
    from backends.engine.sequence import Seq

Policy = Literal["fcfs", "priority"]


@dataclass(frozen=True, slots=True)
class Limits:
    """vLLM's knobs of the same names; a threshold of 0 is none."""

    block_size: int = 16
    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 256
    long_prefill_token_threshold: int = 0
    policy: Policy = "fcfs"

    def __post_init__(self) -> None:
        if min(self.block_size, self.max_num_batched_tokens, self.max_num_seqs) < 1:
            raise ValueError("block_size, max_num_batched_tokens and max_num_seqs must be positive")
        if self.long_prefill_token_threshold < 0:
            raise ValueError("long_prefill_token_threshold must not be negative")


class WaitingQueue:
    """A heap in service order; removal is lazy."""

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, int], Seq]] = []
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def push(self, seq: Seq) -> None:
        seq.waiting = True
        heapq.heappush(self._heap, (seq.order, seq))
        self._size += 1

    def peek(self) -> Seq:
        while not self._heap[0][1].waiting:
            heapq.heappop(self._heap)
        return self._heap[0][1]

    def pop(self) -> Seq:
        seq = self.peek()
        heapq.heappop(self._heap)
        self._leave(seq)
        return seq

    def discard(self, seq: Seq) -> None:
        self._leave(seq)
        if not self._size:
            self._heap.clear()

    def _leave(self, seq: Seq) -> None:
        seq.waiting = False
        self._size -= 1


class Scheduler:
    """Owns the two queues and moves blocks between sequences and the cache."""

    def __init__(self, cache: BlockCache, limits: Limits) -> None:
        self._cache = cache
        self._limits = limits
        self.waiting = WaitingQueue()
        self.running: list[Seq] = []
        self.preemptions_total = 0
        self.queried_tokens_total = 0
        self.hit_tokens_total = 0

    def plan(self) -> list[tuple[Seq, int]]:
        """(sequence, tokens to compute) for the next step; blocks for them are allocated."""
        chunks: list[tuple[Seq, int]] = []
        before = self.preemptions_total
        budget = self._plan_running(chunks)
        if self.waiting and before == self.preemptions_total:
            self._admit(chunks, budget)
        return chunks

    def release(self, seq: Seq) -> None:
        """Give back all blocks of `seq`, tail first."""
        self._cache.release(seq.request.block_hashes, seq.committed, seq.blocks - seq.committed)
        seq.blocks = seq.committed = seq.computed = 0

    def _plan_running(self, chunks: list[tuple[Seq, int]]) -> int:
        running, cache, block_size = self.running, self._cache, self._limits.block_size
        budget = self._limits.max_num_batched_tokens
        i = 0
        while i < len(running) and budget > 0:
            seq = running[i]
            tokens = seq.total - seq.computed
            if tokens > 1:
                tokens = min(self._capped(tokens), budget)
            end = seq.computed + tokens
            if end > seq.blocks * block_size:
                need = -(-end // block_size) - seq.blocks
                if need > cache.free:
                    budget += self._make_room(seq, need, chunks)
                    if seq.waiting:
                        break
                    i = running.index(seq)  # one before it may have been preempted
                cache.allocate(need)
                seq.blocks += need
            chunks.append((seq, tokens))
            budget -= tokens
            i += 1
        return budget

    def _admit(self, chunks: list[tuple[Seq, int]], budget: int) -> None:
        cache, block_size = self._cache, self._limits.block_size
        while self.waiting and budget > 0 and len(self.running) < self._limits.max_num_seqs:
            seq = self.waiting.peek()
            hashes = seq.request.block_hashes
            hits = cache.match(hashes, (seq.total - 1) // block_size)
            if -(-seq.total // block_size) - hits + cache.idle_among(hashes, hits) > cache.free:
                return
            self.waiting.pop()
            self.running.append(seq)
            cache.acquire(hashes, hits)
            seq.computed = hits * block_size
            tokens = min(self._capped(seq.total - seq.computed), budget)
            seq.blocks = -(-(seq.computed + tokens) // block_size)
            cache.allocate(seq.blocks - hits)
            seq.committed = hits
            if seq.cached_tokens is None:
                seq.cached_tokens = seq.computed
                self.queried_tokens_total += seq.total
                self.hit_tokens_total += seq.computed
            chunks.append((seq, tokens))
            budget -= tokens

    def _capped(self, tokens: int) -> int:
        cap = self._limits.long_prefill_token_threshold
        return cap if 0 < cap < tokens and len(self.running) + len(self.waiting) > 1 else tokens

    def _make_room(self, seq: Seq, need: int, chunks: list[tuple[Seq, int]]) -> int:
        """Preempt until `need` blocks are free, `seq` itself when its turn comes. Returns the tokens that were given
        back.
        """
        returned = 0
        while need > self._cache.free:
            victim = self._victim()
            returned += self._preempt(victim, chunks)
            if victim is seq:
                break
        return returned

    def _victim(self) -> Seq:
        if self._limits.policy == "priority":
            return max(self.running, key=lambda seq: seq.order)
        return self.running[-1]

    def _preempt(self, seq: Seq, chunks: list[tuple[Seq, int]]) -> int:
        """Back to the queue, everything to be computed again. Returns the tokens it was to get in this step."""
        self.running.remove(seq)
        self.release(seq)
        seq.preemptions += 1
        self.preemptions_total += 1
        self.waiting.push(seq)
        for i, (planned, tokens) in enumerate(chunks):
            if planned is seq:
                del chunks[i]
                return tokens
        return 0

"""The block KV cache of one engine: reference counts and an LRU of blocks that nobody holds.

A block hash is chained: it names the block and all before it, so whatever is cached of a prompt is a head of it. The
invariant that keeps it so: who holds a block holds its parents too, and blocks are given back tail first, so a child
is always evicted before its parent. Blocks without a hash (not yet full, or never to be matched) are only counted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class BlocksRemoved:
    """Blocks that left the cache, in the order in which they left."""

    hashes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CacheCleared:
    """Everything left the cache."""


class BlockCache:
    """Counts blocks of `capacity`; with `record` the hashes that are evicted are kept until `take_removed`."""

    def __init__(self, capacity: int, *, record: bool = True) -> None:
        if capacity < 1:
            raise ValueError("a cache needs at least one block")
        self.capacity = capacity
        self._unused = capacity
        self._held: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._removed: list[int] | None = [] if record else None

    @property
    def free(self) -> int:
        """Blocks that can be handed out now: unused ones and evictable ones."""
        return self._unused + len(self._idle)

    @property
    def cached(self) -> int:
        """Blocks that can be matched."""
        return len(self._held) + len(self._idle)

    def match(self, hashes: Sequence[int], limit: int) -> int:
        """How many of the first `limit` blocks are cached. O(log n): they are a head of the chain."""
        held, idle = self._held, self._idle
        return bisect_left(hashes, True, 0, min(limit, len(hashes)), key=lambda h: h not in held and h not in idle)

    def idle_among(self, hashes: Sequence[int], count: int) -> int:
        """How many of the first `count` blocks, all cached, nobody holds: acquiring them costs as many free ones."""
        held = self._held
        return count - bisect_left(hashes, True, 0, count, key=lambda h: h not in held)

    def acquire(self, hashes: Sequence[int], count: int) -> None:
        """Take a reference on each of the first `count` blocks, all cached."""
        held, idle = self._held, self._idle
        for block in hashes[:count]:
            if block in held:
                held[block] += 1
            else:
                del idle[block]
                held[block] = 1

    def allocate(self, count: int) -> None:
        """Hand out `count` blocks without a hash; the longest unheld ones are evicted. The caller has looked at
        `free`.
        """
        spare = min(count, self._unused)
        self._unused -= spare
        idle, removed = self._idle, self._removed
        for _ in range(count - spare):
            block, _none = idle.popitem(last=False)
            if removed is not None:
                removed.append(block)

    def commit(self, block: int) -> bool:
        """A handed-out block is full and computed: it can be matched from now on. False if the same block was there
        already.

        A second copy is merged into the first one, so that parents are never evicted before children.
        """
        held, idle = self._held, self._idle
        if block in held:
            held[block] += 1
        elif block in idle:
            del idle[block]
            held[block] = 1
        else:
            held[block] = 1
            return True
        self._unused += 1
        return False

    def release(self, hashes: Sequence[int], committed: int, anonymous: int) -> None:
        """Give back the first `committed` blocks of a chain and `anonymous` ones without a hash, tail first."""
        self._unused += anonymous
        held, idle = self._held, self._idle
        for i in range(committed - 1, -1, -1):
            block = hashes[i]
            count = held[block]
            if count == 1:
                del held[block]
                idle[block] = None
            else:
                held[block] = count - 1

    def clear(self) -> bool:
        """Forget every block. Refused, as vLLM does, while a block is held: False."""
        if self.free < self.capacity:
            return False
        self._unused = self.capacity
        self._idle.clear()
        return True

    def take_removed(self) -> BlocksRemoved | None:
        """The hashes evicted since the last call."""
        if not self._removed:
            return None
        event = BlocksRemoved(tuple(self._removed))
        self._removed.clear()
        return event

"""The oracle: a prefix index by brute force, too slow to serve and too simple to be wrong.

It defines what every other member must do. Recency is kept per (holder, block): a use touches all blocks of its run,
and of one use the deeper block is the older. The oldest goes first, so what a holder has stays a set of contiguous
heads.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from prefix_index.protocol import IndexStats
from vocabulary import KEY_BYTES

if TYPE_CHECKING:
    from prefix_index.protocol import Holder
    from vocabulary import BlockKeys, InstanceId


def _heads(keys: bytes) -> list[bytes]:
    return [keys[: at + KEY_BYTES] for at in range(0, len(keys), KEY_BYTES)]


class NaiveIndex:
    """Every prefix as its whole run of keys, in one dict per holder with the number of its last use."""

    def __init__(self, max_entries: int) -> None:
        if max_entries < 1:
            raise ValueError("max_entries must be at least 1")
        self._max_entries = max_entries
        self._held: dict[Holder, dict[bytes, int]] = {}
        self._capacity: dict[Holder, int] = {}
        self._uses = count(1)
        self._evicted = 0

    def store(self, holder: Holder, keys: BlockKeys, start: int = 0) -> int:
        have = self.match(keys).get(holder, 0)
        if not keys or have < start:
            return 0
        use = next(self._uses)
        self._held.setdefault(holder, {}).update(dict.fromkeys(_heads(keys), use))
        self._evict(holder)
        return len(keys) // KEY_BYTES - have

    def remove(self, holder: Holder, keys: BlockKeys, keep: int) -> int:
        heads = _heads(keys)[max(keep, 0) :]
        held = self._held.get(holder, {})
        gone = [run for run in held if heads and run.startswith(heads[0])]
        for run in gone:
            del held[run]
        return len(gone)

    def clear(self, instance: InstanceId) -> int:
        holders = {h for h in (*self._held, *self._capacity) if h.instance == instance}
        for holder in holders:
            self._capacity.pop(holder, None)
        return sum(len(self._held.pop(holder, ())) for holder in holders)

    def match(self, keys: BlockKeys) -> dict[Holder, int]:
        heads = _heads(keys)
        lengths = {holder: sum(head in held for head in heads) for holder, held in self._held.items()}
        return {holder: length for holder, length in lengths.items() if length}

    def holders(self, keys: BlockKeys) -> frozenset[Holder]:
        return frozenset(holder for holder, held in self._held.items() if bytes(keys) in held)

    def set_capacity(self, holder: Holder, blocks: int | None) -> None:
        if blocks is None:
            self._capacity.pop(holder, None)
            return
        if blocks < 0:
            raise ValueError("a capacity cannot be negative")
        self._capacity[holder] = blocks
        self._evict(holder)

    def stats(self) -> IndexStats:
        held = {holder: len(runs) for holder, runs in self._held.items() if runs}
        blocks = {run for runs in self._held.values() for run in runs}
        return IndexStats(len(blocks), sum(held.values()), self._evicted, held)

    def _evict(self, holder: Holder) -> None:
        capacity = self._capacity.get(holder)
        while capacity is not None and len(self._held.get(holder, ())) > capacity:
            self._drop_oldest((holder,))
        while sum(map(len, self._held.values())) > self._max_entries:
            self._drop_oldest(self._held)

    def _drop_oldest(self, holders: tuple[Holder, ...] | dict[Holder, dict[bytes, int]]) -> None:
        _, _, holder, run = min((use, -len(run), h, run) for h in holders for run, use in self._held[h].items())
        del self._held[holder][run]
        self._evicted += 1

"""The seam of the prefix index: which instance holds which prefix, in which tier.

Keys are chained: a key names its block and all blocks before it, so a prompt is one run of keys and what a holder has
of it is a *length*. Every holder is kept prefix-closed: whatever of a prompt it holds is a contiguous head.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vocabulary import BlockKeys, InstanceId


class Tier(enum.IntEnum):
    """Where blocks lie, fastest first."""

    GPU = 0
    HOST = 1
    DISK = 2
    EXTERNAL = 3


class Holder(NamedTuple):
    """One tier of one instance."""

    instance: InstanceId
    tier: Tier = Tier.GPU


@dataclass(frozen=True, slots=True)
class IndexStats:
    blocks: int
    """Distinct block keys held by anyone."""
    entries: int
    """(block, holder) pairs: what the global cap counts."""
    evicted_total: int
    holders: Mapping[Holder, int]
    """Blocks per holder."""


class PrefixIndex(Protocol):
    """Synchronous: a member that needs I/O answers from a local view and awaits elsewhere."""

    def store(self, holder: Holder, keys: BlockKeys, start: int = 0) -> int:
        """`holder` now has the whole run `keys`; counts as its use. Returns how many blocks were new to it.

        `start` is the number of leading blocks the caller knows nothing new about: the run is stored only if the holder
        already has them (a block with an unknown parent is never filed), else nothing is stored and 0 is returned.
        """
        ...

    def remove(self, holder: Holder, keys: BlockKeys, keep: int) -> int:
        """Block number `keep` (from 0) of the run `keys` is gone from `holder`, and all that follows it in any branch.

        Branches that leave the run before that block stay. Returns how many of its blocks went.
        """
        ...

    def clear(self, instance: InstanceId) -> int:
        """Forget all tiers of an instance (restart, flush, removal); a capacity has to be set again if it lives on.

        Returns the number of entries dropped.
        """
        ...

    def match(self, keys: BlockKeys) -> dict[Holder, int]:
        """Length in blocks of the head of `keys` that each holder has; holders of nothing are left out. Not a use."""
        ...

    def holders(self, keys: BlockKeys) -> frozenset[Holder]:
        """Who has the last block of the run `keys` (and so all of it)."""
        ...

    def set_capacity(self, holder: Holder, blocks: int | None) -> None:
        """At most so many blocks for this holder (None: only the global cap); evicts at once, least recently used run
        first, its tail first."""
        ...

    def stats(self) -> IndexStats: ...

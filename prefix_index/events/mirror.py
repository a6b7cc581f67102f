"""What an engine's events say it has cached, kept in the prefix index under our own keys.

An engine's hashes are handles only: keys are chained anew from ids, adapter, salt and marks. The index sees every tier
prefix-closed, while the mirror remembers the blocks behind a gap, and files them when the gap closes. Invariants:
nothing is filed whose beginning is not known to be there, and an event that comes twice changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from prefix_index.encoding.completion import ID_BYTES
from prefix_index.encoding.protocol import Namespace
from prefix_index.events.chain import Chain
from prefix_index.events.codec import Removed, Stored
from prefix_index.events.orphans import Orphans, whole
from prefix_index.protocol import Holder, Tier
from vocabulary import KEY_BYTES, BlockKeys

if TYPE_CHECKING:
    from collections.abc import Callable

    from prefix_index.events.codec import Event, Handle
    from prefix_index.protocol import PrefixIndex
    from vocabulary import InstanceId

_HANDLE_BITS: Final = (1 << 60) - 1
"""So much of a handle is kept: CPython stores such a number in 32 bytes, one of 64 bits in 48."""


@dataclass(frozen=True, slots=True)
class MirrorStats:
    blocks: int
    """Handles known, those that wait included."""
    waiting: int
    """Blocks whose beginning nobody has told yet."""
    dropped_total: int
    """Blocks given up: too many waited, or there were too many in all."""
    wrong_size_total: int
    """Blocks refused because their size is not that of the key space."""
    engine_block_size: int | None
    """As the last stored block had it, in tokens."""
    unknown_removed_total: int
    """Removals of blocks that were not known: events were missed, or dropped here."""


class Mirror:
    """One instance. `root`: the digest that starts the chains of a namespace (`prefix_index.keys.root_state`), made
    with `block_size`; `model` goes into that namespace as it is.
    """

    def __init__(
        self,
        index: PrefixIndex,
        instance: InstanceId,
        root: Callable[[Namespace], bytes],
        *,
        block_size: int,
        model: str = "",
        max_waiting: int = 65_536,
        max_blocks: int = 8_000_000,
    ) -> None:
        self._index = index
        self._instance = instance
        self._holders = tuple(Holder(instance, tier) for tier in Tier)
        self._root = root
        self._model = model
        self._block_size = block_size
        self._max_waiting = max_waiting
        self._max_blocks = max_blocks
        self._chains: dict[int, Chain] = {}
        self._orphans = Orphans()
        self._group: int | None = None
        self._dropped = self._wrong_size = self._unknown_removed = 0
        self._engine_block_size: int | None = None

    @property
    def stats(self) -> MirrorStats:
        return MirrorStats(
            len(self._chains),
            self._orphans.blocks,
            self._dropped,
            self._wrong_size,
            self._engine_block_size,
            self._unknown_removed,
        )

    def apply(self, event: Event) -> int:
        """Returns how many blocks came, went or moved; 0 for what was known already."""
        if isinstance(event, Stored):
            return self._store(event)
        if isinstance(event, Removed):
            return self._remove(event)
        return self.purge()

    def purge(self) -> int:
        """Forget everything, here and in the index (a capacity set there for this instance too)."""
        known = len(self._chains)
        self._chains = {}
        self._orphans = Orphans()
        self._group = None
        self._index.clear(self._instance)
        return known

    def _store(self, event: Stored) -> int:
        if self._group is None:
            self._group = event.group
        elif event.group != self._group:
            return 0
        count = len(event.hashes)
        self._engine_block_size = event.block_size
        if event.block_size != self._block_size:
            self._wrong_size += count
            return 0
        handles = [_number(value) for value in event.hashes]
        if len(self._chains) + count > self._max_blocks or len(set(handles)) != count:
            self._dropped += count
            return 0
        return self._place(event, handles)

    def _place(self, event: Stored, handles: list[int]) -> int:
        tier, chains, count = event.medium, self._chains, len(handles)
        chain, size = self._behind(event.parent)
        touched: dict[Chain, int] = {}
        changed = at = 0
        while at < count:
            known = chains.get(handles[at])
            if known is not None:
                number = known.find(handles[at], size if known is chain else 0)
                end = at + 1
                touched.setdefault(known, known.have(tier))
                changed += not _present(known, tier, number)
                known.mark(tier, number, 1)
                chain, size = known, number + 1
            else:
                end = at + 1
                while end < count and handles[end] not in chains:
                    end += 1
                chain = self._grow(chain, size, event, handles, at, end)
                touched.setdefault(chain, chain.have(tier))
                size = len(chain)
                chain.mark(tier, size - (end - at), end - at)
                changed += end - at
            at = end
        for chain, had in touched.items():
            self._file(chain, tier, had)
        self._adopt(handles)
        self._bound_waiting()
        return changed

    def _behind(self, parent: Handle | None) -> tuple[Chain | None, int]:
        """Where the next block belongs: a chain and how many of its blocks come before."""
        if parent is None:
            return None, 0
        handle = _number(parent)
        chain = self._chains.get(handle)
        if chain is None:
            return None, 0
        return chain, chain.find(handle, len(chain) - 1) + 1

    def _grow(self, chain: Chain | None, size: int, event: Stored, handles: list[int], at: int, end: int) -> Chain:
        """Put blocks `at` to `end` of the event behind `size` blocks of a chain. Returns the chain they are in."""
        root: bytes | None = None
        if chain is None:
            if event.parent is None:
                chain = Chain(None, 0, None)
                root = self._root(Namespace(self._model, event.adapter, event.salt))
            else:
                chain = self._orphans.new(_number(event.parent))
        elif size != len(chain):
            chain = Chain(chain, size, None if chain.blocks is None else [])
        new = handles[at:end]
        chain.extend(new, _blocks(event, at, end), root)
        if chain.blocks is not None:
            self._orphans.blocks += end - at
        self._chains.update(dict.fromkeys(new, chain))
        return chain

    def _file(self, chain: Chain, tier: Tier, had: int) -> None:
        """Tell the index what of a chain, and of what hangs on it, is reachable now. `had`: blocks told before."""
        if not _reached(chain, tier):
            return
        todo = [(chain, had)]
        while todo:
            chain, had = todo.pop()
            have = chain.have(tier)
            if not have:
                continue
            self._index.store(self._holders[tier], BlockKeys(chain.run(have)))
            for offset, beside in (chain.children or {}).items():
                if had < offset <= have:
                    todo.extend((child, 0) for child in beside)

    def _adopt(self, handles: list[int]) -> None:
        """Chains that waited for one of these blocks get their keys, and go to the index in all tiers they are in."""
        if not self._orphans:
            return
        for handle in handles:
            parent = self._chains[handle]
            for orphan in self._orphans.adopt(handle, parent):
                if parent.blocks is None:
                    self._orphans.resolve(orphan)
                    for tier in Tier:
                        self._file(orphan, tier, 0)

    def _bound_waiting(self) -> None:
        while self._orphans.blocks > self._max_waiting and self._orphans:
            for orphan in self._orphans.pop_oldest():
                for chain in whole(orphan):
                    for at in range(len(chain)):
                        del self._chains[chain.handle(at)]
                    self._orphans.blocks -= len(chain)
                    self._dropped += len(chain)

    def _remove(self, event: Removed) -> int:
        if self._group is not None and event.group != self._group:
            return 0
        tier = event.medium
        first_gone: dict[Chain, int] = {}
        had: dict[Chain, int] = {}
        hint = gone = 0
        for value in event.hashes:
            handle = _number(value)
            chain = self._chains.get(handle)
            if chain is None:
                self._unknown_removed += 1
                continue
            at = chain.find(handle, hint)
            hint = at + 1
            if chain not in had:
                had[chain] = chain.have(tier)
            if chain.unmark(tier, at):
                gone += 1
                first_gone[chain] = min(at, first_gone.get(chain, at))
        for chain, at in first_gone.items():
            if at < had[chain] and chain.blocks is None:
                keys = BlockKeys(chain.run(at + 1))
                self._index.remove(self._holders[tier], keys, len(keys) // KEY_BYTES - 1)
        for chain in first_gone:
            self._trim(chain)
        return gone

    def _trim(self, chain: Chain | None) -> None:
        """Let go of blocks that are nowhere any more and lead to none that is somewhere."""
        while chain is not None:
            gone = chain.cut()
            for handle in gone:
                del self._chains[handle]
            if chain.blocks is not None:
                self._orphans.blocks -= len(gone)
            if len(chain):
                return
            self._orphans.forget(chain)
            chain = chain.leave()


def _number(handle: Handle) -> int:
    if isinstance(handle, bytes):
        handle = int.from_bytes(handle[-8:], "big")
    return handle & _HANDLE_BITS


def _blocks(event: Stored, at: int, end: int) -> list[bytes]:
    """What is hashed of each block: its ids, then its mark."""
    size, ids = event.block_size * ID_BYTES, event.token_ids
    blocks = [ids[start : start + size] for start in range(at * size, end * size, size)]
    if event.marks:
        return [block + mark for block, mark in zip(blocks, event.marks[at:end], strict=True)]
    return blocks


def _present(chain: Chain, tier: Tier, at: int) -> bool:
    return tier < len(chain.present) and bool(chain.present[tier] >> at & 1)


def _reached(chain: Chain, tier: Tier) -> bool:
    """Whether all blocks in front of the chain are in the tier."""
    if chain.blocks is not None:
        return False
    while (parent := chain.parent) is not None:
        if parent.have(tier) < chain.offset:
            return False
        chain = parent
    return True

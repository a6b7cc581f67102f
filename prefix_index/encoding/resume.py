"""What earlier turns left behind, so that a turn pays only for what is new.

Invariant: a snapshot is filed under a digest of everything before it, so taking it up gives the same keys as starting
over. Bounded in bytes, least recently used first. Safe to use from several threads.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock
from typing import Final

from prefix_index.encoding.prompt_ids import anchor, anchored_id, prompt_id
from prefix_index.encoding.protocol import Encoded
from prefix_index.keys import ChainState, extend
from vocabulary import KEY_BYTES, BlockKeys

_ENTRY_BYTES: Final = 500
"""About what one snapshot costs beside its keys: objects, digests, its place in the dict."""


_ENDS_PER_KEY: Final = 8


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A chain up to some point of a prompt: the keys so far, and how to go on."""

    state: ChainState
    keys: BlockKeys = BlockKeys(b"")  # noqa: RUF009 - a NewType of bytes: immutable
    units: int = 0
    is_end: bool = False
    """A prompt ended here."""

    @property
    def blocks(self) -> int:
        return len(self.keys) // KEY_BYTES

    def then(self, data: bytes, block_bytes: int, unit_bytes: int) -> Snapshot:
        """The same chain, `data` further."""
        keys, state = extend(self.state, data, block_bytes)
        return Snapshot(state, BlockKeys(self.keys + keys), self.units + len(data) // unit_bytes)


class SnapshotCache:
    """Snapshots by the digest of what they cover."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._snapshots: OrderedDict[bytes, Snapshot] = OrderedDict()
        self._lock = Lock()

    @property
    def size_bytes(self) -> int:
        return self._bytes

    def get(self, digest: bytes) -> Snapshot | None:
        with self._lock:
            snapshot = self._snapshots.pop(digest, None)
            if snapshot is not None:
                self._snapshots[digest] = snapshot
            return snapshot

    def put(self, digest: bytes, snapshot: Snapshot) -> None:
        with self._lock:
            known = self._snapshots.pop(digest, None)
            if known is not None:
                self._bytes -= _cost(known)
            self._snapshots[digest] = snapshot
            self._bytes += _cost(snapshot)
            while self._bytes > self._max_bytes:
                self._bytes -= _cost(self._snapshots.popitem(last=False)[1])

    def clear(self) -> None:
        with self._lock:
            self._snapshots.clear()
            self._bytes = 0


@dataclass(frozen=True, slots=True)
class Chained:
    """A whole prompt: its chain, and what of it an earlier prompt had."""

    chain: Snapshot
    resumed_blocks: int
    prompt_id: int
    resumed_id: int

    def encoded(self, block_units: int) -> Encoded:
        chain = self.chain
        return Encoded(chain.keys, chain.units, block_units, self.resumed_blocks, self.prompt_id, self.resumed_id)


class PromptEnds:
    """Where prompts seen before end: by their last key, the bytes that followed it. At most `max_ends` keys."""

    def __init__(self, max_ends: int) -> None:
        self._max_ends = max_ends
        self._ends: OrderedDict[bytes, tuple[bytes, ...]] = OrderedDict()
        self._lock = Lock()

    def resume(self, root: Snapshot, known: Snapshot, rest: bytes, end: Snapshot, block_bytes: int) -> Chained:
        """Find the longest earlier prompt that is a head of this one, and remember this one.

        `root` is the start of its namespace, `known` what the cache had of the prompt, `rest` the bytes from there to
        `end`. An earlier prompt shorter than `known` is not looked for.
        """
        chained = self._longest(root, known, known.state.partial + rest, end, block_bytes)
        self._add(anchor(root.state.digest, end.keys, end.blocks), end.state.partial)
        return chained

    def _longest(self, root: Snapshot, known: Snapshot, rest: bytes, end: Snapshot, block_bytes: int) -> Chained:
        own = chain_id(root, end)
        for blocks in range(end.blocks, known.blocks - 1, -1):
            place = anchor(root.state.digest, end.keys, blocks)
            partials = self._ends.get(place)
            if partials is None:
                continue
            at = (blocks - known.blocks) * block_bytes
            heads = [partial for partial in partials if rest.startswith(partial, at)]
            if heads:
                return Chained(end, blocks, own, anchored_id(place, max(heads, key=len)))
        return Chained(end, known.blocks, own, 0)

    def _add(self, place: bytes, partial: bytes) -> None:
        with self._lock:
            others = [other for other in self._ends.pop(place, ()) if other != partial]
            self._ends[place] = (*others[-_ENDS_PER_KEY + 1 :], partial)
            if len(self._ends) > self._max_ends:
                self._ends.popitem(last=False)


def chain_id(root: Snapshot, end: Snapshot) -> int:
    """Names the prompt that ends here, partial block included. Never 0."""
    return prompt_id(root.state.digest, end.keys, end.blocks, end.state.partial)


def _cost(snapshot: Snapshot) -> int:
    return _ENTRY_BYTES + len(snapshot.keys) + len(snapshot.state.partial)

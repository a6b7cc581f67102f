"""Chains over one long run of bytes (a completion's text or ids): resumed at fixed steps of what an earlier prompt
had."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xxhash import xxh3_128

if TYPE_CHECKING:
    from prefix_index.encoding.resume import Chained, PromptEnds, Snapshot, SnapshotCache

_STEP_BYTES: Final = 16 * 1024


class StepChain:
    """Invariant: the keys are those of `data` from its start; steps only say how much of them need not be computed."""

    def __init__(self, cache: SnapshotCache, ends: PromptEnds) -> None:
        self._cache = cache
        self._ends = ends

    def encode(self, root: Snapshot, data: bytes, block_bytes: int, unit_bytes: int) -> Chained:
        steps = self._digests(root, data)
        at, known = 0, root
        for step in range(len(steps), 0, -1):
            found = self._cache.get(steps[step - 1])
            if found is not None:
                at, known = step * _STEP_BYTES, found
                break
        chain = known
        last = len(steps) * _STEP_BYTES
        if last > at:
            chain = chain.then(data[at:last], block_bytes, unit_bytes)
            self._cache.put(steps[-1], chain)
        chain = chain.then(data[last:], block_bytes, unit_bytes)
        return self._ends.resume(root, known, data[at:], chain, block_bytes)

    def _digests(self, root: Snapshot, data: bytes) -> list[bytes]:
        hasher = xxh3_128(root.state.digest)
        view = memoryview(data)
        digests = []
        for at in range(0, len(data) - len(data) % _STEP_BYTES, _STEP_BYTES):
            hasher.update(view[at : at + _STEP_BYTES])
            digests.append(root.state.digest + hasher.digest())
        return digests

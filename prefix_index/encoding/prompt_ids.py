"""Ids of the last prompts, to find in a new one the earlier prompt that it continues.

Invariant: an id depends on the namespace and the canonical bytes of the whole prompt, on nothing else: both ways of
encoding a chat, whole or from where an earlier turn left off, give one prompt one id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xxhash import xxh3_64_intdigest

from vocabulary import KEY_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vocabulary import BlockKeys


def prompt_id(root_digest: bytes, keys: BlockKeys, blocks: int, partial: bytes) -> int:
    """Names the prompt of `blocks` full blocks of `keys` and what follows them. Never 0."""
    return anchored_id(anchor(root_digest, keys, blocks), partial)


def anchor(root_digest: bytes, keys: BlockKeys, blocks: int) -> bytes:
    """The key of the last of `blocks` full blocks; the root's digest where there is none."""
    return keys[(blocks - 1) * KEY_BYTES : blocks * KEY_BYTES] if blocks else root_digest


def anchored_id(anchor: bytes, partial: bytes) -> int:
    """The id of the prompt that ends with `partial` behind an anchor. Never 0."""
    return xxh3_64_intdigest(anchor + partial) or 1


class PromptIds:
    """The last `max_ids` at least, twice as many at most: generations are dropped whole, at no cost per prompt.

    Safe to use from several threads: at worst a generation turns over twice.
    """

    def __init__(self, max_ids: int = 65_536) -> None:
        self._max_ids = max_ids
        self._new: set[int] = set()
        self._old: set[int] = set()

    def add(self, prompt: int) -> bool:
        """False if it was known; it counts as new either way."""
        new = self._new
        known = prompt in new or prompt in self._old
        new.add(prompt)
        if len(new) >= self._max_ids:
            self._old, self._new = new, set()
        return not known

    def longest(
        self, root_digest: bytes, keys: BlockKeys, data: bytes, ends: Iterable[int], block_bytes: int
    ) -> tuple[int, int]:
        """(full blocks, id) of the longest known prompt that ends at one of `ends`, bytes of `data` in ascending order.

        (0, 0) if there is none. `keys` are those of `data`, whose start is the start of the chain.
        """
        new, old = self._new, self._old
        for end in reversed(list(ends)):
            blocks = end // block_bytes
            found = prompt_id(root_digest, keys, blocks, data[blocks * block_bytes : end])
            if found in new or found in old:
                return blocks, found
        return 0, 0

"""Runs of blocks as an engine names them: its handle of each, our own key, and in which tiers it lies.

A chain hangs behind a block of another one, or starts prompts; it grows at its end, and whatever hangs on it stays
where it is. Links (16 bytes per block) hold the handle and the half of the digest that is not the key. Invariant: a
chain that is not resolved yet has no keys, only the data of its blocks.
"""

from __future__ import annotations

from typing import Final

from prefix_index.keys import block_digests
from vocabulary import KEY_BYTES

_LINK: Final = 16


class Chain:
    """`parent` and `offset`: this run comes after the first `offset` blocks of the parent's."""

    __slots__ = ("blocks", "children", "keys", "links", "offset", "parent", "present", "waits_for")

    def __init__(self, parent: Chain | None, offset: int, blocks: list[bytes] | None) -> None:
        self.parent: Chain | None = None
        self.offset = 0
        self.links: bytes | bytearray = b""
        self.keys: bytes | bytearray = b""
        self.present = [0]
        """Per tier, fastest first: one bit per block."""
        self.children: dict[int, set[Chain]] | None = None
        """By the number of blocks before them."""
        self.blocks = blocks
        """Of a chain with an unknown beginning: ids and mark of each block. None once there are keys instead."""
        self.waits_for: int | None = None
        """The handle in front of the first block, while nobody knows it."""
        if parent is not None:
            self.hang(parent, offset)

    def __len__(self) -> int:
        return len(self.links) // _LINK

    def digest(self, at: int) -> bytes:
        """The chain state after block number `at`."""
        return bytes(self.keys[at * KEY_BYTES : (at + 1) * KEY_BYTES] + self.links[at * _LINK + 8 : (at + 1) * _LINK])

    def extend(self, handles: list[int], blocks: list[bytes], root: bytes | None) -> None:
        """Append blocks; `root` is the digest before the first block of a chain without a parent."""
        if self.blocks is not None:
            self.blocks += blocks
            self.links += b"".join([handle.to_bytes(_LINK, "little") for handle in handles])
            return
        digests = block_digests(self._last_digest(root), blocks)
        keys = b"".join([digest[:KEY_BYTES] for digest in digests])
        links = b"".join(
            [handle.to_bytes(8, "little") + digest[KEY_BYTES:] for handle, digest in zip(handles, digests, strict=True)]
        )
        if not self.keys:
            self.keys, self.links = keys, links
            return
        if isinstance(self.keys, bytes):  # most chains never grow, and bytes are half the size of an empty bytearray
            self.keys, self.links = bytearray(self.keys), bytearray(self.links)
        self.keys += keys
        self.links += links

    def resolve(self) -> int:
        """Make keys of the blocks' data; the parent is known and resolved. Returns the number of blocks."""
        blocks, self.blocks = self.blocks or [], None
        handles = [self.handle(at) for at in range(len(blocks))]
        self.extend(handles, blocks, None)
        return len(blocks)

    def handle(self, at: int) -> int:
        return int.from_bytes(self.links[at * _LINK : at * _LINK + 8], "little")

    def find(self, handle: int, hint: int) -> int:
        """The block's number; it is known to be here, and likely to be number `hint`, or else the last one."""
        raw = handle.to_bytes(8, "little")
        links = self.links
        if links[hint * _LINK : hint * _LINK + 8] == raw:
            return hint
        if links[-_LINK:-8] == raw:
            return len(self) - 1
        at = links.rfind(raw)
        while at % _LINK:
            at = links.rfind(raw, 0, at + 7)
        return at // _LINK

    def have(self, tier: int) -> int:
        """How many blocks from the first on are in the tier without a gap."""
        if tier >= len(self.present):
            return 0
        bits = self.present[tier]
        return (~bits & (bits + 1)).bit_length() - 1

    def mark(self, tier: int, at: int, count: int) -> None:
        while tier >= len(self.present):
            self.present.append(0)
        self.present[tier] |= ((1 << count) - 1) << at

    def unmark(self, tier: int, at: int) -> bool:
        """False if the block was not in that tier."""
        if tier >= len(self.present) or not self.present[tier] >> at & 1:
            return False
        self.present[tier] ^= 1 << at
        return True

    def cut(self) -> list[int]:
        """Drop the blocks at the end that are in no tier and lead nowhere. Returns their handles."""
        size = len(self)
        keep = max((bits.bit_length() for bits in self.present), default=0)
        if self.children:
            keep = max(keep, *self.children)
        gone = [self.handle(at) for at in range(keep, size)]
        if gone:
            self.links = _head(self.links, keep * _LINK)
            self.keys = _head(self.keys, keep * KEY_BYTES)
            if self.blocks is not None:
                del self.blocks[keep:]
        return gone

    def hang(self, parent: Chain, offset: int) -> None:
        self.parent, self.offset = parent, offset
        if parent.children is None:
            parent.children = {}
        parent.children.setdefault(offset, set()).add(self)

    def leave(self) -> Chain | None:
        """Leave the parent. Returns it; None if there is none, or no more."""
        parent, self.parent = self.parent, None
        if parent is not None and parent.children is not None:
            beside = parent.children[self.offset]
            beside.discard(self)
            if not beside:
                del parent.children[self.offset]
            if not parent.children:
                parent.children = None
        return parent

    def run(self, count: int) -> bytes:
        """The keys of a prompt from its start to the first `count` blocks of this chain."""
        parts = [memoryview(self.keys)[: count * KEY_BYTES]]
        chain = self
        while chain.parent is not None:
            parts.append(memoryview(chain.parent.keys)[: chain.offset * KEY_BYTES])
            chain = chain.parent
        parts.reverse()
        return b"".join(parts)

    def _last_digest(self, root: bytes | None) -> bytes:
        if self.keys:
            return self.digest(len(self) - 1)
        if self.parent is not None:
            return self.parent.digest(self.offset - 1)
        if root is None:
            raise ValueError("a chain that starts prompts needs its root")
        return root


def _head(data: bytes | bytearray, size: int) -> bytes | bytearray:
    """The first `size` bytes, at the cost of what goes where it can be."""
    if isinstance(data, bytes):
        return data[:size]
    del data[size:]
    return data

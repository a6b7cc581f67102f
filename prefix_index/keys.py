"""Block keys: chained 64-bit names of prompt prefixes.

The root of a chain is a digest of the length-framed namespace, each key the head of the digest over (digest before +
block): a key names its block, everything before it, and its namespace. Invariant: the keys of a prompt do not depend
on how its bytes were cut into calls of `extend`, nor on what follows a block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from mmh3 import mmh3_x64_128_digest

from vocabulary import BlockKeys

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prefix_index.encoding.protocol import Namespace

KEY_VERSION: Final = 1
"""Part of every root: a change of the key format makes old entries unreachable instead of wrong."""


class ChainState(NamedTuple):
    """Where a chain stands: 16 bytes of digest over all full blocks, and the bytes of the block not full yet."""

    digest: bytes
    partial: bytes = b""


def root_state(secret: bytes, namespace: Namespace, block_size: int) -> ChainState:
    """The start of all chains of one namespace; `block_size` in units of the encoding (bytes or tokens)."""
    fields = (
        secret,
        *(text.encode("utf-8", "surrogatepass") for text in (namespace.model, namespace.adapter, namespace.cache_salt)),
        block_size.to_bytes(8, "little"),
        KEY_VERSION.to_bytes(8, "little"),
    )
    return ChainState(mmh3_x64_128_digest(b"".join(len(field).to_bytes(8, "little") + field for field in fields)))


def extend(state: ChainState, data: bytes, block_bytes: int) -> tuple[BlockKeys, ChainState]:
    """Keys of the blocks that `data` fills, and the state after it."""
    buffer = state.partial + data if state.partial else data
    digest = state.digest
    end = len(buffer) - len(buffer) % block_bytes
    digests = [
        digest := mmh3_x64_128_digest(digest + buffer[at : at + block_bytes]) for at in range(0, end, block_bytes)
    ]
    heads = memoryview(b"".join(digests)).cast("Q")[::2]  # one slice for all keys, not one each
    return BlockKeys(heads.tobytes()), ChainState(digest, buffer[end:])


def block_digests(digest: bytes, blocks: Iterable[bytes]) -> list[bytes]:
    """The 16 bytes of chain state after each block; a block's key is the head of its own. For those who have to go on
    from the middle of a chain. A block may carry a mark behind its data (`block_mark`)."""
    return [digest := mmh3_x64_128_digest(digest + block) for block in blocks]


def block_mark(parts: Iterable[tuple[bytes, int]]) -> bytes:
    """What a block has beyond its data, as (id, offset in the block) of media in their order: empty for nothing.

    Length-framed, and never empty otherwise: blocks of one size that differ in their marks are never equal.
    """
    return b"".join(
        len(name).to_bytes(8, "little") + name + offset.to_bytes(8, "little", signed=True) for name, offset in parts
    )

"""KV-cache events of an engine, from the bytes of one message to plain values.

Understands tagged maps and positional arrays, handles as numbers (signed or not) or bytes, and the names of vLLM and
SGLang (vLLM 0.20.2 to 0.33.0, kv_events.py; SGLang 0.5.23, disaggregation/kv_events.py). Invariants: unknown fields
and unknown events are ignored; what is malformed raises `BadEvent`, whose text holds nothing of the message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import msgspec

from prefix_index.encoding.completion import ID_BYTES, pack_ids
from prefix_index.events.extras import read_extras
from prefix_index.protocol import Tier
from vocabulary.errors import WarmrouteError

if TYPE_CHECKING:
    from collections.abc import Iterator

Handle: TypeAlias = int | bytes
"""An engine's own name of a block, opaque: a number of 64 bits without sign, or bytes."""

_WORD: Final = (1 << 64) - 1
_MAX_BLOCK_SIZE: Final = 1 << 20
_TIERS: Final = {
    "GPU": Tier.GPU,
    "CPU": Tier.HOST,
    "CPU_PINNED": Tier.HOST,
    "HOST": Tier.HOST,
    "DISK": Tier.DISK,
    "STORAGE": Tier.DISK,
}
_STORED_ORDER: Final = (
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
    "kv_cache_spec_sliding_window",
    "locality",
)
_REMOVED_ORDER: Final = ("block_hashes", "medium", "group_idx", "locality")
_decode_untyped: Final = msgspec.msgpack.Decoder().decode


class BadEvent(WarmrouteError):
    """A message that is no batch of KV-cache events. Its effect on the cache is unknown."""


class Stored(NamedTuple):
    """These blocks, one after the other behind `parent` (None: from the start of a prompt), are now in `medium`."""

    hashes: tuple[Handle, ...]
    parent: Handle | None
    token_ids: bytes
    """Unsigned 32 bits each, little-endian; `block_size` of them per block."""
    block_size: int
    medium: Tier = Tier.GPU
    adapter: str = ""
    salt: str = ""
    """Only with a first block: what follows inherits it through its parent."""
    marks: tuple[bytes, ...] = ()
    """Per block what beyond its ids tells it apart (`prefix_index.keys.block_mark`); empty if no block has any."""
    group: int = 0
    """The attention group. Events of groups that are not full attention are left out where the engine says so."""

    def pieces(self, max_blocks: int) -> Iterator[Stored]:
        """The same in events of at most so many blocks, so that no single one takes long to apply."""
        if len(self.hashes) <= max_blocks:
            yield self
            return
        block_bytes, parent = self.block_size * ID_BYTES, self.parent
        for at in range(0, len(self.hashes), max_blocks):
            end = at + max_blocks
            hashes = self.hashes[at:end]
            ids = self.token_ids[at * block_bytes : end * block_bytes]
            yield self._replace(hashes=hashes, parent=parent, token_ids=ids, marks=self.marks[at:end])
            parent = hashes[-1]


class Removed(NamedTuple):
    """These blocks are no longer in `medium`."""

    hashes: tuple[Handle, ...]
    medium: Tier = Tier.GPU
    group: int = 0

    def pieces(self, max_blocks: int) -> Iterator[Removed]:
        """As of `Stored`."""
        for at in range(0, len(self.hashes), max_blocks):
            yield self._replace(hashes=self.hashes[at : at + max_blocks])


class Cleared(NamedTuple):
    """The whole cache is empty."""

    def pieces(self, max_blocks: int) -> Iterator[Cleared]:
        yield self


Event: TypeAlias = Stored | Removed | Cleared


class Batch(NamedTuple):
    ts: float
    """The engine's wall clock, seconds."""
    events: tuple[Event, ...]
    rank: int | None
    """The data-parallel rank, where the engine tells it."""
    ignored: int = 0
    """Events that mean nothing here: of an unknown type, or of a group without full attention."""


def decode(payload: bytes) -> Batch:
    """The batch in the last frame of a message. Raises BadEvent."""
    try:
        batch: Any = _decode_untyped(payload)
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError):
        raise BadEvent("not msgpack") from None
    if not isinstance(batch, list) or len(batch) < 2 or not isinstance(batch[1], list):
        raise BadEvent("not a batch: an array of time and events was expected")
    ts = batch[0]
    if not isinstance(ts, int | float):
        raise BadEvent("a batch without a time")
    read = [_event(item) for item in batch[1]]
    events = tuple(event for event in read if event is not None)
    rank = batch[2] if len(batch) > 2 else None
    return Batch(float(ts), events, rank if type(rank) is int else None, len(read) - len(events))


def _event(item: Any) -> Event | None:
    if isinstance(item, dict):
        tag, fields = item.get("type"), item
    elif isinstance(item, list) and item:
        tag = item[0]
        fields = dict(zip(_STORED_ORDER if tag == "BlockStored" else _REMOVED_ORDER, item[1:], strict=False))
    else:
        raise BadEvent("an event that is neither a map nor an array with a tag")
    if tag == "BlockStored":
        return _stored(fields)
    if tag == "BlockRemoved":
        return Removed(_handles(fields), _tier(fields), _group(fields))
    if tag == "AllBlocksCleared":
        return Cleared()
    if not isinstance(tag, str):
        raise BadEvent("an event without a type")
    return None


def _stored(fields: dict[str, Any]) -> Stored | None:
    if not _full_attention(fields.get("kv_cache_spec_kind")):
        return None
    hashes = _handles(fields)
    if not hashes:
        return None
    size = fields.get("block_size")
    if type(size) is not int or not 0 < size <= _MAX_BLOCK_SIZE:
        raise BadEvent("stored blocks without a block size")
    ids = fields.get("token_ids")
    if not isinstance(ids, list) or len(ids) != size * len(hashes):
        raise BadEvent("stored blocks whose token ids do not fill them")
    try:
        packed = pack_ids(ids)
    except (OverflowError, TypeError):
        raise BadEvent("token ids that are no unsigned integers of 32 bits") from None
    parent = fields.get("parent_block_hash")
    salt_field = fields.get("cache_salt")
    adapter, salt, marks = read_extras(
        fields.get("extra_keys"),
        len(hashes),
        first=parent is None,
        lora_name=fields.get("lora_name"),
        lora_id=fields.get("lora_id"),
    )
    return Stored(
        hashes,
        None if parent is None else _handle(parent),
        packed,
        size,
        _tier(fields),
        adapter,
        salt_field if isinstance(salt_field, str) else salt,
        marks,
        _group(fields),
    )


def _handles(fields: dict[str, Any]) -> tuple[Handle, ...]:
    hashes = fields.get("block_hashes")
    if not isinstance(hashes, list):
        raise BadEvent("an event without block hashes")
    return tuple([_handle(value) for value in hashes])


def _handle(value: Any) -> Handle:
    if type(value) is int:
        return value & _WORD
    if isinstance(value, bytes) and value:
        return value
    raise BadEvent("a block hash that is neither a number nor bytes")


def _tier(fields: dict[str, Any]) -> Tier:
    """A medium that is missing is the GPU (old builds); one of an unknown name is taken for the farthest."""
    if fields.get("locality") == "REMOTE":
        return Tier.EXTERNAL
    medium = fields.get("medium")
    if medium is None:
        return Tier.GPU
    return _TIERS.get(medium, Tier.EXTERNAL) if isinstance(medium, str) else Tier.EXTERNAL


def _group(fields: dict[str, Any]) -> int:
    group = fields.get("group_idx")
    return group if type(group) is int else 0


def _full_attention(kind: Any) -> bool:
    """Only such groups keep all blocks of a prefix; windows and recurrent states drop what is behind them."""
    return not isinstance(kind, str) or (("full" in kind or "mla" in kind) and "sliding" not in kind)

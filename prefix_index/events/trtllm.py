"""TensorRT-LLM's KV-cache events, from the JSON of its draining endpoint to the events of `codec`.

Facts: `_utils.py` KVCacheEventSerializer, docs `kvcache.md`. Every answer hands out what came since the last one, once,
so there is one consumer per engine. Invariants: what this has told of a block is told back when the block moves or
goes; nothing of a malformed answer is told, and then, as after a gap in the numbers, all is to be taken as lost.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from prefix_index.encoding.completion import pack_ids
from prefix_index.events.codec import BadEvent, Removed, Stored
from prefix_index.keys import block_mark
from prefix_index.protocol import Tier

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prefix_index.events.codec import Event

_WORD: Final = (1 << 64) - 1
_TIERS: Final = (Tier.GPU, Tier.HOST)


class Drained(NamedTuple):
    """What one answer means. Where `lost`, what was known before it is void."""

    events: tuple[Event, ...]
    lost: bool


class _Block(NamedTuple):
    """A block that is known, with all it takes to tell it again in another tier."""

    parent: int | None
    token_ids: bytes
    mark: bytes
    tier: Tier


class TrtLlmEvents:
    """Of one engine. With attention data parallelism only its first rank: nobody can choose among them by HTTP."""

    def __init__(self, block_size: int) -> None:
        """`block_size`: its tokens_per_block. Shorter blocks are not full yet and are left out."""
        self._block_size = block_size
        self._last_id: int | None = None
        self._window = 0
        """The largest attention window seen; blocks of smaller ones are dropped by the engine as it goes."""
        self._blocks: dict[int, _Block] = {}

    def drained(self, answer: bytes) -> Drained:
        """Raises BadEvent; then call `forget` and purge."""
        try:
            items = json.loads(answer)
        except (ValueError, RecursionError):
            raise BadEvent("not JSON") from None
        if not isinstance(items, list):
            raise BadEvent("not a list of events")
        events: list[Event] = []
        lost = False
        for item in items:
            if not isinstance(item, dict) or not isinstance(data := item.get("data"), dict):
                raise BadEvent("an event without data")
            if item.get("attention_dp_rank"):
                continue
            if self._follows(item):
                self._apply(item, data, events)
                continue
            self.forget()
            self._last_id = item["event_id"]
            events.clear()
            lost = True
            self._apply(item, data, events)
        return Drained(tuple(events), lost)

    def forget(self) -> None:
        """What comes next is taken as it is, whatever its number."""
        self._blocks.clear()
        self._last_id = None
        self._window = 0

    def _follows(self, item: dict[str, Any]) -> bool:
        """No number is missing; one that is lower than before is of another life."""
        number = item.get("event_id")
        if type(number) is not int:
            raise BadEvent("an event without a number")
        before, self._last_id = self._last_id, number
        return before is None or number == before + 1

    def _apply(self, item: dict[str, Any], data: dict[str, Any], events: list[Event]) -> None:
        window = item.get("window_size")
        if type(window) is int:
            if window < self._window:
                return
            if window > self._window and self._blocks:
                events += self._remove(tuple(self._blocks))
            self._window = max(self._window, window)
        kind = data.get("type")
        if kind == "stored":
            events += self._store(data)
        elif kind == "removed":
            events += self._remove(tuple(_word(one) for one in _list(data, "block_hashes")))
        elif kind == "updated":
            events += self._move(data)

    def _store(self, data: dict[str, Any]) -> Iterator[Event]:
        parent = None if data.get("parent_hash") is None else _word(data["parent_hash"])
        run: list[tuple[int, _Block]] = []
        for block in _list(data, "blocks"):
            if not isinstance(block, dict):
                raise BadEvent("a block that is no object")
            tokens = _list(block, "tokens")
            if len(tokens) != self._block_size:
                break
            handle = _word(block.get("block_hash"))
            read = _Block(parent, _ids(tokens), _mark(block, tokens), _tier(block.get("cache_level")))
            if run and run[-1][1].tier is not read.tier:
                yield self._told(run)
                run = []
            run.append((handle, read))
            parent = handle
        if run:
            yield self._told(run)

    def _told(self, run: list[tuple[int, _Block]]) -> Stored:
        self._blocks.update(run)
        blocks = [block for _, block in run]
        marks = tuple(block.mark for block in blocks)
        return Stored(
            hashes=tuple(handle for handle, _ in run),
            parent=blocks[0].parent,
            token_ids=b"".join(block.token_ids for block in blocks),
            block_size=self._block_size,
            medium=blocks[0].tier,
            marks=marks if any(marks) else (),
        )

    def _remove(self, handles: tuple[int, ...]) -> Iterator[Event]:
        by_tier: dict[Tier, list[int]] = {}
        for handle in handles:
            block = self._blocks.pop(handle, None)
            if block is not None:
                by_tier.setdefault(block.tier, []).append(handle)
        for tier, gone in by_tier.items():
            yield Removed(tuple(gone), tier)

    def _move(self, data: dict[str, Any]) -> Iterator[Event]:
        """Only the level matters, not the priority. It is there before it is gone from where it was."""
        level = data.get("cache_level")
        handle = _word(data.get("block_hash"))
        block = self._blocks.get(handle)
        if block is None or not isinstance(level, dict):
            return
        tier = _tier(level.get("new_value"))
        if tier is not block.tier:
            yield self._told([(handle, block._replace(tier=tier))])
            yield Removed((handle,), block.tier)


def _list(data: dict[str, Any], name: str) -> list[Any]:
    value = data.get(name)
    if not isinstance(value, list):
        raise BadEvent("an event without its list")
    return value


def _word(value: object) -> int:
    if type(value) is not int:
        raise BadEvent("a block hash that is no number")
    return value & _WORD


def _ids(tokens: list[Any]) -> bytes:
    try:
        return pack_ids([token["token_id"] for token in tokens])
    except (KeyError, TypeError, OverflowError):
        raise BadEvent("token ids that are no unsigned integers of 32 bits") from None


def _mark(block: dict[str, Any], tokens: list[Any]) -> bytes:
    """What beyond its ids tells it apart: ids of media, and their digests in newer builds."""
    extras = [token.get("token_extra_id") or 0 for token in tokens]
    media = block.get("mm_keys")
    return block_mark([(json.dumps([extras, media]).encode(), 0)]) if any(extras) or media else b""


def _tier(level: object) -> Tier:
    if type(level) is not int or level < 0:
        raise BadEvent("a block without a cache level")
    return _TIERS[level] if level < len(_TIERS) else Tier.EXTERNAL

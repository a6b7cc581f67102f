from __future__ import annotations

import json
from itertools import count
from typing import Any

import pytest

from prefix_index.encoding.completion import pack_ids
from prefix_index.events.codec import BadEvent, Removed, Stored
from prefix_index.events.trtllm import Drained, TrtLlmEvents
from prefix_index.protocol import Tier

SIZE = 4


class Engine:
    """Writes events as TensorRT-LLM's serializer does."""

    def __init__(self) -> None:
        self._ids = count()

    def event(self, data: dict[str, Any], window: int = 1024, rank: int | None = None) -> dict[str, Any]:
        ranked = {} if rank is None else {"attention_dp_rank": rank}
        return {"event_id": next(self._ids), "window_size": window, **ranked, "data": data}

    def stored(self, parent: int | None, *blocks: dict[str, Any], window: int = 1024) -> dict[str, Any]:
        return self.event({"type": "stored", "parent_hash": parent, "blocks": list(blocks)}, window)

    def removed(self, *hashes: int, window: int = 1024) -> dict[str, Any]:
        return self.event({"type": "removed", "block_hashes": list(hashes)}, window)

    def moved(self, block_hash: int, old: int, new: int) -> dict[str, Any]:
        diff = {"type": "event_diff", "old_value": old, "new_value": new}
        return self.event({"type": "updated", "block_hash": block_hash, "cache_level": diff, "priority": None})


def block(block_hash: int, *ids: int, level: int = 0, extra: int = 0, **more: Any) -> dict[str, Any]:
    tokens = [{"type": "unique_token", "token_id": one, "token_extra_id": extra} for one in ids]
    head = {"type": "stored_block", "block_hash": block_hash, "tokens": tokens, "cache_level": level, "priority": 35}
    return {**head, **more}


def drained(events: TrtLlmEvents, *items: Any) -> Drained:
    return events.drained(json.dumps(items).encode())


def test_stored_blocks_and_their_removal() -> None:
    engine, events = Engine(), TrtLlmEvents(SIZE)
    created = engine.event({"type": "created", "num_blocks_per_cache_level": [100, 0]})
    answer = drained(events, created, engine.stored(None, block(7, 1, 2, 3, 4), block(-1, 5, 6, 7, 8)))
    minus_one = (1 << 64) - 1
    assert answer == ((Stored((7, minus_one), None, pack_ids([*range(1, 9)]), SIZE),), False)
    assert drained(events, engine.stored(-1, block(9, 1, 1, 1, 1))).events == (
        Stored((9,), minus_one, pack_ids([1] * 4), SIZE),
    )
    assert drained(events, engine.removed(7, 9, 1234)) == ((Removed((7, 9)),), False)
    assert drained(events, engine.removed(7)) == ((), False), "it is gone already"
    assert drained(events) == ((), False)


def test_partial_blocks_are_left_out_with_what_follows() -> None:
    engine, events = Engine(), TrtLlmEvents(SIZE)
    (stored,) = drained(events, engine.stored(None, block(1, 1, 2, 3, 4), block(2, 5, 6), block(3, 5, 6, 7, 8))).events
    assert isinstance(stored, Stored)
    assert stored.hashes == (1,)
    assert drained(events, engine.removed(2)).events == ()


def test_levels_are_tiers_and_a_move_is_told_before_the_old_place_is_left() -> None:
    engine, events = Engine(), TrtLlmEvents(SIZE)
    two = drained(events, engine.stored(None, block(1, 1, 2, 3, 4), block(2, 5, 6, 7, 8, level=1))).events
    assert [(event.hashes, event.medium) for event in two if isinstance(event, Stored)] == [
        ((1,), Tier.GPU),
        ((2,), Tier.HOST),
    ]
    assert drained(events, engine.moved(1, 0, 1)).events == (
        Stored((1,), None, pack_ids([*range(1, 5)]), SIZE, Tier.HOST),
        Removed((1,), Tier.GPU),
    )
    assert drained(events, engine.moved(2, 1, 0)).events == (
        Stored((2,), 1, pack_ids([*range(5, 9)]), SIZE, Tier.GPU),
        Removed((2,), Tier.HOST),
    )
    assert drained(events, engine.moved(99, 0, 1)).events == (), "never heard of"
    assert drained(events, engine.removed(1, 2)).events == (Removed((1,), Tier.HOST), Removed((2,), Tier.GPU))


def test_only_the_largest_window_counts() -> None:
    engine, events = Engine(), TrtLlmEvents(SIZE)
    small = engine.stored(None, block(1, 1, 2, 3, 4), window=512)
    assert len(drained(events, small).events) == 1, "the largest so far"
    large = engine.stored(None, block(2, 1, 2, 3, 4), window=4096)
    assert drained(events, large).events == (Removed((1,)), Stored((2,), None, pack_ids([*range(1, 5)]), SIZE))
    assert drained(events, engine.stored(None, block(3, 9, 9, 9, 9), window=512)).events == ()
    assert drained(events, engine.removed(2, window=512)).events == ()


def test_a_gap_and_a_new_life_void_what_was_known() -> None:
    engine, events = Engine(), TrtLlmEvents(SIZE)
    drained(events, engine.stored(None, block(1, 1, 2, 3, 4)))
    engine.removed(1)  # is lost on the way
    answer = drained(events, engine.stored(None, block(2, 1, 2, 3, 4)))
    assert (len(answer.events), answer.lost) == (1, True)
    assert drained(events, engine.removed(1)).events == (), "of before the gap nothing is known"
    again = Engine()
    answer = drained(events, again.stored(None, block(2, 5, 6, 7, 8), window=64))
    assert answer == ((Stored((2,), None, pack_ids([*range(5, 9)]), SIZE),), True)


def test_events_before_a_gap_in_one_answer_are_void_too() -> None:
    engine, events = Engine(), TrtLlmEvents(SIZE)
    first = engine.stored(None, block(1, 1, 2, 3, 4))
    engine.removed(1)
    last = engine.stored(None, block(2, 5, 6, 7, 8))
    assert drained(events, first, last) == ((Stored((2,), None, pack_ids([*range(5, 9)]), SIZE),), True)


def test_one_rank_is_followed() -> None:
    engine, other, events = Engine(), Engine(), TrtLlmEvents(SIZE)
    stored = {"type": "stored", "parent_hash": None, "blocks": [block(1, 1, 2, 3, 4)]}
    answer = drained(events, engine.event(stored, rank=0), other.event(stored, rank=1), engine.event(stored, rank=0))
    assert (len(answer.events), answer.lost) == (2, False)


def test_what_beyond_its_ids_tells_a_block_apart_is_in_its_mark() -> None:
    engine, events = Engine(), TrtLlmEvents(SIZE)
    plain, extra, media = (
        engine.stored(None, block(1, 1, 2, 3, 4)),
        engine.stored(None, block(2, 1, 2, 3, 4, extra=5)),
        engine.stored(None, block(3, 1, 2, 3, 4, mm_keys=[{"type": "mm_key", "hash": "ab", "start_offset": 0}])),
    )
    marks = [event.marks for event in drained(events, plain, extra, media).events if isinstance(event, Stored)]
    assert marks[0] == ()
    assert len(set(marks)) == 3


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"{}",
        b"[1]",
        b"[" * 100_000,
        b'[{"event_id": 0}]',
        b'[{"event_id": "0", "data": {}}]',
        b'[{"event_id": 0, "data": {"type": "stored"}}]',
        b'[{"event_id": 0, "data": {"type": "stored", "blocks": [1]}}]',
        b'[{"event_id": 0, "data": {"type": "removed", "block_hashes": ["x"]}}]',
        json.dumps([Engine().stored(None, block(1, 1, 2, 3, -4))]).encode(),
        json.dumps([Engine().stored(None, block(1, 1, 2, 3, 4, level=-1))]).encode(),
        json.dumps([Engine().stored(None, {**block(1), "tokens": [1, 2, 3, 4]})]).encode(),
    ],
)
def test_what_is_malformed_is_refused(answer: bytes) -> None:
    events = TrtLlmEvents(SIZE)
    with pytest.raises(BadEvent):
        events.drained(answer)


def test_unknown_events_are_passed_over() -> None:
    engine, events = Engine(), TrtLlmEvents(SIZE)
    assert drained(events, engine.event({"type": "resized"}), engine.event({})) == ((), False)

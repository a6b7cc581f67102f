"""Every recorded message decodes to what the recorder saw, both forms alike, and nothing malformed gets through."""

from __future__ import annotations

import contextlib
from array import array
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefix_index.events.codec import BadEvent, Batch, Cleared, Handle, Removed, Stored, decode
from prefix_index.keys import block_mark
from prefix_index.protocol import Tier
from tests.support.kv_events import names, packed, recording

_FIELDS = ["block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name"]


def message(*events: Any) -> bytes:
    return msgspec.msgpack.encode([1.5, list(events), 0])


def stored(**fields: Any) -> dict[str, Any]:
    base = {"type": "BlockStored", "block_hashes": [7], "parent_block_hash": None, "token_ids": [1, 2], "block_size": 2}
    return base | fields


def one(event: Any) -> Stored:
    (read,) = decode(message(event)).events
    assert isinstance(read, Stored)
    return read


def seen(value: Any) -> Handle:
    return bytes.fromhex(value["$bytes"]) if isinstance(value, dict) else int(value) % 2**64


@pytest.mark.parametrize("name", names())
def test_all_recorded_messages_decode_to_what_was_seen(name: str) -> None:
    for exchange in recording(name):
        for recorded in exchange.messages:
            batch = decode(recorded.payload)
            ts, events, rank = recorded.decoded
            assert (batch.ts, batch.rank, batch.ignored) == (ts, rank, 0)
            assert len(batch.events) == len(events)
            for event, raw in zip(batch.events, events, strict=True):
                check(event, raw)


def check(event: Any, raw: Any) -> None:
    tag = raw["type"] if isinstance(raw, dict) else raw[0]
    if tag == "AllBlocksCleared":
        assert event == Cleared()
        return
    fields = raw if isinstance(raw, dict) else dict(zip(_FIELDS, raw[1:], strict=False))
    assert event.hashes == tuple(map(seen, fields["block_hashes"]))
    assert event.medium is Tier.GPU
    assert event.group == 0
    if tag == "BlockRemoved":
        assert isinstance(event, Removed)
        return
    assert isinstance(event, Stored)
    parent = fields["parent_block_hash"]
    assert event.parent == (None if parent is None else seen(parent))
    assert array("I", event.token_ids).tolist() == fields["token_ids"]
    assert event.block_size == fields["block_size"]
    assert event.adapter == (fields.get("lora_name") or "")
    assert event.marks == ()


def test_the_recorded_salt_is_found_in_each_form() -> None:
    for name in ("vllm-0.20.2/basic", "vllm-0.32.0/basic", "sglang-0.5.23/page16-basic"):
        salts = {
            exchange.label: [getattr(event, "salt", "") for event in decode(recorded.payload).events]
            for exchange in recording(name)
            for recorded in exchange.messages
        }
        assert salts["cache_salt"] == ["tenant-a"]
        assert [label for label, found in salts.items() if any(found)] == ["cache_salt"]


def test_arrays_and_maps_say_the_same() -> None:
    as_array = ["BlockStored", [1, 2], 9, [5, 6, 7, 8], 2, None, "CPU", "adapter", [["adapter"], ["adapter"]], 3]
    fields = dict(zip([*_FIELDS, "extra_keys", "group_idx"], as_array[1:], strict=True))
    assert one(as_array) == one(fields | {"type": "BlockStored"})
    assert one(as_array) == Stored((1, 2), 9, packed([5, 6, 7, 8]), 2, Tier.HOST, "adapter", group=3)
    assert decode(message(["BlockRemoved", [b"x" * 32], "CPU", 1])) == decode(
        message({"type": "BlockRemoved", "block_hashes": [b"x" * 32], "medium": "CPU", "group_idx": 1})
    )


def test_shorter_arrays_of_older_builds_are_enough() -> None:
    assert one(["BlockStored", [1], None, [5, 6], 2, None]) == Stored((1,), None, packed([5, 6]), 2)
    assert decode(message(["BlockRemoved", [1]])).events == (Removed((1,)),)


def test_a_signed_handle_is_its_unsigned_self() -> None:
    assert one(stored(block_hashes=[-1], parent_block_hash=-2)).hashes == (2**64 - 1,)
    assert one(stored(parent_block_hash=-2)).parent == 2**64 - 2


@pytest.mark.parametrize(
    ("fields", "tier"),
    [
        ({}, Tier.GPU),
        ({"medium": None}, Tier.GPU),
        ({"medium": "GPU", "locality": "LOCAL"}, Tier.GPU),
        ({"medium": "CPU"}, Tier.HOST),
        ({"medium": "CPU_PINNED"}, Tier.HOST),
        ({"medium": "STORAGE"}, Tier.DISK),
        ({"medium": "DISK"}, Tier.DISK),
        ({"medium": "EXTERNAL"}, Tier.EXTERNAL),
        ({"medium": "STORAGE", "locality": "REMOTE"}, Tier.EXTERNAL),
        ({"medium": "something new"}, Tier.EXTERNAL),
    ],
)
def test_media_are_tiers(fields: dict[str, Any], tier: Tier) -> None:
    assert one(stored(**fields)).medium is tier
    (removed,) = decode(message({"type": "BlockRemoved", "block_hashes": [1], **fields})).events
    assert removed == Removed((1,), tier)


def test_unknown_fields_and_events_are_ignored() -> None:
    assert one(stored(tomorrow=[1, {"a": 2}])) == one(stored())
    batch = decode(message({"type": "BlockMoved", "block_hashes": [1]}, ["BlockMoved", 1], stored()))
    assert len(batch.events) == 1
    assert batch.ignored == 2


@pytest.mark.parametrize(
    ("kind", "kept"),
    [
        ("full_attention", True),
        ("mla_attention", True),
        ("sink_full_attention", True),
        (None, True),
        ("sliding_window", False),
        ("sliding_window_mla", False),
        ("mamba", False),
    ],
)
def test_only_groups_of_full_attention_count(kind: str | None, kept: bool) -> None:
    batch = decode(message(stored(kv_cache_spec_kind=kind)))
    assert (len(batch.events), batch.ignored) == (int(kept), int(not kept))


def test_o31_an_adapter_without_a_name_is_never_the_base_model() -> None:
    assert one(stored(lora_id=3)).adapter == "#3"
    assert one(stored(lora_id=3, extra_keys=[["by-name"]])).adapter == "by-name"
    assert one(stored(lora_id=3, lora_name="by-name", extra_keys=[["by-name", "salt"]])).salt == "salt"


def test_o32_media_are_marks_of_their_block() -> None:
    two = {"block_hashes": [1, 2], "token_ids": [1, 2, 3, 4]}
    first = one(stored(**two, extra_keys=[None, [["image-1", -3]]]))
    assert first.marks == (b"", block_mark([(b"image-1", -3)]))
    assert one(stored(**two, extra_keys=[None, [["image-2", -3]]])).marks != first.marks
    assert one(stored(**two, extra_keys=[None, [["image-1", -4]]])).marks != first.marks
    assert one(stored(**two, extra_keys=[[["image-1", 0]]])).marks == (block_mark([(b"image-1", 0)]), b"")
    with_salt = one(stored(extra_keys=[[["image-1", 0], "salt", b"\x01"]]))
    assert with_salt.salt == "salt"
    assert with_salt.marks == (block_mark([(b"image-1", 0), (b"\x01", 0)]),)
    later = one(stored(parent_block_hash=5, extra_keys=[["image-id-alone"]]))
    assert (later.salt, later.marks) == ("", (block_mark([(b"image-id-alone", 0)]),))


@given(st.lists(st.tuples(st.binary(max_size=4), st.integers(-(2**40), 2**40)), max_size=4), st.data())
def test_marks_differ_where_their_parts_do(parts: list[tuple[bytes, int]], data: st.DataObject) -> None:
    others = data.draw(st.lists(st.tuples(st.binary(max_size=4), st.integers(-(2**40), 2**40)), max_size=4))
    assert (block_mark(parts) == block_mark(others)) is (parts == others)


def test_pieces_say_the_same_in_smaller_events() -> None:
    ids = list(range(10))
    whole = Stored((1, 2, 3, 4, 5), 9, packed(ids), 2, Tier.DISK, "a", marks=(b"1", b"2", b"3", b"4", b"5"))
    assert list(whole.pieces(5)) == [whole]
    assert list(whole.pieces(2)) == [
        Stored((1, 2), 9, packed(ids[:4]), 2, Tier.DISK, "a", marks=(b"1", b"2")),
        Stored((3, 4), 2, packed(ids[4:8]), 2, Tier.DISK, "a", marks=(b"3", b"4")),
        Stored((5,), 4, packed(ids[8:]), 2, Tier.DISK, "a", marks=(b"5",)),
    ]
    assert list(Removed((1, 2, 3), Tier.DISK).pieces(2)) == [Removed((1, 2), Tier.DISK), Removed((3,), Tier.DISK)]
    assert list(Cleared().pieces(2)) == [Cleared()]


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"secret",
        msgspec.msgpack.encode("secret"),
        msgspec.msgpack.encode([1.0]),
        msgspec.msgpack.encode([1.0, "secret"]),
        msgspec.msgpack.encode(["secret", []]),
        message("secret"),
        message([]),
        message({"kind": "secret"}),
        message({"type": "BlockRemoved"}),
        message({"type": "BlockRemoved", "block_hashes": ["secret"]}),
        message({"type": "BlockRemoved", "block_hashes": [True]}),
        message(stored(block_hashes="secret")),
        message(stored(block_hashes=[b""])),
        message(stored(block_size=0)),
        message(stored(block_size="secret")),
        message(stored(block_size=2**40)),
        message(stored(token_ids=[1])),
        message(stored(token_ids="secret")),
        message(stored(token_ids=[1, "secret"])),
        message(stored(token_ids=[1, -1])),
        message(stored(token_ids=[1, 2**32])),
        message(stored(token_ids=[[1, 2], [3, 4]])),
        message(stored(parent_block_hash="secret")),
    ],
    ids=lambda payload: f"{len(payload)}-{payload[-8:].hex()}",
)
def test_what_is_malformed_is_refused_without_quoting_it(payload: bytes) -> None:
    with pytest.raises(BadEvent) as error:
        decode(payload)
    assert "secret" not in str(error.value)
    assert error.value.__context__ is None or error.value.__suppress_context__


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=8) | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
odd_events = st.fixed_dictionaries(
    {"type": st.sampled_from(["BlockStored", "BlockRemoved"])},
    optional=dict.fromkeys([*_FIELDS, "extra_keys", "group_idx", "kv_cache_spec_kind", "locality"], values),
)


@given(st.binary(max_size=64) | st.lists(values | odd_events, max_size=3).map(lambda events: message(*events)))
def test_any_bytes_are_a_batch_or_a_bad_event(payload: bytes) -> None:
    with contextlib.suppress(BadEvent):
        assert isinstance(decode(payload), Batch)


@given(st.fixed_dictionaries(dict.fromkeys(["lora_id", "lora_name", "extra_keys", "medium", "locality"], values)))
def test_odd_values_in_what_is_optional_still_give_a_mark_for_each_block_or_for_none(fields: dict[str, Any]) -> None:
    event = one(stored(block_hashes=[1, 2], token_ids=[1, 2, 3, 4], **fields))
    assert len(event.marks) in (0, 2)

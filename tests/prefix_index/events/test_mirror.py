"""What single events do to the index: chains, tiers, gaps, waiting blocks, and what must never happen."""

from __future__ import annotations

import pytest

from prefix_index.encoding.protocol import Namespace
from prefix_index.events.chain import Chain
from prefix_index.events.codec import Cleared, Handle, Removed, Stored
from prefix_index.events.mirror import Mirror
from prefix_index.keys import block_digests, block_mark, extend, root_state
from prefix_index.memory import MemoryIndex
from prefix_index.naive import NaiveIndex
from prefix_index.protocol import Holder, PrefixIndex, Tier
from tests.support.kv_events import packed
from vocabulary import BlockKeys, InstanceId

A, B = InstanceId(1), InstanceId(2)


def root(namespace: Namespace) -> bytes:
    return root_state(b"secret", namespace, 1).digest


def keys(text: str, adapter: str = "", salt: str = "") -> BlockKeys:
    """One block per character, as the gateway makes them."""
    state = root_state(b"secret", Namespace("m", adapter, salt), 1)
    return extend(state, packed([ord(character) for character in text]), 4)[0]


def stored(text: str, after: str = "", medium: Tier = Tier.GPU, adapter: str = "", salt: str = "") -> Stored:
    """The blocks of `text` behind those of `after`; an engine names a block by all that it depends on."""
    hashes = tuple(handle(after + text[: at + 1], adapter, salt) for at in range(len(text)))
    parent = handle(after, adapter, salt) if after else None
    ids = packed([ord(character) for character in text])
    return Stored(hashes, parent, ids, 1, medium, adapter, "" if after else salt)


def removed(*heads: str, medium: Tier = Tier.GPU) -> Removed:
    """The last block of each of these prompts."""
    return Removed(tuple(handle(head) for head in heads), medium)


def handle(head: str, adapter: str = "", salt: str = "") -> Handle:
    return int.from_bytes(block_digests(b"", [f"{adapter}/{salt}/{head}".encode()])[0][:8], "little")


@pytest.fixture(params=[NaiveIndex, MemoryIndex])
def index(request: pytest.FixtureRequest) -> PrefixIndex:
    made: PrefixIndex = request.param(100_000)
    return made


@pytest.fixture
def mirror(index: PrefixIndex) -> Mirror:
    return Mirror(index, A, root, block_size=1, model="m")


def have(index: PrefixIndex, text: str, tier: Tier = Tier.GPU, instance: InstanceId = A) -> int:
    return index.match(keys(text)).get(Holder(instance, tier), 0)


def test_stored_blocks_are_found_under_the_gateways_own_keys(index: PrefixIndex, mirror: Mirror) -> None:
    assert mirror.apply(stored("abc")) == 3
    assert mirror.apply(stored("de", after="abc")) == 2
    assert mirror.apply(stored("xy", after="ab")) == 2
    assert have(index, "abcdef") == 5
    assert have(index, "abxyz") == 4
    assert have(index, "bc") == 0
    assert mirror.stats.blocks == 7


def test_an_event_that_comes_twice_changes_nothing(index: PrefixIndex, mirror: Mirror) -> None:
    mirror.apply(stored("abc"))
    assert mirror.apply(stored("abc")) == 0
    assert mirror.apply(stored("bc", after="a")) == 0
    mirror.apply(removed("abc"))
    assert mirror.apply(removed("abc")) == 0
    assert have(index, "abc") == 2
    assert index.stats().entries == mirror.stats.blocks == 2


def test_an_event_that_overlaps_what_is_known_adds_the_rest(index: PrefixIndex, mirror: Mirror) -> None:
    mirror.apply(stored("abc"))
    assert mirror.apply(stored("bcdef", after="a")) == 3
    assert mirror.apply(stored("abxy")) == 2
    assert have(index, "abcdef") == 6
    assert have(index, "abxy") == 4


def test_a_removal_voids_what_follows_in_every_branch(index: PrefixIndex, mirror: Mirror) -> None:
    mirror.apply(stored("abcd"))
    mirror.apply(stored("xy", after="abc"))
    mirror.apply(stored("z", after="ab"))
    assert mirror.apply(removed("abc")) == 1
    assert have(index, "abcd") == 2
    assert have(index, "abcxy") == 2
    assert have(index, "abz") == 3


def test_what_lay_behind_a_gap_is_there_again_once_the_gap_is_filled(index: PrefixIndex, mirror: Mirror) -> None:
    mirror.apply(stored("abcd"))
    mirror.apply(stored("xy", after="abc"))
    mirror.apply(removed("ab"))
    assert (have(index, "abcd"), have(index, "abcxy")) == (1, 1)
    mirror.apply(stored("b", after="a"))
    assert (have(index, "abcd"), have(index, "abcxy")) == (4, 5)


def test_blocks_removed_from_either_end_leave_nothing_behind(index: PrefixIndex, mirror: Mirror) -> None:
    for heads in (["a", "ab", "abc", "abcd"], ["abcd", "abc", "ab", "a"], ["ab", "abcd", "a", "abc"]):
        mirror.apply(stored("abcd"))
        mirror.apply(stored("xy", after="ab"))
        assert mirror.apply(removed(*heads)) == 4
        assert mirror.stats.blocks == 4, "what leads to a block that is there stays known"
        for head in ("abx", "abxy"):
            mirror.apply(removed(head))
        assert mirror.stats.blocks == 0
        assert index.stats().entries == 0


def test_a_block_with_an_unknown_parent_waits_for_it(index: PrefixIndex, mirror: Mirror) -> None:
    mirror.apply(stored("e", after="abcd"))
    mirror.apply(stored("d", after="abc"))
    mirror.apply(stored("x", after="abc"))
    assert mirror.stats.waiting == 3
    assert index.stats().entries == 0
    assert [have(index, text) for text in ("e", "d", "x", "de")] == [0, 0, 0, 0], "never at position 0"
    mirror.apply(stored("abc"))
    assert mirror.stats.waiting == 0
    assert (have(index, "abcde"), have(index, "abcx")) == (5, 4)


def test_a_waiting_block_can_go_before_its_parent_comes(index: PrefixIndex, mirror: Mirror) -> None:
    mirror.apply(stored("cd", after="ab"))
    mirror.apply(removed("abcd"))
    assert mirror.stats.waiting == 1
    mirror.apply(stored("ab"))
    assert have(index, "abcd") == 3
    mirror.apply(stored("y", after="abx"))
    mirror.apply(removed("abxy"))
    mirror.apply(stored("x", after="ab"))
    assert have(index, "abxy") == 3
    assert mirror.stats.waiting == 0


def test_a_waiting_block_that_went_again_leaves_nothing_behind(index: PrefixIndex, mirror: Mirror) -> None:
    mirror.apply(stored("cd", after="ab"))
    mirror.apply(removed("abc", "abcd"))
    assert (mirror.stats.waiting, mirror.stats.blocks) == (0, 0)
    mirror.apply(stored("ab"))
    mirror.apply(removed("ab", "a"))
    assert (mirror.stats.blocks, index.stats().entries) == (0, 0)


def test_too_many_waiting_blocks_are_given_up_oldest_first(index: PrefixIndex) -> None:
    mirror = Mirror(index, A, root, block_size=1, model="m", max_waiting=4)
    mirror.apply(stored("cd", after="ab"))
    mirror.apply(stored("e", after="abcd"))
    mirror.apply(stored("yz", after="x"))
    assert (mirror.stats.waiting, mirror.stats.dropped_total) == (2, 3)
    mirror.apply(stored("ab"))
    mirror.apply(stored("x"))
    assert (have(index, "abcde"), have(index, "xyz")) == (2, 3)
    mirror.apply(removed("abcd", "abc", "abcde"))
    assert mirror.stats.unknown_removed_total == 3


def test_handles_in_a_circle_end_nowhere(index: PrefixIndex, mirror: Mirror) -> None:
    mirror.apply(Stored((1,), 2, packed([5]), 1))
    mirror.apply(Stored((2,), 1, packed([6]), 1))
    mirror.apply(Stored((3,), 3, packed([7]), 1))
    mirror.apply(stored("ab"))
    assert have(index, "ab") == 2
    mirror.apply(Removed((2, 1, 3)))
    assert mirror.stats.blocks == 2


def test_tiers_are_kept_apart(index: PrefixIndex, mirror: Mirror) -> None:
    mirror.apply(stored("abc"))
    assert mirror.apply(stored("abc", medium=Tier.HOST)) == 3
    mirror.apply(stored("ab", medium=Tier.EXTERNAL))
    mirror.apply(removed("ab", "abc"))
    assert [have(index, "abc", tier) for tier in Tier] == [1, 3, 0, 2]
    mirror.apply(removed("a", medium=Tier.HOST))
    assert [have(index, "abc", tier) for tier in Tier] == [1, 0, 0, 2]
    mirror.apply(stored("a", medium=Tier.HOST))
    assert [have(index, "abc", tier) for tier in Tier] == [1, 3, 0, 2]


def test_a_tier_that_gets_the_head_later_is_filed_with_its_branches(index: PrefixIndex, mirror: Mirror) -> None:
    mirror.apply(stored("ab"))
    mirror.apply(stored("c", after="ab", medium=Tier.HOST))
    mirror.apply(stored("x", after="a", medium=Tier.HOST))
    assert have(index, "abc", Tier.HOST) == 0
    mirror.apply(stored("ab", medium=Tier.HOST))
    assert (have(index, "abc", Tier.HOST), have(index, "ax", Tier.HOST)) == (3, 2)


def test_o43_all_blocks_cleared_clears_every_tier_of_this_instance(index: PrefixIndex, mirror: Mirror) -> None:
    other = Mirror(index, B, root, block_size=1, model="m")
    for each in (mirror, other):
        each.apply(stored("abc"))
    mirror.apply(stored("abc", medium=Tier.HOST))
    mirror.apply(stored("z", after="unknown"))
    assert mirror.apply(Cleared()) == 4
    assert [have(index, "abc", tier) for tier in Tier] == [0, 0, 0, 0]
    assert have(index, "abc", instance=B) == 3
    assert (mirror.stats.blocks, mirror.stats.waiting) == (0, 0)
    mirror.apply(stored("c", after="ab"))
    assert have(index, "abc") == 0, "a parent from before is unknown"
    mirror.apply(stored("ab"))
    assert have(index, "abc") == 3


def test_o31_an_adapter_is_part_of_the_key(index: PrefixIndex, mirror: Mirror) -> None:
    mirror.apply(stored("abc", adapter="adapter-x"))
    assert have(index, "abc") == 0
    assert index.match(keys("abc", adapter="adapter-x")) == {Holder(A): 3}
    assert index.match(keys("abc", adapter="adapter-y")) == {}
    mirror.apply(stored("d", after="abc", adapter="adapter-x"))
    assert index.match(keys("abcd", adapter="adapter-x")) == {Holder(A): 4}


def test_o33_a_salt_is_part_of_the_key_and_inherited(index: PrefixIndex, mirror: Mirror) -> None:
    mirror.apply(stored("abc", salt="s1"))
    mirror.apply(stored("d", after="abc", salt="s1"))
    assert index.match(keys("abcd", salt="s1")) == {Holder(A): 4}
    assert index.match(keys("abcd", salt="s2")) == index.match(keys("abcd")) == {}
    assert index.match(keys("abcd", adapter="s1")) == {}


def test_o32_a_match_stops_at_the_first_block_with_another_image(index: PrefixIndex, mirror: Mirror) -> None:
    image = (b"", block_mark([(b"image-1", 0)]), b"")
    mirror.apply(Stored((1, 2, 3), None, packed([5, 9, 6]), 1, marks=image))

    def prompt(mark: bytes) -> BlockKeys:
        blocks = [packed([5]), packed([9]) + mark, packed([6])]
        return BlockKeys(b"".join(digest[:8] for digest in block_digests(root(Namespace("m")), blocks)))

    assert index.match(prompt(image[1])) == {Holder(A): 3}
    assert index.match(prompt(block_mark([(b"image-2", 0)]))) == {Holder(A): 1}
    assert index.match(prompt(b"")) == {Holder(A): 1}


def test_o34_blocks_of_another_size_are_refused_and_told(index: PrefixIndex, mirror: Mirror) -> None:
    mirror.apply(stored("abc"))
    assert mirror.apply(Stored((1, 2), None, packed([1, 2, 3, 4]), 2)) == 0
    assert have(index, "abc") == 3
    assert (mirror.stats.wrong_size_total, mirror.stats.engine_block_size) == (2, 2)


def test_o37_what_was_known_of_a_removed_instance_is_no_credit_for_the_next(index: PrefixIndex, mirror: Mirror) -> None:
    mirror.apply(stored("abc"))
    mirror.purge()
    again = Mirror(index, B, root, block_size=1, model="m")
    assert index.match(keys("abc")) == {}
    again.apply(stored("c", after="ab"))
    assert index.match(keys("abc")) == {}
    again.apply(stored("ab"))
    assert index.match(keys("abc")) == {Holder(B): 3}


def test_only_the_first_group_counts(index: PrefixIndex, mirror: Mirror) -> None:
    mirror.apply(stored("abc"))
    assert mirror.apply(stored("xyz")._replace(group=1)) == 0
    assert mirror.apply(removed("abc")._replace(group=1)) == 0
    assert (have(index, "abc"), have(index, "xyz")) == (3, 0)
    mirror.purge()
    mirror.apply(stored("xyz")._replace(group=1))
    assert have(index, "xyz") == 3


def test_too_many_blocks_in_all_are_dropped(index: PrefixIndex) -> None:
    mirror = Mirror(index, A, root, block_size=1, model="m", max_blocks=4)
    mirror.apply(stored("abc"))
    assert mirror.apply(stored("xy")) == 0
    assert (mirror.stats.blocks, mirror.stats.dropped_total) == (3, 2)
    mirror.apply(removed("abc"))
    assert mirror.apply(stored("xy")) == 2


def test_what_the_index_evicted_by_itself_comes_back_with_the_next_block(mirror: Mirror, index: PrefixIndex) -> None:
    mirror.apply(stored("abc"))
    index.set_capacity(Holder(A), 1)
    assert have(index, "abc") == 1
    index.set_capacity(Holder(A), None)
    mirror.apply(stored("d", after="abc"))
    assert have(index, "abcd") == 4


def test_a_handle_is_not_found_across_two_others() -> None:
    chain = Chain(None, 0, [])
    chain.extend([5, 7, 5 << 8, 9], [b"1", b"2", b"3", b"4"], None)
    assert [chain.find(handle, 3) for handle in (5, 7, 5 << 8, 9)] == [0, 1, 2, 3]


def test_handles_of_bytes_and_their_last_64_bits_are_one_name(index: PrefixIndex, mirror: Mirror) -> None:
    raw = bytes(range(32))
    mirror.apply(Stored((raw,), None, packed([ord("a")]), 1))
    mirror.apply(stored("b")._replace(hashes=(1,), parent=int.from_bytes(raw[-8:], "big")))
    assert have(index, "ab") == 2

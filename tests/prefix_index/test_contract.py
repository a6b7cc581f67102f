"""What every member of the index protocol does, whatever it is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from prefix_index.encoding.protocol import Namespace
from prefix_index.keys import extend, root_state
from prefix_index.protocol import Holder, Tier
from vocabulary import KEY_BYTES, BlockKeys, InstanceId

if TYPE_CHECKING:
    from .conftest import IndexFactory

A, B = Holder(InstanceId(1)), Holder(InstanceId(2))
A_HOST = Holder(InstanceId(1), Tier.HOST)


def run(text: str) -> BlockKeys:
    """One block per character."""
    return extend(root_state(b"", Namespace("m"), 1), text.encode(), 1)[0]


def test_each_holder_has_its_own_length_of_a_prompt(new_index: IndexFactory) -> None:
    index = new_index(1000)
    assert index.store(A, run("abcd")) == 4
    assert index.store(A_HOST, run("abcdef")) == 6
    assert index.store(B, run("abx")) == 3
    assert index.match(run("abcdefgh")) == {A: 4, A_HOST: 6, B: 2}
    assert index.match(run("abxy")) == {A: 2, A_HOST: 2, B: 3}
    assert index.match(run("x")) == {}
    assert index.match(run("")) == {}


def test_store_counts_only_what_is_new_to_the_holder(new_index: IndexFactory) -> None:
    index = new_index(1000)
    index.store(A, run("abc"))
    assert index.store(A, run("abcde")) == 2
    assert index.store(A, run("ab")) == 0
    assert index.store(A, run("")) == 0
    assert index.store(B, run("ab")) == 2


def test_a_run_with_an_unknown_parent_is_not_filed(new_index: IndexFactory) -> None:
    index = new_index(1000)
    index.store(A, run("ab"))
    assert index.store(A, run("abcd"), start=3) == 0
    assert index.store(B, run("abcd"), start=1) == 0
    assert index.store(A, run("ab"), start=5) == 0
    assert index.match(run("abcd")) == {A: 2}
    assert index.store(A, run("abcd"), start=2) == 2


def test_holders_are_those_with_the_last_block(new_index: IndexFactory) -> None:
    index = new_index(1000)
    index.store(A, run("abcd"))
    index.store(B, run("ab"))
    assert index.holders(run("ab")) == {A, B}
    assert index.holders(run("abc")) == {A}
    assert index.holders(run("abcde")) == frozenset()
    assert index.holders(run("")) == frozenset()


def test_a_removal_voids_what_follows_in_every_branch_and_nothing_else(new_index: IndexFactory) -> None:
    index = new_index(1000)
    for text in ("abcde", "abcxy", "abz"):
        index.store(A, run(text))
    index.store(B, run("abcde"))
    assert index.remove(A, run("abcde"), keep=2) == 5
    assert index.match(run("abcde")) == {A: 2, B: 5}
    assert index.match(run("abcxy")) == {A: 2, B: 3}
    assert index.match(run("abz")) == {A: 3, B: 2}
    assert index.remove(A, run("abcde"), keep=2) == 0
    assert index.remove(A, run("ab"), keep=2) == 0
    assert index.remove(A, run("ab"), keep=0) == 3
    assert A not in index.stats().holders


def test_clear_forgets_all_tiers_of_one_instance_and_its_capacity(new_index: IndexFactory) -> None:
    index = new_index(1000)
    index.set_capacity(A, 3)
    index.store(A, run("abc"))
    index.store(A_HOST, run("abcd"))
    index.store(B, run("ab"))
    assert index.clear(A.instance) == 7
    assert index.clear(A.instance) == 0
    assert index.match(run("abcd")) == {B: 2}
    index.store(A, run("abcdef"))
    assert index.match(run("abcdef"))[A] == 6


def test_a_use_keeps_a_run_and_the_unused_one_goes_from_its_end(new_index: IndexFactory) -> None:
    index = new_index(1000)
    index.set_capacity(A, 8)
    index.store(A, run("abcd"))
    index.store(A, run("efgh"))
    index.store(A, run("abcd"))
    index.store(A, run("xy"))
    assert index.match(run("abcd")) == {A: 4}
    assert index.match(run("efgh")) == {A: 2}
    assert index.stats().evicted_total == 2


def test_the_tail_that_a_shorter_use_left_out_goes_first(new_index: IndexFactory) -> None:
    index = new_index(1000)
    index.set_capacity(A, 6)
    index.store(A, run("abcd"))
    index.store(A, run("xy"))
    index.store(A, run("ab"))
    index.store(A, run("pq"))
    assert index.match(run("abcd")) == {A: 2}
    assert index.match(run("xy")) == {A: 2}
    index.store(A, run("r"))
    assert index.match(run("xy")) == {A: 1}


def test_match_is_not_a_use(new_index: IndexFactory) -> None:
    index = new_index(1000)
    index.set_capacity(A, 4)
    index.store(A, run("ab"))
    index.store(A, run("xy"))
    index.match(run("ab"))
    index.store(A, run("pq"))
    assert index.match(run("ab")) == {}


def test_a_smaller_capacity_evicts_at_once(new_index: IndexFactory) -> None:
    index = new_index(1000)
    index.store(A, run("abcd"))
    index.store(A, run("wxyz"))
    index.set_capacity(A, 5)
    assert index.match(run("abcd")) == {A: 1}
    assert index.match(run("wxyz")) == {A: 4}
    index.set_capacity(A, 0)
    assert index.stats().entries == 0
    assert index.store(A, run("ab")) == 2
    assert index.match(run("ab")) == {}
    index.set_capacity(A, None)
    index.store(A, run("abcdefghij"))
    assert index.match(run("abcdefghij")) == {A: 10}


def test_impossible_limits_are_refused(new_index: IndexFactory) -> None:
    with pytest.raises(ValueError, match="max_entries"):
        new_index(0)
    with pytest.raises(ValueError, match="negative"):
        new_index(1).set_capacity(A, -1)


def test_the_global_cap_takes_the_oldest_of_all_holders(new_index: IndexFactory) -> None:
    index = new_index(8)
    index.store(A, run("abc"))
    index.store(B, run("abc"))
    index.store(A, run("xyz"))
    assert index.match(run("abc")) == {A: 2, B: 3}
    index.store(B, run("pqr"))
    assert index.match(run("abc")) == {B: 2}
    assert index.stats().entries == 8


def test_stats_count_blocks_once_and_entries_per_holder(new_index: IndexFactory) -> None:
    index = new_index(1000)
    index.store(A, run("abcd"))
    index.store(B, run("abx"))
    stats = index.stats()
    assert (stats.blocks, stats.entries, stats.evicted_total) == (5, 7, 0)
    assert dict(stats.holders) == {A: 4, B: 3}


def test_o39_the_limit_is_for_the_whole_index_and_not_per_holder(new_index: IndexFactory) -> None:
    index = new_index(50)
    workers = [Holder(InstanceId(number)) for number in range(8)]
    for number in range(80):
        index.store(workers[number % 8], run(f"unique prompt {number}"))
        assert index.stats().entries <= 50
    assert index.stats().evicted_total > 0


def test_o41_a_prompt_longer_than_the_index_keeps_its_head(new_index: IndexFactory) -> None:
    text = "".join(chr(0x30 + number) for number in range(0x4F)) + "~" * 21
    for index in (new_index(80), new_index(1000)):
        index.set_capacity(A, 80)
        index.store(A, run(text))
        assert len(run(text)) // KEY_BYTES == 100
        assert index.match(run(text)) == {A: 80}


def test_o41_what_is_left_after_any_eviction_is_a_contiguous_head(new_index: IndexFactory) -> None:
    index = new_index(1000)
    index.store(A, run("abcdefghij"))
    for capacity in range(10, -1, -1):
        index.set_capacity(A, capacity)
        assert index.match(run("abcdefghij")).get(A, 0) == capacity

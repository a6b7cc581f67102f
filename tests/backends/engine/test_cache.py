from __future__ import annotations

import random

import pytest

from backends.engine.cache import BlockCache, BlocksRemoved


def fill(cache: BlockCache, hashes: list[int]) -> None:
    """One sequence comes, computes all its blocks and goes."""
    hits = cache.match(hashes, len(hashes))
    cache.acquire(hashes, hits)
    cache.allocate(len(hashes) - hits)
    for block in hashes[hits:]:
        cache.commit(block)
    cache.release(hashes, len(hashes), 0)


def test_match_is_the_cached_head_and_respects_the_limit() -> None:
    cache = BlockCache(8)
    fill(cache, [1, 2, 3])
    assert cache.match([1, 2, 3, 4], 4) == 3
    assert cache.match([1, 2, 3, 4], 2) == 2
    assert cache.match([9, 8, 7], 3) == 0
    assert cache.match([], 5) == 0


def test_eviction_takes_the_oldest_chain_tail_first() -> None:
    cache = BlockCache(6)
    fill(cache, [1, 2, 3])
    fill(cache, [7, 8, 9])
    cache.allocate(4)
    assert cache.take_removed() == BlocksRemoved((3, 2, 1, 9))
    assert cache.take_removed() is None
    assert cache.match([7, 8, 9], 3) == 2


def test_a_use_makes_a_chain_young_again() -> None:
    cache = BlockCache(6)
    fill(cache, [1, 2, 3])
    fill(cache, [7, 8, 9])
    fill(cache, [1, 2])
    cache.allocate(1)
    assert cache.take_removed() == BlocksRemoved((3,))
    cache.allocate(3)
    assert cache.take_removed() == BlocksRemoved((9, 8, 7))


def test_held_blocks_are_never_evicted() -> None:
    cache = BlockCache(4)
    fill(cache, [1, 2, 3, 4])
    cache.acquire([1, 2], 2)
    assert cache.free == 2
    assert cache.idle_among([1, 2, 3], 3) == 1
    cache.allocate(2)
    assert cache.match([1, 2, 3, 4], 4) == 2


def test_a_shared_block_is_free_when_its_last_holder_lets_go() -> None:
    cache = BlockCache(4)
    fill(cache, [1, 2])
    cache.acquire([1, 2], 2)
    cache.acquire([1, 2], 2)
    cache.release([1, 2], 2, 0)
    assert cache.free == 2
    cache.release([1, 2], 2, 0)
    assert cache.free == 4


def test_a_second_copy_is_merged() -> None:
    cache = BlockCache(4)
    cache.allocate(1)
    cache.allocate(1)
    assert cache.commit(1)
    assert not cache.commit(1)
    assert cache.free == 3
    cache.release([1], 1, 0)
    assert cache.free == 3
    cache.release([1], 1, 0)
    assert cache.free == 4
    assert cache.cached == 1


def test_clear_is_refused_while_blocks_are_held() -> None:
    cache = BlockCache(4)
    fill(cache, [1, 2])
    cache.acquire([1], 1)
    assert not cache.clear()
    cache.release([1], 1, 0)
    assert cache.clear()
    assert cache.match([1, 2], 2) == 0
    assert cache.free == 4


def test_without_recording_no_hashes_are_kept() -> None:
    cache = BlockCache(2, record=False)
    fill(cache, [1, 2])
    cache.allocate(2)
    assert cache.take_removed() is None


def test_a_cache_holds_something() -> None:
    with pytest.raises(ValueError, match="at least one block"):
        BlockCache(0)


@pytest.mark.parametrize("seed", range(5))
def test_children_never_outlive_their_parents(seed: int) -> None:
    """Random chains that branch, with sequences that overlap: what is cached of each is a head, no block is lost."""
    rng = random.Random(seed)
    chains = [[hash((seed, *range(i), branch if i > 4 else 0)) for i in range(1, 11)] for branch in range(6)]
    cache = BlockCache(24)
    live: list[tuple[list[int], int]] = []
    for _ in range(400):
        if live and (len(live) == 2 or rng.random() < 0.5):
            hashes, held = live.pop(rng.randrange(len(live)))
            for i in range(held, len(hashes)):
                cache.commit(hashes[i])
            cache.release(hashes, len(hashes), 0)
        else:
            hashes = rng.choice(chains)[: rng.randint(1, 10)]
            hits = cache.match(hashes, len(hashes))
            if len(hashes) - hits + cache.idle_among(hashes, hits) > cache.free:
                continue
            cache.acquire(hashes, hits)
            cache.allocate(len(hashes) - hits)
            live.append((hashes, hits))
        for chain in chains:
            present = [cache.match([block], 1) for block in chain]
            assert present == sorted(present, reverse=True)
    for hashes, held in live:
        cache.release(hashes, held, len(hashes) - held)
    assert cache.free == 24

"""State per instance: the assumed size of its cache follows what the engine reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from prefix_index.protocol import Holder
from routing import DEFAULT_P
from tests.support.fleet import Fleet
from vocabulary import BlockKeys, Trust

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.fleet import InstanceState


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    with Fleet() as made:
        yield made


def keys(blocks: int) -> BlockKeys:
    return BlockKeys(b"".join(number.to_bytes(8, "big") for number in range(1, blocks + 1)))


def held(fleet: Fleet, state: InstanceState) -> int:
    return fleet.index.stats().holders.get(state.holder, 0)


def test_capacity_is_the_engines_figure_in_index_blocks(fleet: Fleet) -> None:
    backend = fleet.add("a")
    state = fleet.state(backend)
    assert state.capacity_blocks() is None
    fleet.report(backend, capacity_tokens=1600)
    assert state.capacity_blocks() is None, "not known yet how long a block is"
    fleet.fleet.use_block_size(state, 16.0)
    assert state.capacity_blocks() == 100
    fleet.index.store(state.holder, keys(300))
    assert held(fleet, state) <= 100
    fleet.report(backend, capacity_tokens=800)
    assert held(fleet, state) <= 50, "a smaller cache holds less at once"


def test_the_operators_figure_wins(fleet: Fleet) -> None:
    backend = fleet.add("a", capacity_tokens=320)
    fleet.report(backend, capacity_tokens=1600)
    state = fleet.state(backend)
    fleet.fleet.use_block_size(state, 16.0)
    assert state.capacity_blocks() == 20


def test_a_ratio_that_moves_by_less_than_five_percent_changes_nothing(fleet: Fleet) -> None:
    state = fleet.state(fleet.add("a", capacity_tokens=1600))
    fleet.fleet.use_block_size(state, 16.0)
    fleet.fleet.use_block_size(state, 16.7)
    assert state.capacity_blocks() == 100
    fleet.fleet.use_block_size(state, 20.0)
    assert state.capacity_blocks() == 80


def test_misses_shrink_the_assumed_cache_and_hits_let_it_grow_back(fleet: Fleet) -> None:
    state = fleet.state(fleet.add("a", capacity_tokens=1600))
    fleet.fleet.use_block_size(state, 16.0)
    fleet.index.store(state.holder, keys(100))
    fleet.fleet.reported(state, 1000, 499)
    assert state.capacity_factor < 1
    assert state.capacity_blocks() == held(fleet, state) == 97
    for _ in range(1000):
        fleet.fleet.reported(state, 1000, 0)
    assert state.capacity_factor == pytest.approx(0.2), "never to nothing"
    for _ in range(2000):
        fleet.fleet.reported(state, 1000, 1000)
    assert state.capacity_factor == 1.0, "and never beyond the whole"
    assert state.capacity_blocks() == 100


def test_where_nothing_was_predicted_nothing_is_learned(fleet: Fleet) -> None:
    state = fleet.state(fleet.add("a", capacity_tokens=1600))
    for predicted in (0, -1):
        fleet.fleet.reported(state, predicted, 0)
    assert state.capacity_factor == 1.0


def test_a_restart_forgets_everything_but_the_name(fleet: Fleet) -> None:
    backend, other = fleet.add("a", capacity_tokens=1600), fleet.add("b")
    state, kept = fleet.state(backend), fleet.state(other)
    fleet.fleet.use_block_size(state, 16.0)
    for one in (state, kept):
        fleet.index.store(one.holder, keys(10))
    for _ in range(10):
        fleet.fleet.reported(state, 100, 0)
    state.fit.add(10_000, 10_000, 5.0)
    old = backend.instance
    fleet.registry.restart(backend)
    new = fleet.state(backend)
    assert old.retired
    assert new.holder != state.holder
    assert (new.capacity_factor, new.fit.p, new.fit.samples) == (1.0, DEFAULT_P, 0)
    assert new.trust is Trust.ESTIMATED
    assert new.metrics is state.metrics, "counters go on"
    assert fleet.index.match(keys(10)) == {kept.holder: 10}
    with pytest.raises(KeyError):
        fleet.fleet.of(old)
    fleet.fleet.load_changed(old)  # a scrape that was under way


def test_a_removed_backend_leaves_nothing(fleet: Fleet) -> None:
    backend = fleet.add("a", capacity_tokens=1600)
    fleet.index.store(Holder(backend.instance.id), keys(10))
    fleet.registry.remove(backend.name)
    assert fleet.index.stats().entries == 0
    assert not fleet.fleet.states

"""Predictions beside what an engine tells: how long they count, and how prompts are sampled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gateway.reported import GRACE_S, ReportedCache
from prefix_index.protocol import Holder, Tier
from tests.support.fleet import Fleet
from vocabulary import KEY_BYTES, BlockKeys

if TYPE_CHECKING:
    from collections.abc import Iterator

    from backends.backend import Backend


def keys(blocks: int, first: int = 1) -> BlockKeys:
    return BlockKeys(b"".join((first + n).to_bytes(KEY_BYTES, "little") for n in range(blocks)))


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    with Fleet() as fleet:
        yield fleet


@pytest.fixture
def backend(fleet: Fleet) -> Backend:
    return fleet.add("a")


@pytest.fixture
def cache(fleet: Fleet, backend: Backend) -> ReportedCache:
    return ReportedCache(fleet.index, backend.instance, fleet.now_s)


def told(fleet: Fleet, backend: Backend, blocks: int, tier: Tier = Tier.GPU) -> None:
    fleet.index.store(Holder(backend.instance.id, tier), keys(blocks))


@pytest.mark.parametrize(
    ("gpu", "host", "disk", "external", "predicted", "found"),
    [
        (0, 0, 0, 0, 0, (0, 0, 0)),
        (4, 0, 0, 0, 0, (4, 0, 0)),
        (4, 6, 0, 0, 0, (6, 2, 0)),
        (4, 6, 9, 0, 0, (9, 2, 3)),
        (4, 6, 9, 10, 0, (10, 2, 4)),
        (4, 2, 0, 0, 0, (4, 0, 0)),
        (4, 0, 7, 0, 0, (7, 0, 3)),
        (4, 6, 0, 0, 8, (8, 0, 0)),
        (0, 0, 0, 0, 8, (8, 0, 0)),
    ],
)
def test_what_is_farther_counts_only_where_nothing_nearer_has_it(
    fleet: Fleet,
    backend: Backend,
    cache: ReportedCache,
    gpu: int,
    host: int,
    disk: int,
    external: int,
    predicted: int,
    found: tuple[int, int, int],
) -> None:
    for tier, blocks in zip(Tier, (gpu, host, disk, external), strict=True):
        told(fleet, backend, blocks, tier)
    fleet.index.store(cache.predicted, keys(predicted))
    assert cache.lookup(fleet.index.match(keys(12))) == found


def test_a_prediction_lives_until_its_first_token_is_out(fleet: Fleet, backend: Backend, cache: ReportedCache) -> None:
    lease = backend.instance.lease(10, 10, 0.1, fleet.now_s)
    fleet.index.store(cache.predicted, keys(4))
    for _ in range(10):
        fleet.now_s += GRACE_S
        cache.rotate(fleet.now_s)
        assert cache.lookup(fleet.index.match(keys(4)))[0] == 4
    lease.first_token(fleet.now_s)
    for _ in range(2):
        fleet.now_s += GRACE_S
        cache.rotate(fleet.now_s)
    assert cache.lookup(fleet.index.match(keys(4)))[0] == 0
    lease.end(fleet.now_s)


def test_a_newer_request_keeps_only_its_own_prediction(fleet: Fleet, backend: Backend, cache: ReportedCache) -> None:
    fleet.index.store(cache.predicted, keys(4))
    fleet.now_s += GRACE_S
    cache.rotate(fleet.now_s)
    fleet.now_s += GRACE_S / 2
    lease = backend.instance.lease(10, 10, 0.1, fleet.now_s)
    fleet.index.store(cache.predicted, keys(3, 100))
    for _ in range(5):
        fleet.now_s += GRACE_S
        cache.rotate(fleet.now_s)
    assert fleet.index.match(keys(4)) == {}
    assert cache.lookup(fleet.index.match(keys(3, 100)))[0] == 3
    lease.end(fleet.now_s)


def test_not_before_events_can_have_come(fleet: Fleet, cache: ReportedCache) -> None:
    fleet.index.store(cache.predicted, keys(4))
    for _ in range(3):
        fleet.now_s += GRACE_S / 8
        cache.rotate(fleet.now_s)
    assert cache.lookup(fleet.index.match(keys(4)))[0] == 4


def test_predictions_are_forgotten_at_once_and_told_ones_stay(
    fleet: Fleet, backend: Backend, cache: ReportedCache
) -> None:
    told(fleet, backend, 2)
    fleet.index.store(cache.predicted, keys(4))
    fleet.now_s += GRACE_S
    cache.rotate(fleet.now_s)
    fleet.index.store(cache.predicted, keys(3))
    assert cache.forget_predictions() == 7
    assert cache.lookup(fleet.index.match(keys(4)))[0] == 2


@pytest.mark.parametrize(("blocks", "verdict"), [(0, False), (3, False), (4, True), (8, True)])
def test_half_of_a_prompt_must_have_been_told(
    fleet: Fleet, backend: Backend, cache: ReportedCache, blocks: int, verdict: bool
) -> None:
    cache.sent(keys(8), fleet.now_s)
    fleet.index.store(cache.predicted, keys(8))  # a prediction proves nothing
    told(fleet, backend, blocks)
    assert cache.verdict(fleet.now_s) is None
    fleet.now_s += GRACE_S
    assert cache.verdict(fleet.now_s) is verdict
    assert cache.verdict(fleet.now_s) is None


def test_no_verdict_before_the_first_token(fleet: Fleet, backend: Backend, cache: ReportedCache) -> None:
    lease = backend.instance.lease(10, 10, 0.1, fleet.now_s)
    cache.sent(keys(8), fleet.now_s)
    fleet.now_s += 100 * GRACE_S
    assert cache.verdict(fleet.now_s) is None
    lease.end(fleet.now_s)
    assert cache.verdict(fleet.now_s) is False


def test_a_request_that_failed_is_no_sample(fleet: Fleet, cache: ReportedCache) -> None:
    sample, other = keys(8), keys(8, 50)
    cache.sent(sample, fleet.now_s)
    cache.sent(other, fleet.now_s)
    cache.failed(other)
    cache.failed(sample)
    fleet.now_s += GRACE_S
    assert cache.verdict(fleet.now_s) is None

"""Predicted against reported: the causes by name, the running bias, and what is dropped when predictions fail."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from backends.load import EngineLoad
from gateway.calibration import Record, Suspect
from gateway.diagnosis import Cause, Finding, Known, Sample, diagnose
from gateway.observe import Usage
from tests.support.fleet import Fleet
from tests.support.gateway import chat
from vocabulary import Trust

if TYPE_CHECKING:
    from collections.abc import Iterator

    from backends.backend import Backend

SEEN = Known(reports=True, has_hit=True)


def sample(predicted: float = 800, cached: int | None = 800, **fields: Any) -> Sample:
    values: dict[str, Any] = {
        "model": "m",
        "predicted": predicted,
        "cached": cached,
        "counted": 0,
        "prompt": 1000,
        "block": 16.0,
        "sure": True,
    }
    return Sample(**{**values, **fields})


HIT, MISS = sample(), sample(cached=0)


def cause(samples: list[Sample], known: Known = SEEN) -> Cause | None:
    found = diagnose(samples, known)
    return None if found is None else found.cause


def test_predictions_that_come_true_are_no_case() -> None:
    assert cause([HIT] * 64) is None
    assert cause([]) is None
    assert cause([HIT, MISS, HIT] * 20) is None, "a third of misses: the cache is smaller, the capacity follows"
    assert cause([sample(predicted=0, cached=0)] * 64) is None
    assert cause([sample(predicted=100, cached=0)] * 64) is None, "a shared head that is gone is no proof"


def test_cold_restart_misses_of_one_moment() -> None:
    assert cause([HIT] * 20 + [MISS] * 8) is Cause.COLD_RESTART
    assert cause([HIT] * 20 + [MISS] * 7) is None
    assert cause([HIT] * 20 + [MISS] * 4 + [HIT] + [MISS] * 4) is Cause.COLD_RESTART
    assert cause([MISS] * 8) is Cause.COLD_RESTART, "hits were there before what is remembered"
    assert cause([HIT] * 20 + [sample(cached=None)] * 8) is Cause.COLD_RESTART, "some say nothing instead of 0"


def test_misses_that_may_be_of_requests_under_way_do_not_count() -> None:
    burst = [sample(cached=0, sure=False)] * 20
    assert cause([HIT] * 10 + burst) is None


def test_capacity_misses_that_came_by_and_by() -> None:
    assert cause([HIT, MISS] * 10 + [MISS] * 8) is Cause.CAPACITY


@pytest.mark.parametrize(
    ("samples", "known"),
    [([MISS] * 8, Known(reports=True)), ([HIT], Known(prefix_cache=False, reports=True, has_hit=True))],
)
def test_cache_off(samples: list[Sample], known: Known) -> None:
    assert cause(samples, known) is Cause.CACHE_OFF


def test_not_reporting() -> None:
    silent = [sample(cached=None)] * 5
    found = diagnose(silent, Known(flag="--enable-prompt-tokens-details"))
    assert found is not None
    assert found.cause is Cause.NOT_REPORTING
    assert "--enable-prompt-tokens-details" in found.detail
    assert cause(silent[1:], Known()) is None
    assert cause([sample(predicted=0, cached=None)] * 64, Known()) is None, "nothing was expected"
    assert cause(silent, Known(reports=True)) is None


def test_block_size_by_the_engines_own_word() -> None:
    exact = sample(counted=1000)
    assert cause([exact], SEEN._replace(block_size=32)) is Cause.BLOCK_SIZE
    assert cause([exact], SEEN._replace(block_size=16)) is None
    assert cause([exact], SEEN._replace(block_size=1)) is None, "it caches single tokens"
    assert cause([HIT], SEEN._replace(block_size=32)) is None, "an estimate has no block size"


def test_block_size_by_what_is_reported() -> None:
    def reported(size: int, few: int = 12) -> list[Sample]:
        return [sample(predicted=16 * n * 5, cached=16 * n * 5 // size * size, counted=1000) for n in range(3, 3 + few)]

    assert cause(reported(64)) is Cause.BLOCK_SIZE
    assert cause(reported(16)) is None
    assert cause(reported(1)) is None
    assert cause(reported(64, 7)) is None, "too few to tell from chance"


def test_template() -> None:
    other, same = sample(counted=1000, prompt=1003), sample(counted=1000)
    assert cause([other] * 5) is Cause.TEMPLATE
    assert cause([other] * 4) is None
    assert cause([other, same] * 10) is None
    assert cause([sample(prompt=1200)] * 20) is None, "an estimate may be wrong"


def test_model_alias_misses_under_one_name_only() -> None:
    alias_miss, alias_hit = MISS._replace(model="alias"), HIT._replace(model="alias")
    mixed = [HIT, alias_miss, HIT, alias_hit] * 4
    found = diagnose(mixed, SEEN)
    assert found is not None
    assert found.cause is Cause.MODEL_ALIAS
    assert "alias" in found.detail
    assert cause([HIT, alias_hit] * 8) is None
    assert cause([MISS, alias_miss] * 8) is not Cause.MODEL_ALIAS


# The record of one instance.


def test_the_running_bias() -> None:
    record = Record()
    for _ in range(200):
        record.add(sample(cached=600), 0.0)
    assert record.bias == pytest.approx(0.75, abs=1e-3)
    assert record.weighed == 200
    for _ in range(200):
        record.add(sample(cached=2000), 0.0)
    assert record.bias == pytest.approx(1.0, abs=1e-3), "more than predicted is no fault"
    record.add(sample(predicted=15, cached=0), 0.0)
    assert record.weighed == 400, "less than a block was predicted"


def test_without_any_report_there_is_no_bias() -> None:
    record = Record()
    for _ in range(20):
        record.add(sample(cached=None), 0.0)
    assert (record.bias, record.weighed, record.hopeless) == (1.0, 0, False)


def test_it_is_judged_once_a_second() -> None:
    record = Record()
    assert record.add(HIT, 100.0)
    record.judge(Known(), 100.0)
    assert not record.add(MISS, 100.5)
    assert record.add(MISS, 101.0)


def test_a_suspicion_ends_with_evidence_or_with_time() -> None:
    record = Record()
    record.suspicion(Finding(Cause.CACHE_OFF, "why"), 0.0)
    record.judge(SEEN, 1000.0)
    assert record.suspected(1000.0) is not None, "no traffic is no evidence"
    for _ in range(3):
        record.add(HIT, 1000.0)
    record.suspicion(Finding(Cause.CACHE_OFF, "why"), 1000.0)
    assert record.suspected(1000.0) == Suspect(Cause.CACHE_OFF, "why", 0.0, 1000.0)
    for _ in range(3):
        record.add(HIT, 1001.0)
    record.judge(SEEN, 1059.0)
    assert record.suspected(1059.0) is not None
    record.judge(SEEN, 1060.0)
    assert record.suspected(1060.0) is None
    record.suspicion(Finding(Cause.COLD_RESTART, "why"), 2000.0)
    assert record.suspected(2059.0) is not None
    assert record.suspected(2060.0) is None, "a moment that is past"


# In the router.


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    with Fleet() as made:
        yield made


def turn(fleet: Fleet, session: str, cached: float | None, text: str = "x") -> float:
    """One request and its answer; `cached`: what the engine reports, as a share of what was predicted. Returns the
    prediction."""
    body = body_of(session, text)
    placement = fleet.router.place(fleet.prepare(body, [(b"x-session-id", session.encode())]))
    predicted = placement.decision.cached_tokens
    tokens = round(placement.prepared.prompt_tokens)
    reported = None if cached is None else round(predicted * cached)
    fleet.router.settle(placement, Usage(tokens, 1, reported), 1)
    fleet.now_s += 0.2
    return predicted


def body_of(session: str, text: str) -> bytes:
    return json.dumps(chat(f"{session} {text * 4000}")).encode()


def suspect(fleet: Fleet, backend: Backend) -> str | None:
    found = fleet.fleet.calibration.suspected(fleet.state(backend), fleet.now_s)
    return None if found is None else found.cause.value


def test_o42_repeated_misses_drop_the_entries_and_name_the_cause(fleet: Fleet) -> None:
    backend, other = fleet.add("a"), fleet.add("b")
    other.drain("admin", fleet.now_s)
    for number in range(12):
        turn(fleet, f"s{number}", 1.0)
        assert turn(fleet, f"s{number}", 1.0) > 500
    assert suspect(fleet, backend) is None
    held = fleet.index.stats().entries
    for number in range(8):
        assert fleet.index.stats().entries == held
        assert turn(fleet, f"s{number}", 0.0) > 500, "still believed"
    assert suspect(fleet, backend) == "cold_restart"
    assert fleet.index.stats().entries == 0
    assert fleet.state(backend).metrics.index_drops.value == 1
    assert turn(fleet, "s9", 0.0) == 0, "and nothing is predicted any more"
    for number in range(12):
        turn(fleet, f"t{number}", 1.0)
        turn(fleet, f"t{number}", 1.0)
    fleet.now_s += 60
    turn(fleet, "t1", 1.0)
    assert suspect(fleet, backend) is None
    assert fleet.state(backend).metrics.index_drops.value == 1


def test_what_the_engines_own_events_say_is_not_dropped(fleet: Fleet) -> None:
    backend = fleet.add("a")
    turn(fleet, "s", 1.0)
    turn(fleet, "s", 1.0)
    fleet.state(backend).trust = Trust.EXACT
    held = fleet.index.stats().entries
    for _ in range(20):
        turn(fleet, "s", 0.0)
    assert fleet.index.stats().entries == held
    assert suspect(fleet, backend) is not None, "it is told all the same"


def test_a_burst_of_equal_prompts_is_no_evidence(fleet: Fleet) -> None:
    """The first one is still prefilled when the others come, so they may find nothing."""
    backend = fleet.add("a")
    turn(fleet, "s", 1.0)
    turn(fleet, "s", 1.0)
    body = body_of("new", "y")
    placements = [fleet.router.place(fleet.prepare(body, [(b"x-session-id", b"u%d" % number)])) for number in range(20)]
    for placement in placements:
        fleet.router.settle(placement, Usage(1000, 1, 0), 1)
    assert fleet.state(backend).metrics.index_drops.value == 0
    assert suspect(fleet, backend) is None


def test_an_engine_that_reports_nothing_keeps_its_entries(fleet: Fleet) -> None:
    backend = fleet.add("a")
    for _ in range(20):
        turn(fleet, "s", None)
    assert suspect(fleet, backend) == "not_reporting"
    assert fleet.index.stats().entries > 0
    assert fleet.state(backend).capacity_factor == 1.0


def test_metrics_that_say_the_cache_is_off(fleet: Fleet) -> None:
    backend = fleet.add("a")
    fleet.registry.set_load(backend, EngineLoad(prefix_cache=False))
    turn(fleet, "s", 0.0)
    fleet.now_s += 1
    turn(fleet, "s", 0.0)
    assert suspect(fleet, backend) == "cache_off"


def test_a_restart_that_was_noticed_is_told_for_a_while(fleet: Fleet) -> None:
    backend = fleet.add("a")
    turn(fleet, "s", 1.0)
    fleet.registry.restart(backend)
    assert suspect(fleet, backend) == "cold_restart"
    fleet.now_s += 60
    assert suspect(fleet, backend) is None
    fleet.registry.restart(backend)
    assert suspect(fleet, backend) is None, "there was nothing to lose"


def test_the_bias_keeps_the_assumed_cache_from_growing(fleet: Fleet) -> None:
    state = fleet.state(fleet.add("a", capacity_tokens=100_000))
    turn(fleet, "s", 1.0)
    for _ in range(40):
        turn(fleet, "s", 0.7)
    assert state.record.bias < 0.8
    assert state.capacity_factor < 0.9, "short of every prediction: the cache is smaller than assumed"
    for _ in range(100):
        turn(fleet, "s", 1.0)
    grown = state.capacity_factor
    turn(fleet, "s", 1.0)
    assert state.capacity_factor > grown


def test_what_a_feed_knows_goes_before(fleet: Fleet) -> None:
    backend = fleet.add("a")
    fleet.fleet.calibration.of_feed = lambda instance: Finding(Cause.WRONG_TOPIC, "nothing comes under this topic")
    assert suspect(fleet, backend) == "wrong_topic"

"""Slow start: what a new backend may get beside established ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing import Candidate
from routing.ramp import SLOW_START, Ramp, held_back, pay, worth
from vocabulary import BackendId, InstanceId


def candidate(number: int, rejected: str | None = None) -> Candidate:
    return Candidate(InstanceId(number), BackendId(f"b{number}"), rejected)


FOUR = [candidate(number) for number in (1, 2, 3, 4)]
NEW = InstanceId(4)


def ramp(began_s: float = 0.0, credit: float = 1.0) -> Ramp:
    return Ramp(began_s, 20.0, credit)


def test_worth_rises_evenly_to_a_fair_share_and_on_to_two() -> None:
    assert [worth(age_s, 20.0) for age_s in (-1.0, 0.0, 1.0, 10.0, 20.0, 30.0, 40.0, 1000.0)] == [
        0.1,
        0.1,
        0.1,
        0.5,
        1.0,
        1.5,
        2.0,
        2.0,
    ]


def test_only_one_that_has_had_its_share_is_held_back() -> None:
    assert held_back(FOUR, {NEW: ramp(credit=1.0)}, None) == []
    assert held_back(FOUR, {NEW: ramp(credit=0.9)}, None) == [3]
    assert held_back(FOUR, {NEW: ramp(credit=0.0)}, NEW) == [], "who lives there may always go there"


def test_nobody_is_held_back_for_one_as_new_or_for_nobody() -> None:
    spent = {one.instance: ramp(number * 2.0, credit=0.0) for number, one in enumerate(FOUR)}
    assert held_back(FOUR, spent, None) == [], "a fleet that starts together"
    late = {**spent, NEW: ramp(11.0, credit=0.0)}
    assert held_back(FOUR, late, None) == [3]
    others_gone = [candidate(1, "down"), candidate(2, "tried"), candidate(3, "draining"), candidate(4)]
    assert held_back(others_gone, {NEW: ramp(credit=0.0)}, None) == []
    assert held_back([candidate(4, "down")], {NEW: ramp(credit=0.0)}, None) == []


def test_what_others_get_pays_and_what_it_gets_costs() -> None:
    one = ramp(0.0, credit=0.0)
    pay(FOUR, {NEW: one}, InstanceId(1), None, 10.0)
    assert one.credit == pytest.approx(0.5 / 4)
    pay(FOUR, {NEW: one}, InstanceId(1), InstanceId(1), 10.0)
    assert one.credit == pytest.approx(0.5 / 4), "a session that went home pays nobody"
    pay(FOUR, {NEW: one}, InstanceId(1), InstanceId(2), 10.0)
    assert one.credit == pytest.approx(0.5 / 4), "nor does one that was moved"
    pay(FOUR, {NEW: one}, InstanceId(1), InstanceId(9), 10.0)
    assert one.credit == pytest.approx(1.0 / 4), "one whose home is gone does"
    held = [*FOUR[:3], candidate(4, SLOW_START)]
    pay(held, {NEW: one}, InstanceId(1), None, 20.0)
    assert one.credit == pytest.approx(2.0 / 4), "also while it is held back"
    pay([*FOUR[:3], candidate(4, "down")], {NEW: one}, InstanceId(1), None, 20.0)
    assert one.credit == pytest.approx(2.0 / 4)
    one.credit = 1.5
    pay(FOUR, {NEW: one}, NEW, None, 20.0)
    assert one.credit == pytest.approx(0.75)


def test_it_is_over_when_it_has_had_time_to_catch_up() -> None:
    assert not ramp(100.0).over(219.0)
    assert ramp(100.0).over(220.0)


@given(st.integers(2, 8), st.floats(0, 100), st.integers(1, 400))
def test_under_any_pressure_it_gets_its_worth_and_never_more(backends: int, age_s: float, requests: int) -> None:
    """Every request would go to the new one if it might."""
    ones = [candidate(number) for number in range(backends)]
    newest = InstanceId(backends - 1)
    ramps = {newest: ramp(0.0)}
    got = 0
    for _ in range(requests):
        held = held_back(ones, ramps, None)
        chosen = InstanceId(0) if held else newest
        got += chosen == newest
        pay(
            [candidate(int(o.instance), SLOW_START) if i in held else o for i, o in enumerate(ones)],
            ramps,
            chosen,
            None,
            age_s,
        )
    due = requests * worth(age_s, 20.0) / backends
    assert due - 1 <= got <= due + 1 or got == requests <= due + 1

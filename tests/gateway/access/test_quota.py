"""The limits of one tenant."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.access.quota import Quota
from vocabulary.errors import RateExceeded, TooManyRequests


def admitted(quota: Quota, now_s: float) -> bool:
    try:
        quota.admit(now_s)
    except RateExceeded:
        return False
    return True


def test_without_limits_everything_passes_and_is_counted() -> None:
    quota = Quota()
    for _ in range(1000):
        quota.admit(5.0)
    assert quota.in_flight == 1000


def test_places_are_given_again_when_they_are_left() -> None:
    quota = Quota(max_concurrent=2)
    quota.admit(0.0)
    quota.admit(0.0)
    with pytest.raises(TooManyRequests, match=r"tenants\[\]\.max_concurrent_requests allows \(2\)") as caught:
        quota.admit(0.0)
    assert (caught.value.status, caught.value.code) == (429, "tenant_concurrency_limit")
    assert quota.in_flight == 2
    quota.release(0.0)
    quota.admit(0.0)
    assert quota.in_flight == 2


@pytest.mark.parametrize("gap_s", [0.5, 20.0, 500.0])
def test_a_place_is_promised_as_soon_as_places_have_become_free(gap_s: float) -> None:
    quota, now_s = Quota(max_concurrent=2), 0.0
    quota.admit(now_s)
    quota.admit(now_s)
    for _ in range(50):
        now_s += gap_s
        quota.release(now_s)
        quota.admit(now_s)
    with pytest.raises(TooManyRequests) as caught:
        quota.admit(now_s)
    assert caught.value.retry_after_s == pytest.approx(min(gap_s, 60.0), rel=0.01)


def test_idle_time_says_nothing_of_how_often_places_become_free() -> None:
    quota = Quota(max_concurrent=1)
    for hour in range(20):
        quota.admit(3600.0 * hour)
        quota.release(3600.0 * hour + 0.1)
    quota.admit(1e6)
    with pytest.raises(TooManyRequests) as caught:
        quota.admit(1e6)
    assert caught.value.retry_after_s == pytest.approx(0.1, rel=0.2)


def test_ten_seconds_worth_may_come_at_once() -> None:
    quota = Quota(requests_per_min=60)
    assert [admitted(quota, 100.0) for _ in range(12)] == [True] * 10 + [False] * 2
    with pytest.raises(RateExceeded, match=r"tenants\[\]\.requests_per_min allows \(60 on average\)") as caught:
        quota.admit(100.25)
    assert (caught.value.status, caught.value.code) == (429, "tenant_rate_limit")
    assert caught.value.retry_after_s == pytest.approx(0.75)
    assert admitted(quota, 101.0)
    assert not admitted(quota, 101.0)
    assert sum(admitted(quota, 200.0) for _ in range(20)) == 10, "what was not used is not saved up"


def test_a_slow_rate_lets_one_through_at_a_time() -> None:
    quota = Quota(requests_per_min=1)
    assert [admitted(quota, at_s) for at_s in (0.0, 1.0, 59.9, 60.0, 60.0, 119.0, 120.0)] == [
        True,
        False,
        False,
        True,
        False,
        False,
        True,
    ]


def test_the_promised_time_is_true() -> None:
    quota, now_s = Quota(requests_per_min=600), 0.0
    while admitted(quota, now_s):
        pass
    with pytest.raises(RateExceeded) as caught:
        quota.admit(now_s)
    wait_s = caught.value.retry_after_s
    assert wait_s is not None
    assert not admitted(quota, now_s + wait_s - 0.001)
    assert admitted(quota, now_s + wait_s)


def test_what_is_refused_costs_nothing() -> None:
    quota = Quota(max_concurrent=1, requests_per_min=6)
    quota.admit(0.0)
    for _ in range(100):
        with pytest.raises(TooManyRequests):
            quota.admit(0.0)
    quota.release(0.0)
    for _ in range(100):
        with pytest.raises(RateExceeded):
            quota.admit(1.0)
    assert quota.in_flight == 0
    quota.admit(10.0)


def test_new_limits_count_what_runs() -> None:
    quota = Quota()
    for _ in range(5):
        quota.admit(0.0)
    quota.set_limits(3, None)
    for _ in range(3):
        with pytest.raises(TooManyRequests):
            quota.admit(0.0)
        quota.release(0.0)
    quota.admit(0.0)
    quota.set_limits(None, None)
    quota.admit(0.0)
    assert quota.in_flight == 4


def test_a_looser_rate_is_not_held_to_the_stricter_one_before() -> None:
    quota = Quota(requests_per_min=1)
    quota.admit(0.0)
    quota.set_limits(None, 600)
    with pytest.raises(RateExceeded) as caught:
        quota.admit(0.0)
    assert caught.value.retry_after_s == pytest.approx(0.1), "not a minute"
    assert admitted(quota, 0.2)


@given(
    rate=st.integers(1, 6000),
    gaps_s=st.lists(st.floats(0, 30), min_size=1, max_size=200),
)
def test_never_more_than_rate_and_burst(rate: int, gaps_s: list[float]) -> None:
    quota, now_s = Quota(requests_per_min=rate), 0.0
    passed_s: list[float] = []
    for gap_s in gaps_s:
        now_s += gap_s
        if admitted(quota, now_s):
            passed_s.append(now_s)
    burst = max(1.0, rate / 6)
    for i, start_s in enumerate(passed_s):
        for j in range(i, len(passed_s)):
            assert j - i + 1 <= burst + (passed_s[j] - start_s) * rate / 60 + 1e-6

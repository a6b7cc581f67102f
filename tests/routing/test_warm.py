from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing import Candidate, Facts, Knobs, Pending, build, decide, prefill_s
from routing.policies.warm import TERMS, cost
from tests.routing.support import KNOBS, candidate, state

P, Q = 1e-5, 1e-9


def pending(uncached: float, prefill: float, prompt: float | None = None) -> Pending:
    return Pending(uncached, uncached if prompt is None else prompt, prefill, 0.0)


def parts(facts: Facts, one: Candidate, knobs: Knobs = KNOBS) -> dict[str, float]:
    found: list[float] = []
    assert cost(facts, one, knobs, found) == pytest.approx(sum(found))
    return dict(zip(TERMS, found, strict=True))


def test_prefill_is_linear_in_tokens_plus_attention_to_what_came_before() -> None:
    # 1,000 of 10,000 tokens: 1e-5 * 1000 + 1e-9 * 1000 * (10000 - 500)
    assert prefill_s(P, Q, 1000, 10_000) == pytest.approx(0.01 + 0.0095)
    got = parts(Facts(10_000), candidate(0, cached_tokens=9000, p=P, q=Q))
    assert got["prefill"] == pytest.approx(0.0195)
    assert sum(got.values()) == pytest.approx(0.0195)


def test_more_cached_than_asked_costs_nothing() -> None:
    assert parts(Facts(100), candidate(0, cached_tokens=500, p=P, q=Q))["prefill"] == 0


def test_ahead_is_the_pending_work_and_only_its_head_is_credited() -> None:
    queue = [pending(1000, 0.5), pending(1000, 0.25)]
    some = candidate(0, pending=queue, in_flight=2, pending_prefill_s=0.75, progress_s=0.2)
    assert parts(Facts(100), some)["ahead"] == pytest.approx(0.55)
    long_ago = candidate(0, pending=queue, in_flight=2, pending_prefill_s=0.75, progress_s=60.0)
    assert parts(Facts(100), long_ago)["ahead"] == pytest.approx(0.25)


def test_pending_may_be_any_collection() -> None:
    queue = {"a": pending(1000, 0.5), "b": pending(1000, 0.25)}
    some = candidate(0, pending=queue.values(), in_flight=2, pending_prefill_s=0.75, progress_s=0.2)
    assert parts(Facts(100), some)["ahead"] == pytest.approx(0.55)


def test_a_sum_that_drifted_below_its_head_is_not_negative() -> None:
    drifted = candidate(0, pending=[pending(10, 0.5)], in_flight=1, pending_prefill_s=0.4999, progress_s=9.0)
    assert parts(Facts(100), drifted)["ahead"] == 0


def test_crowd_counts_those_that_decode_and_those_that_will() -> None:
    # 5 in flight, 2 of them still without a first token: a burst of equal prompts is all of these
    busy = candidate(0, in_flight=5, pending=[pending(1, 0), pending(1, 0)])
    assert parts(Facts(100), busy)["crowd"] == pytest.approx(5 * 0.02)


def test_tiers_cost_their_transfer() -> None:
    tiered = candidate(0, cached_tokens=30_000, host_tokens=20_000, disk_tokens=5000)
    assert parts(Facts(30_000), tiered)["tier_load"] == pytest.approx(20_000 / 5e5 + 5000 / 1e5)


def test_displace_starts_at_the_threshold() -> None:
    facts = Facts(10_000)
    # (85,000 + 10,000) / 100,000 - 0.8 = 0.15 of p * in
    full = candidate(0, live_tokens=85_000, capacity_tokens=100_000, p=P, q=Q)
    assert parts(facts, full)["displace"] == pytest.approx(0.15 * P * 10_000)
    roomy = candidate(0, live_tokens=60_000, capacity_tokens=100_000, p=P, q=Q)
    assert parts(facts, roomy)["displace"] == 0
    for unknown in (None, 0.0):
        assert parts(facts, candidate(0, live_tokens=85_000, capacity_tokens=unknown))["displace"] == 0


def test_settle_is_for_sessions_without_a_home_and_move_for_those_that_have_one() -> None:
    home, other = candidate(1, live_tokens=1e5, p=P), candidate(2, live_tokens=1e5, p=P)
    newcomer, resident = Facts(100), Facts(100, home=home.instance)
    assert parts(newcomer, other)["settle"] == pytest.approx(0.05 * P * 1e5)
    assert parts(newcomer, other)["move"] == 0
    assert parts(resident, home)["move"] == 0
    assert parts(resident, other)["move"] == pytest.approx(0.2)
    assert parts(resident, other)["settle"] == 0


class TestPrefillCap:
    """Pending: 40,000 tokens (1.0 s in all), then 1,000 tokens (0.1 s). The engine caps prefills at 2,000 a step."""

    QUEUE = (pending(40_000, 1.0), pending(1000, 0.1))

    def one(self, progress_s: float = 0.0) -> Candidate:
        return candidate(
            0,
            in_flight=2,
            pending=self.QUEUE,
            pending_prefill_s=1.1,
            prefill_cap_tokens=2000,
            progress_s=progress_s,
            p=P,
            q=Q,
        )

    def test_a_long_prompt_delays_a_short_one_by_a_cap_of_its_own(self) -> None:
        share = P * 2000 + Q * 2000 * (40_000 - 1000)
        assert parts(Facts(500), self.one())["ahead"] == pytest.approx(share + 0.1)

    def test_a_longer_request_is_delayed_by_as_much_as_itself(self) -> None:
        share = P * 5000 + Q * 5000 * (40_000 - 2500)
        assert parts(Facts(5000), self.one())["ahead"] == pytest.approx(share + 0.1)

    def test_never_by_more_than_what_is_left(self) -> None:
        assert parts(Facts(500), self.one(progress_s=0.99))["ahead"] == pytest.approx(0.01 + 0.1)

    def test_who_is_passed_is_paid_for(self) -> None:
        got = parts(Facts(500), self.one())
        assert got["prefill"] == pytest.approx(2 * prefill_s(P, Q, 500, 500))
        assert got["crowd"] == pytest.approx(2 * 0.02)

    def test_the_longest_waits_for_all(self) -> None:
        got = parts(Facts(50_000), self.one())
        assert got["ahead"] == pytest.approx(1.1)
        assert got["prefill"] == pytest.approx(prefill_s(P, Q, 50_000, 50_000))


def test_priority_puts_the_shorter_ahead_and_the_longer_behind() -> None:
    queue = (pending(9000, 0.3), pending(500, 0.05), pending(1000, 0.07), pending(1001, 0.09))
    one = candidate(0, in_flight=5, pending=queue, pending_prefill_s=0.51, by_priority=True, p=P, q=Q)
    got = parts(Facts(1000), one)
    assert got["ahead"] == pytest.approx(0.05 + 0.07)
    assert got["prefill"] == pytest.approx(3 * prefill_s(P, Q, 1000, 1000))
    assert got["crowd"] == pytest.approx(0.02 * 5)


def test_equal_costs_go_to_fewer_live_tokens() -> None:
    policy = build("warm", Knobs(settle_share=0.0))
    ones = [candidate(i, live_tokens=tokens) for i, tokens in enumerate((300.0, 100.0, 200.0))]
    assert {policy.choose(Facts(100), ones, state(seed)) for seed in range(20)} == {1}


def test_costs_within_a_nanosecond_are_equal() -> None:
    policy = build("warm", KNOBS)
    ones = [candidate(i, host_tokens=noise) for i, noise in enumerate((0.0, 1e-4, 3e-4))]  # 0, 0.2 and 0.6 ns
    assert {policy.choose(Facts(100), ones, state(seed)) for seed in range(50)} == {0, 1, 2}


def test_the_sum_of_explained_terms_decides() -> None:
    ones = [candidate(0, in_flight=3), candidate(1, cached_tokens=900.0), candidate(2, cached_tokens=500.0)]
    decision = decide(Facts(1000), ones, build("warm", KNOBS), state())
    costs = [decision.cost(i) or 0.0 for i in range(3)]
    assert decision.chosen == 1
    assert costs[1] == min(costs)


tokens = st.floats(min_value=0, max_value=1e12)


@settings(deadline=None)
@given(
    prompt=tokens,
    cached=tokens,
    host=tokens,
    live=tokens,
    in_flight=st.integers(0, 10**6),
    progress=st.floats(min_value=-1e9, max_value=1e9),
    queue=st.lists(st.builds(pending, tokens, st.floats(0, 1e9)), max_size=4),
    capacity=st.none() | st.floats(min_value=0, max_value=1e12),
    cap=st.none() | st.integers(1, 10**6),
    by_priority=st.booleans(),
)
def test_cost_is_finite_and_never_negative(
    prompt: float,
    cached: float,
    host: float,
    live: float,
    in_flight: int,
    progress: float,
    queue: list[Pending],
    capacity: float | None,
    cap: int | None,
    by_priority: bool,
) -> None:
    one = candidate(
        0,
        cached_tokens=cached,
        host_tokens=host,
        in_flight=in_flight,
        pending=queue,
        pending_prefill_s=sum(each.prefill_s for each in queue),
        progress_s=max(0.0, progress),
        live_tokens=live,
        capacity_tokens=capacity if capacity is None or capacity == 0 or capacity > 1e-9 else None,
        prefill_cap_tokens=cap,
        by_priority=by_priority,
    )
    found: list[float] = []
    assert math.isfinite(cost(Facts(prompt), one, KNOBS, found))
    assert all(math.isfinite(term) and term >= 0 for term in found)

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing import POLICY_NAMES, Candidate, Facts, PolicyState, build, decide
from tests.routing.support import KNOBS, candidate, state
from vocabulary import InstanceId, Kind, SessionKey

WARM = build("warm", KNOBS)
TWO = [candidate(1, cached_tokens=80.0), candidate(2)]


def kind(facts: Facts, ones: list[Candidate], policy: str = "warm") -> Kind:
    return decide(facts, ones, build(policy, KNOBS), state()).kind


class TestKind:
    def test_session_at_home(self) -> None:
        assert kind(Facts(100, home=InstanceId(1)), TWO) is Kind.SESSION

    def test_prefix_away_from_home_or_without_one(self) -> None:
        assert kind(Facts(100), TWO) is Kind.PREFIX
        busy = [candidate(1, in_flight=90), candidate(2, cached_tokens=5.0)]
        assert kind(Facts(100, home=InstanceId(1)), busy) is Kind.PREFIX

    def test_load_when_nothing_is_cached(self) -> None:
        assert kind(Facts(100), [candidate(1), candidate(2)]) is Kind.LOAD

    def test_forced_when_one_is_left_or_there_is_but_one(self) -> None:
        left = [candidate(1, rejected="down"), candidate(2)]
        assert kind(Facts(100, home=InstanceId(2)), left) is Kind.FORCED
        assert kind(Facts(100), [candidate(1)]) is Kind.FORCED

    def test_retry_before_all_else(self) -> None:
        assert kind(Facts(100, attempt=1, home=InstanceId(1)), TWO) is Kind.RETRY
        assert kind(Facts(100, attempt=1), [candidate(1, rejected="tried"), candidate(2)]) is Kind.RETRY

    def test_fallback_only_for_policies_that_want_matches(self) -> None:
        blind = Facts(100, matched=False)
        assert kind(blind, [candidate(1), candidate(2)]) is Kind.FALLBACK
        assert kind(blind, [candidate(1), candidate(2)], "least_requests") is Kind.LOAD
        assert kind(blind, [candidate(1)]) is Kind.FORCED


def test_none_left_is_a_decision_without_a_choice() -> None:
    ones = [candidate(1, rejected="down"), candidate(2, rejected="draining")]
    for given_ones in ([], ones):
        decision = decide(Facts(100), given_ones, WARM, state())
        assert decision.chosen is None
        assert (decision.candidate, decision.backend, decision.instance) == (None, None, None)
        assert decision.cached_tokens == 0
    assert [row["rejected"] for row in rows(decision.explain())] == ["down", "draining"]


def test_the_record_points_into_the_callers_list() -> None:
    ones = [candidate(1, rejected="ejected"), candidate(2, in_flight=7), candidate(3, cached_tokens=500.0)]
    decision = decide(Facts(100), ones, WARM, PolicyState(sequence=41, config_id="c7"))
    assert decision.chosen == 2
    assert decision.candidate is ones[2]
    assert decision.backend == "b3"
    assert decision.instance == 3
    assert decision.cached_tokens == 100  # no more than the prompt
    assert (decision.sequence, decision.config_id) == (41, "c7")


def rows(explained: dict[str, object]) -> list[dict[str, object]]:
    candidates = explained["candidates"]
    assert isinstance(candidates, list)
    return candidates


def test_explain_has_every_number_and_no_secret() -> None:
    key = SessionKey(b"0123456789abcdef")
    ones = [candidate(1, rejected="down"), candidate(2, in_flight=2, waiting=4), candidate(3, kv_usage=0.5)]
    explained = decide(
        Facts(100, session=key, head_key=b"fedcba9876543210", home=InstanceId(2)), ones, WARM, state()
    ).explain()
    text = json.dumps(explained)
    assert "0123456789abcdef" not in text
    assert "fedcba" not in text
    down, busy, idle = rows(explained)
    assert (down["cost"], down["terms"]) == (None, {})
    terms = busy["terms"]
    assert isinstance(terms, dict)
    assert busy["cost"] == pytest.approx(sum(terms.values()))
    assert (busy["home"], busy["waiting"], idle["kv_usage"]) == (True, 4, 0.5)
    assert [row["chosen"] for row in (down, busy, idle)] == [False, True, False]


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_every_policy_explains_itself(name: str) -> None:
    decision = decide(Facts(100, session=SessionKey(b"k" * 16)), TWO, build(name, KNOBS), state())
    costs = [decision.cost(i) for i in range(2)]
    assert all((cost is None) == (name in {"round_robin", "random"}) for cost in costs)
    json.dumps(decision.explain())


candidates = st.lists(
    st.builds(
        lambda rejected, cached, in_flight, live: (rejected, cached, in_flight, live),
        st.sampled_from([None, None, "down", "ejected", "draining", "tried"]),
        st.floats(0, 1e12),
        st.integers(0, 10**6),
        st.floats(0, 1e15),
    ),
    max_size=70,
)


@settings(deadline=None)
@given(
    name=st.sampled_from(POLICY_NAMES),
    drawn=candidates,
    prompt=st.floats(0, 1e12),
    home=st.none() | st.integers(0, 70),
    sequence=st.integers(0, 10**9),
    seed=st.integers(0, 9),
    key=st.none() | st.binary(min_size=16, max_size=16),
)
def test_never_a_rejected_one_and_always_the_same(
    name: str,
    drawn: list[tuple[str | None, float, int, float]],
    prompt: float,
    home: int | None,
    sequence: int,
    seed: int,
    key: bytes | None,
) -> None:
    ones = [
        candidate(i, rejected=rejected, cached_tokens=cached, in_flight=in_flight, live_tokens=live)
        for i, (rejected, cached, in_flight, live) in enumerate(drawn)
    ]
    facts = Facts(prompt, None if key is None else SessionKey(key), None if home is None else InstanceId(home))
    policy = build(name, KNOBS)
    first, second = (decide(facts, ones, policy, PolicyState(sequence, random.Random(seed))) for _ in range(2))
    assert first.chosen == second.chosen
    assert first.kind == second.kind
    if first.chosen is None:
        assert all(one.rejected is not None for one in ones)
    else:
        assert ones[first.chosen].rejected is None


def test_costs_that_cannot_be_compared_still_give_a_choice() -> None:
    ones = [candidate(i, live_tokens=float("nan"), capacity_tokens=1.0, cached_tokens=0.0) for i in range(3)]
    ones += [candidate(3, rejected="down")]
    assert decide(Facts(float("nan")), ones, WARM, state()).chosen in {0, 1, 2}

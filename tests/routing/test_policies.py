from __future__ import annotations

from collections import Counter

import pytest

from routing import DEFAULT_POLICY, POLICY_NAMES, Candidate, Facts, Policy, PolicyState, UnknownPolicy, build
from routing.policies.session_hash import distance
from tests.routing.support import KNOBS, candidate, state
from vocabulary import SessionKey
from vocabulary.errors import ConfigError


def chosen(policy: Policy, facts: Facts, ones: list[Candidate], times: int = 200) -> Counter[int]:
    one_state = state(7)
    counts: Counter[int] = Counter()
    for one_state.sequence in range(times):
        counts[policy.choose(facts, ones, one_state)] += 1
    return counts


def session(number: int) -> SessionKey:
    return SessionKey(number.to_bytes(16, "big"))


def test_registry() -> None:
    assert DEFAULT_POLICY in POLICY_NAMES
    assert [build(name, KNOBS).name for name in POLICY_NAMES] == list(POLICY_NAMES)
    with pytest.raises(UnknownPolicy, match=r"'wram'.*round_robin.*warm") as caught:
        build("wram", KNOBS)
    assert isinstance(caught.value, ConfigError)


@pytest.mark.parametrize("name", POLICY_NAMES)
@pytest.mark.parametrize("count", [1, 2, 64])
def test_equals_share_evenly_wherever_they_stand(name: str, count: int) -> None:
    policy = build(name, KNOBS)
    times = 200 * count
    counts: Counter[int] = Counter()
    one_state = state(3)
    ones = [candidate(i) for i in range(count)]
    for one_state.sequence in range(times):
        counts[policy.choose(Facts(100, session=session(one_state.sequence)), ones, one_state)] += 1
    assert len(counts) == count
    assert max(counts.values()) < 200 * 1.35
    assert min(counts.values()) > 200 * 0.65


def test_round_robin_takes_turns() -> None:
    policy, ones = build("round_robin", KNOBS), [candidate(i) for i in range(3)]
    turns = [policy.choose(Facts(1), ones, PolicyState(sequence=i)) for i in range(6)]
    assert turns == [0, 1, 2, 0, 1, 2]


def test_least_requests_goes_to_the_least_loaded() -> None:
    ones = [candidate(i, in_flight=n) for i, n in enumerate((3, 1, 2, 1))]
    counts = chosen(build("least_requests", KNOBS), Facts(1), ones)
    assert set(counts) == {1, 3}
    assert min(counts.values()) > 60


def test_power_of_two_never_takes_the_worst_and_sometimes_not_the_best() -> None:
    ones = [candidate(i, in_flight=n) for i, n in enumerate((9, 0, 5))]
    counts = chosen(build("power_of_two", KNOBS), Facts(1), ones, times=600)
    assert 0 not in counts
    assert counts[1] == pytest.approx(400, abs=60)  # two of the three pairs hold it


def test_longest_prefix_then_fewest_requests() -> None:
    ones = [
        candidate(0, cached_tokens=50.0),
        candidate(1, cached_tokens=80.0, in_flight=9),
        candidate(2, cached_tokens=80.0, in_flight=4),
        candidate(3, cached_tokens=80.0, in_flight=4),
    ]
    assert set(chosen(build("longest_prefix", KNOBS), Facts(100), ones)) == {2, 3}


def test_longest_prefix_counts_no_more_than_the_prompt() -> None:
    ones = [candidate(0, cached_tokens=500.0, in_flight=2), candidate(1, cached_tokens=100.0, in_flight=1)]
    assert set(chosen(build("longest_prefix", KNOBS), Facts(100), ones)) == {1}


def test_lmetric_is_tokens_times_requests() -> None:
    # (0 + 100) * 3 = 300, (150 + 20) * 2 = 340, (40 + 100) * 2 = 280
    ones = [
        candidate(0, in_flight=2),
        candidate(1, in_flight=1, pending_uncached_tokens=150.0, cached_tokens=80.0),
        candidate(2, in_flight=1, pending_uncached_tokens=40.0),
    ]
    policy = build("lmetric", KNOBS)
    assert [sum(policy.terms(Facts(100), one).values()) for one in ones] == [300, 340, 280]
    assert set(chosen(policy, Facts(100), ones)) == {2}


class TestSessionHash:
    policy = build("session_hash", KNOBS)

    def owner(self, facts: Facts, ones: list[Candidate]) -> str:
        return ones[self.policy.choose(facts, ones, state())].backend

    def test_same_key_same_backend_in_any_order_and_after_a_restart(self) -> None:
        ones = [candidate(i) for i in range(8)]
        restarted = [Candidate(instance=one.instance, backend=candidate(i + 8).backend) for i, one in enumerate(ones)]
        assert self.owner(Facts(1, session=session(1)), restarted) != self.owner(Facts(1, session=session(1)), ones)
        for number in range(50):
            facts = Facts(1, session=session(number))
            assert self.owner(facts, ones) == self.owner(facts, ones[::-1])

    def test_the_prompt_head_stands_in_for_a_session(self) -> None:
        ones = [candidate(i) for i in range(8)]
        owners = {self.owner(Facts(1, head_key=b"same head"), ones) for _ in range(20)}
        assert len(owners) == 1
        both = Facts(1, session=session(5), head_key=b"same head")
        assert self.owner(both, ones) == self.owner(Facts(1, session=session(5)), ones)

    def test_o53_a_fifth_moves_when_a_fifth_backend_comes_and_the_same_come_back(self) -> None:
        four, five = [candidate(i) for i in range(4)], [candidate(i) for i in range(5)]
        before = [self.owner(Facts(1, session=session(i)), four) for i in range(1000)]
        after = [self.owner(Facts(1, session=session(i)), five) for i in range(1000)]
        moved = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
        assert 150 <= len(moved) <= 250
        assert {new for _, new in moved} == {"b4"}

    def test_o52_keys_spread(self) -> None:
        ones = [candidate(i) for i in range(10)]
        counts = Counter(self.owner(Facts(1, session=session(i)), ones) for i in range(10_000))
        assert max(counts.values()) / 1000 <= 1.15

    def test_an_owner_over_the_bound_is_passed_over_for_the_next(self) -> None:
        key = session(11)
        ranked = sorted(range(4), key=lambda i: distance(key, f"b{i}"))
        # 11 on four backends: bound = ceil(1.25 * 12 / 4) = 4
        loads = {ranked[0]: 4, ranked[1]: 3, ranked[2]: 2, ranked[3]: 2}
        ones = [candidate(i, in_flight=loads[i]) for i in range(4)]
        assert self.policy.choose(Facts(1, session=key), ones, state()) == ranked[1]

    def test_the_floor_lets_a_second_request_through(self) -> None:
        key = session(11)
        ranked = sorted(range(4), key=lambda i: distance(key, f"b{i}"))
        for load, expected in ((1, ranked[0]), (2, ranked[1])):
            ones = [candidate(i, in_flight=load if i == ranked[0] else 0) for i in range(4)]
            assert self.policy.choose(Facts(1, session=key), ones, state()) == expected

    def test_without_any_key_the_least_loaded(self) -> None:
        ones = [candidate(0, in_flight=1), candidate(1)]
        assert set(chosen(self.policy, Facts(1), ones)) == {1}

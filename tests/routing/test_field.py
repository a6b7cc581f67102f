"""Field cases at the level of decisions; those on real sockets are in tests/field."""

from __future__ import annotations

import pytest

from routing import Facts, Pending, build, decide
from tests.routing.fleet import Fleet
from tests.routing.support import KNOBS, candidate, state
from vocabulary import InstanceId, SessionKey

WARM = build("warm", KNOBS)


@pytest.mark.parametrize("at_once", [1, 4, 20, 200])
@pytest.mark.parametrize("speeds", [(2.2e-5,) * 4, (2.2e-5, 2.25e-5, 2.3e-5, 2.35e-5)], ids=["equal", "fitted"])
def test_o44_a_shared_head_spreads_users_and_later_turns_stay(at_once: int, speeds: tuple[float, ...]) -> None:
    outcome = Fleet(WARM, seed=1, speeds=speeds).run(at_once)
    assert max(outcome.users_per_backend.values()) <= 1.3 * 200 / 4
    assert max(outcome.requests_per_backend.values()) <= 1.3 * 600 / 4
    assert outcome.later_turns_stayed >= 0.9 * outcome.later_turns


def test_o44_longest_prefix_shows_the_fault() -> None:
    outcome = Fleet(build("longest_prefix", KNOBS), seed=1).run(20)
    assert len(outcome.users_per_backend) == 1


def test_o46_cold_traffic_goes_to_the_idle_one_not_to_the_smallest_cache() -> None:
    few_prefixes = candidate(0, in_flight=30, live_tokens=1000.0)
    many_prefixes = candidate(1, live_tokens=400_000.0)
    for seed in range(20):
        assert decide(Facts(2000), [few_prefixes, many_prefixes], WARM, state(seed)).backend == "b1"


def test_o47_a_burst_spreads_when_choosing_reserves() -> None:
    counts = [0, 0, 0, 0]
    one_state = state()
    for _ in range(100):
        ones = [
            candidate(i, in_flight=n, pending=[Pending(500, 500, 0.011, 0.0)] * n, pending_prefill_s=0.011 * n)
            for i, n in enumerate(counts)
        ]
        chosen = decide(Facts(500), ones, WARM, one_state).chosen
        assert chosen is not None
        counts[chosen] += 1
    assert all(22 <= count <= 28 for count in counts)


def test_o48_one_hot_backend_leaves_the_affinity_of_others_alone() -> None:
    hot = candidate(0, in_flight=200, pending=[Pending(8000, 8000, 0.2, 0.0)] * 50, pending_prefill_s=10.0)
    warm, cold = candidate(1, cached_tokens=7800.0), candidate(2)
    for home in (None, InstanceId(1)):
        assert decide(Facts(8000, home=home), [hot, warm, cold], WARM, state()).backend == "b1"


def test_o48_only_requests_of_the_hot_one_move() -> None:
    queue = [Pending(8000, 8000, 0.2, 0.0)] * 50
    hot = candidate(0, in_flight=200, pending=queue, pending_prefill_s=10.0, cached_tokens=7800.0)
    decision = decide(Facts(8000, home=InstanceId(0)), [hot, candidate(1), candidate(2)], WARM, state())
    assert decision.backend in {"b1", "b2"}


def test_o51_what_overflowed_stays_until_its_owner_has_room_to_spare() -> None:
    policy = build("session_hash", KNOBS)
    facts = Facts(100, session=SessionKey(b"a session"))
    idle = [candidate(i) for i in range(4)]
    owner = policy.choose(facts, idle, state())

    def chosen(load: int, home: int | None) -> int:
        """With so much on the owner and 8 on each other one: the mean is between 8 and 10, the bound at 11 or 12."""
        ones = [candidate(i, in_flight=load if i == owner else 8) for i in range(4)]
        now = Facts(100, session=facts.session, home=InstanceId(home) if home is not None else None)
        return policy.choose(now, ones, state())

    other = chosen(12, None)
    assert other != owner, "a new session passes a full owner on"
    assert chosen(12, owner) == other, "and so does one that lives there"
    assert chosen(9, None) == chosen(9, owner) == owner
    for away in set(range(4)) - {owner}:
        assert chosen(9, away) == away, "below its bound, but busier than the mean"
        assert chosen(8, away) == owner
    assert chosen(9, 99) == owner, "a home that is gone"

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.session_id import lineage_key, lineage_owner
from gateway.sessions import SessionStore
from vocabulary import BlockKeys, InstanceId, SessionKey, TenantId

ACME, OTHER = TenantId("acme"), TenantId("other")
A, B = InstanceId(1), InstanceId(2)


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock) -> SessionStore:
    return SessionStore(idle_ttl_s=3600, live_window_s=300, max_sessions=1000, clock=clock)


def key(name: str) -> SessionKey:
    return SessionKey(name.encode().ljust(16))


def run(*blocks: int) -> BlockKeys:
    """Chained keys stand for themselves here: equal numbers at equal places mean equal heads."""
    return BlockKeys(b"".join((1 << 40 | block).to_bytes(8, "little") for block in blocks))


S, T = key("s"), key("t")


class TestHome:
    def test_the_last_turn_decides(self, store: SessionStore) -> None:
        assert store.home(S) is None
        store.record(S, A, 100)
        assert store.home(S) == A
        store.record(S, B, 150)
        assert store.home(S) == B

    def test_gone_after_the_idle_ttl_and_not_before(self, store: SessionStore, clock: Clock) -> None:
        store.record(S, A, 100)
        clock.now_s += 3599
        assert store.home(S) == A
        clock.now_s += 1
        assert store.home(S) is None
        assert store.stats().expired_total == 1

    def test_a_turn_renews(self, store: SessionStore, clock: Clock) -> None:
        for _ in range(5):
            store.record(S, A, 100)
            clock.now_s += 3000
        assert store.home(S) == A

    def test_a_forgotten_instance_is_nobodys_home(self, store: SessionStore) -> None:
        store.record(S, A, 100)
        store.record(T, B, 100)
        store.forget_instance(A)
        assert store.home(S) is None
        assert store.home(T) == B
        store.record(S, B, 120)
        assert store.home(S) == B


class TestLiveTokens:
    def test_sum_of_last_contexts(self, store: SessionStore) -> None:
        store.record(S, A, 100)
        store.record(T, A, 40)
        store.record(S, A, 250)
        assert store.live_tokens(A) == 290
        assert store.live_tokens(A, excluding=S) == 40
        assert store.live_tokens(B, excluding=S) == 0

    def test_a_move_takes_them_along(self, store: SessionStore) -> None:
        store.record(S, A, 100)
        store.record(S, B, 120)
        assert (store.live_tokens(A), store.live_tokens(B)) == (0, 120)
        assert store.live_tokens(A, excluding=S) == 0
        assert store.live_tokens(B, excluding=S) == 0

    def test_the_window_ends_them_but_not_the_home(self, store: SessionStore, clock: Clock) -> None:
        store.record(S, A, 100)
        clock.now_s += 200
        store.record(T, A, 40)
        clock.now_s += 100
        assert store.live_tokens(A) == 40
        assert store.home(S) == A
        store.record(S, A, 110)
        assert store.live_tokens(A) == 150

    def test_all_instances_at_once(self, store: SessionStore) -> None:
        store.record(S, A, 100)
        store.record(T, B, 40)
        assert store.outlook(S) == (A, {A: 0, B: 40})
        assert store.outlook(None) == (None, {A: 100, B: 40})
        store.forget_instance(A)
        assert store.outlook(S) == (None, {B: 40})

    def test_a_late_record_for_a_forgotten_instance_keeps_sums_right(self, store: SessionStore) -> None:
        store.record(S, A, 100)
        store.record(T, A, 40)
        store.forget_instance(A)
        store.record(T, A, 50)  # a turn that was under way settles
        assert store.live_tokens(A) == 50
        store.record(S, B, 100)
        assert store.live_tokens(A) == 50
        store.record(T, B, 60)
        assert (store.live_tokens(A), store.live_tokens(B)) == (0, 160)
        assert store.stats().instances == 1


def start(store: SessionStore, keys: BlockKeys, prompt_id: int = 0, resumed_id: int = 0) -> SessionKey:
    """What the gateway does with a request that has no session id."""
    found = store.find_by_lineage(ACME, keys, 0, prompt_id, resumed_id)
    session = found or store.unused(lineage_key(lineage_owner(ACME, b"secret"), keys, prompt_id))
    store.record(session, A, 100, ACME, keys, prompt_id)
    return session


class TestLineageByTip:
    def continues(self, store: SessionStore, keys: BlockKeys, resumed: int = 0) -> SessionKey | None:
        return store.find_by_lineage(ACME, keys, resumed)

    def test_a_prompt_that_extends_a_known_one(self, store: SessionStore) -> None:
        store.record(S, A, 100, ACME, run(1, 2, 3))
        for resumed in (0, 2, 3, 99):
            assert self.continues(store, run(1, 2, 3, 4, 5), resumed) == S
        assert self.continues(store, run(1, 2)) is None
        assert self.continues(store, run(1, 2, 9)) is None
        assert self.continues(store, run()) is None

    def test_turn_after_turn(self, store: SessionStore) -> None:
        for length in range(1, 40, 3):
            if length > 1:
                assert self.continues(store, run(*range(length)), length - 3) == S
            store.record(S, A, length, ACME, run(*range(length)))
        assert store.stats().names == 1

    def test_the_longest_tip_wins(self, store: SessionStore) -> None:
        store.record(S, A, 100, ACME, run(1))
        store.record(T, A, 100, ACME, run(1, 2, 3))
        assert self.continues(store, run(1, 2, 3, 4)) == T
        assert self.continues(store, run(1, 2, 9)) == S

    def test_tenants_do_not_meet(self, store: SessionStore) -> None:
        store.record(S, A, 100, ACME, run(1, 2))
        assert store.find_by_lineage(OTHER, run(1, 2, 3)) is None
        store.record(T, A, 100, OTHER, run(1, 2))
        assert store.find_by_lineage(OTHER, run(1, 2, 3)) == T
        assert self.continues(store, run(1, 2, 3)) == S

    def test_a_resend_is_the_same_session(self, store: SessionStore) -> None:
        store.record(S, A, 100, ACME, run(1, 2))
        assert self.continues(store, run(1, 2)) == S

    def test_a_branch_is_a_new_session(self, store: SessionStore) -> None:
        store.record(S, A, 100, ACME, run(1, 2))
        store.record(S, A, 120, ACME, run(1, 2, 3))
        assert self.continues(store, run(1, 2, 8)) is None
        assert self.continues(store, run(1, 2, 3, 4)) == S

    def test_a_shared_tip_is_the_latest_ones_and_outlives_the_other(self, clock: Clock) -> None:
        store = SessionStore(idle_ttl_s=100, live_window_s=50, max_sessions=10, clock=clock)
        store.record(S, A, 100, ACME, run(1, 2))
        clock.now_s += 60
        store.record(T, B, 100, ACME, run(1, 2))
        clock.now_s += 60
        assert store.home(S) is None
        assert self.continues(store, run(1, 2, 3)) == T

    def test_a_record_without_keys_leaves_it(self, store: SessionStore) -> None:
        store.record(S, A, 100, ACME, run(1, 2))
        store.record(S, A, 130)
        assert self.continues(store, run(1, 2, 3)) == S
        assert store.live_tokens(A) == 130

    def test_a_forgotten_instance_leaves_it(self, store: SessionStore) -> None:
        store.record(S, A, 100, ACME, run(1, 2))
        store.forget_instance(A)
        assert self.continues(store, run(1, 2, 3)) == S


class TestLineageByIdentity:
    def test_turn_after_turn(self, store: SessionStore) -> None:
        session = start(store, run(1), prompt_id=10)
        for turn in range(1, 9):
            keys = run(*range(1, 1 + turn // 2))  # short turns: not each of them fills a block
            assert start(store, keys or run(1), 10 + turn, 9 + turn) == session
        assert store.stats().sessions == 1
        assert store.stats().names == 2

    def test_many_samples_of_one_prompt_are_many_sessions(self, store: SessionStore) -> None:
        first = start(store, run(1, 2), prompt_id=10)
        sampled = {start(store, run(1, 2), prompt_id=10, resumed_id=10) for _ in range(20)}
        assert len(sampled) == 20
        assert first not in sampled

    def test_the_turn_after_a_resend_goes_on_with_the_latest(self, store: SessionStore) -> None:
        start(store, run(1, 2), prompt_id=10)
        again = start(store, run(1, 2), prompt_id=10, resumed_id=10)
        assert start(store, run(1, 2, 3), prompt_id=11, resumed_id=10) == again

    def test_o44_one_head_many_users(self, store: SessionStore) -> None:
        """Half of the questions end inside the head's last block, where all keys are equal."""
        head = tuple(range(128))
        sessions: dict[int, SessionKey] = {}
        for turn in range(3):
            for user in range(200):
                own = tuple(1000 * (user + 1) + i for i in range(2 * turn + user % 2))
                prompt_id = 10 * user + turn + 1
                session = start(store, run(*head, *own), prompt_id, prompt_id - 1 if turn else 0)
                assert sessions.setdefault(user, session) == session
            assert len(set(sessions.values())) == 200
        assert store.stats().sessions == 200

    def test_a_first_prompt_leaves_no_tip(self, store: SessionStore) -> None:
        first = start(store, run(1, 2), prompt_id=1)
        assert start(store, run(1, 2, 3), prompt_id=2) != first

    def test_from_the_second_on_the_tip_finds_what_the_encoder_forgot(self, store: SessionStore) -> None:
        session = start(store, run(1, 2), prompt_id=1)
        assert start(store, run(1, 2, 3), prompt_id=2, resumed_id=1) == session
        assert start(store, run(1, 2, 3, 4), prompt_id=3, resumed_id=0) == session

    def test_the_same_start_after_the_first_went_on_is_another_session(self, store: SessionStore) -> None:
        first = start(store, run(1, 2), prompt_id=1)
        assert start(store, run(1, 2, 3), prompt_id=2, resumed_id=1) == first
        second = start(store, run(1, 2), prompt_id=1)
        assert second != first
        assert start(store, run(1, 2, 3, 9), prompt_id=4, resumed_id=2) == first
        assert start(store, run(1, 2, 7), prompt_id=5, resumed_id=1) == second
        assert len({first, second, start(store, run(1, 2), prompt_id=1)}) == 3

    def test_a_branch_of_an_earlier_turn_is_a_new_session(self, store: SessionStore) -> None:
        session = start(store, run(1, 2), prompt_id=1)
        start(store, run(1, 2, 3), prompt_id=2, resumed_id=1)
        assert start(store, run(1, 2, 8), prompt_id=3, resumed_id=1) != session

    def test_tenants_do_not_meet(self, store: SessionStore) -> None:
        start(store, run(1, 2), prompt_id=1)
        assert store.find_by_lineage(OTHER, run(1, 2, 3), 2, prompt_id=2, resumed_id=1) is None


def test_bounded_by_the_least_recently_used(clock: Clock) -> None:
    store = SessionStore(idle_ttl_s=3600, live_window_s=10, max_sessions=3, clock=clock)
    for i in range(3):
        store.record(key(str(i)), InstanceId(i), 10, ACME, run(i))
        clock.now_s += 1
    store.record(key("0"), InstanceId(0), 10)
    store.record(key("3"), InstanceId(3), 10, ACME, run(3))
    stats = store.stats()
    assert (stats.sessions, stats.evicted_total, stats.names) == (3, 1, 3)
    assert store.home(key("1")) is None
    assert store.live_tokens(InstanceId(1)) == 0
    assert store.home(key("0")) == InstanceId(0)
    assert store.find_by_lineage(ACME, run(1, 5)) is None


def test_nothing_stays_behind(clock: Clock) -> None:
    store = SessionStore(idle_ttl_s=100, live_window_s=50, max_sessions=50, clock=clock)
    for i in range(2000):
        store.record(key(str(i % 300)), InstanceId(i % 7), i, TenantId(f"t{i % 5}"), run(i))
        clock.now_s += 1
    clock.now_s += 100
    stats = store.stats()
    assert (stats.sessions, stats.live, stats.names, stats.instances) == (0, 0, 0, 0)
    assert store.outlook(None) == (None, {})


def test_room_for_at_least_one(clock: Clock) -> None:
    with pytest.raises(ValueError, match="max_sessions"):
        SessionStore(idle_ttl_s=1, live_window_s=1, max_sessions=0, clock=clock)


class Against(RuleBasedStateMachine):
    """The store against a plain list of records."""

    TTL_S, WINDOW_S, MAX = 50.0, 20.0, 4

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.store = SessionStore(self.TTL_S, self.WINDOW_S, self.MAX, self.clock)
        self.model: dict[SessionKey, tuple[float, InstanceId | None, int]] = {}

    def prune(self) -> None:
        now = self.clock.now_s
        self.model = {s: r for s, r in self.model.items() if r[0] > now - self.TTL_S}

    @rule(number=st.integers(0, 6), instance=st.integers(0, 3), tokens=st.integers(0, 1000), keyed=st.booleans())
    def turn(self, number: int, instance: int, tokens: int, keyed: bool) -> None:
        self.prune()
        session = key(str(number))
        self.model.pop(session, None)
        self.model[session] = (self.clock.now_s, InstanceId(instance), tokens)
        while len(self.model) > self.MAX:
            del self.model[next(iter(self.model))]
        self.store.record(session, InstanceId(instance), tokens, ACME if keyed else None, run(number), number % 3)

    @rule(seconds=st.sampled_from([0.5, 3.0, 11.0, 20.0, 50.0]))
    def pass_time(self, seconds: float) -> None:
        self.clock.now_s += seconds

    @rule(instance=st.integers(0, 3))
    def forget(self, instance: int) -> None:
        self.store.forget_instance(InstanceId(instance))
        self.model = {s: (t, None if i == instance else i, n) for s, (t, i, n) in self.model.items()}

    @invariant()
    def agree(self) -> None:
        self.prune()
        sums: dict[InstanceId, int] = defaultdict(int)
        for used_s, instance, tokens in self.model.values():
            if instance is not None and used_s > self.clock.now_s - self.WINDOW_S:
                sums[instance] += tokens
        assert {i: n for i, n in self.store.outlook(None)[1].items() if n} == {i: n for i, n in sums.items() if n}
        for number in range(7):
            expected = self.model.get(key(str(number)))
            assert self.store.home(key(str(number))) == (expected[1] if expected else None)
        stats = self.store.stats()
        assert stats.sessions == len(self.model)
        assert stats.names <= 2 * stats.sessions
        assert stats.instances <= 4


TestAgainstModel = Against.TestCase
TestAgainstModel.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)

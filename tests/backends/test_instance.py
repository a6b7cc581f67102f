"""Leases are the only thing that touches load, and they always end."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from hypothesis import given
from hypothesis import strategies as st

from backends.instance import Instance
from vocabulary import InstanceId

if TYPE_CHECKING:
    from backends.backend import Backend


def make_instance(number: int = 1) -> Instance:
    return Instance(InstanceId(number), cast("Backend", None), started_s=0.0)


def test_a_lease_counts_from_the_choice_to_the_end() -> None:
    instance = make_instance()
    lease = instance.lease(uncached_tokens=100, prompt_tokens=400, prefill_s=0.5, now_s=1.0)
    assert (instance.in_flight, len(instance.pending)) == (1, 1)
    assert (instance.pending_prefill_s, instance.pending_uncached_tokens) == (0.5, 100)
    lease.first_token(2.0)
    assert (instance.in_flight, len(instance.pending)) == (1, 0)
    assert instance.last_first_token_s == 2.0
    lease.end(3.0)
    assert instance.in_flight == 0


def test_ending_twice_counts_once() -> None:
    instance = make_instance()
    lease, other = (instance.lease(1, 1, 0.1, 0.0) for _ in range(2))
    lease.end(1.0)
    lease.end(1.0)
    lease.first_token(1.0)
    assert instance.in_flight == 1
    other.end(1.0)
    assert instance.in_flight == 0


def test_o50_a_flapped_backend_neither_loses_nor_inherits_counts() -> None:
    old, new = make_instance(1), make_instance(2)
    leases = [old.lease(10, 10, 0.1, 0.0) for _ in range(5)]
    later = [new.lease(10, 10, 0.1, 0.0) for _ in range(2)]
    for lease in leases:
        lease.end(1.0)
    assert (old.in_flight, new.in_flight) == (0, 2)
    for lease in later:
        lease.end(1.0)
    assert (old.in_flight, new.in_flight) == (0, 0)


def test_progress_counts_from_the_later_of_last_first_token_and_sending() -> None:
    instance = make_instance()
    assert instance.progress_s(9.0) == 0.0
    first = instance.lease(1, 1, 1.0, now_s=1.0)
    instance.lease(1, 1, 1.0, now_s=2.0)
    assert instance.progress_s(5.0) == 4.0
    first.first_token(6.0)
    assert instance.progress_s(7.0) == 1.0


def test_answers_that_do_not_stream_count_as_decoding_after_their_predicted_first_token() -> None:
    instance = make_instance()
    lease = instance.lease(1, 1, 1.0, now_s=0.0)
    lease.assumed_first_token_s = 1.5
    assert instance.progress_s(1.0) == 1.0
    assert len(instance.pending) == 1
    assert instance.progress_s(1.5) == 0.0
    assert (len(instance.pending), instance.in_flight) == (0, 1)
    lease.end(2.0)
    assert instance.in_flight == 0


def test_when_idle_waits_for_the_last_lease() -> None:
    instance = make_instance()
    heard: list[str] = []
    instance.when_idle(lambda: heard.append("at once"))
    lease = instance.lease(1, 1, 0.1, 0.0)
    instance.when_idle(lambda: heard.append("later"))
    assert heard == ["at once"]
    lease.end(1.0)
    assert heard == ["at once", "later"]


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e3), st.integers(0, 3)), max_size=30))
def test_counters_return_to_exactly_zero(requests: list[tuple[float, float, float, int]]) -> None:
    instance = make_instance()
    leases = [instance.lease(u, u + extra, prefill_s, 0.0) for u, extra, prefill_s, _ in requests]
    for lease, (*_, end) in zip(leases, requests, strict=True):
        if end % 2:
            lease.first_token(1.0)
    for lease in reversed(leases):
        lease.end(2.0)
    assert instance.in_flight == 0
    assert not instance.pending
    assert instance.pending_prefill_s == 0.0
    assert instance.pending_uncached_tokens == 0.0

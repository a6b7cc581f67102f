from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.limits import RequestBuffer, RequestLimits
from vocabulary.errors import BodyTooLarge


def test_the_limit_itself_is_allowed_and_the_text_names_the_knob() -> None:
    limits = RequestLimits(100, 3, frozenset({503}))
    limits.check_body_size(100)
    with pytest.raises(BodyTooLarge, match=r"listen\.max_body_mb allows \(100 bytes\)"):
        limits.check_body_size(101)


def test_more_is_drained_than_allowed_but_not_much_more() -> None:
    limits = RequestLimits(100, 3, frozenset())
    assert limits.max_body_bytes < limits.max_drained_bytes <= 1000


def test_the_buffer_takes_up_to_its_bound() -> None:
    buffer = RequestBuffer(100)
    assert buffer.take(60)
    assert buffer.take(40)
    assert not buffer.take(1)
    assert buffer.used == 100, "what was not taken is not counted"
    buffer.give_back(60)
    assert buffer.take(60)
    assert "listen.max_buffered_mb" in buffer.full_text


def test_a_bound_that_a_reload_made_smaller_refuses_until_there_is_room() -> None:
    buffer = RequestBuffer(100)
    assert buffer.take(80)
    buffer.max_bytes = 50
    assert not buffer.take(1)
    buffer.give_back(40)
    assert buffer.take(10)


@given(st.lists(st.integers(0, 50)))
def test_what_was_taken_and_given_back_leaves_nothing(sizes: list[int]) -> None:
    buffer = RequestBuffer(100)
    taken = [size for size in sizes if buffer.take(size)]
    assert buffer.used == sum(taken) <= 100
    for size in taken:
        buffer.give_back(size)
    assert buffer.used == 0

"""What comparing token ids gives."""

from __future__ import annotations

import json
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.parity import PROBES, Parity, ParityState, compare, first_difference, overall

IDS = st.lists(st.integers(0, 3), max_size=12)


def packed(ids: list[int]) -> bytes:
    return array("I", ids).tobytes()


@given(IDS, IDS)
def test_the_first_difference(one: list[int], other: list[int]) -> None:
    pairs = zip(one, other, strict=False)
    expected = next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
    assert first_difference(packed(one), packed(other)) == expected


def test_ids_are_equal_or_differ_at_a_place() -> None:
    assert compare("p", packed([1, 2]), packed([1, 2])) == Parity(ParityState.EQUAL)
    assert compare("p", packed([1, 2, 3]), packed([1, 4])) == Parity(ParityState.DIFFERENT, "p", 1, 3, 2)


@pytest.mark.parametrize(
    ("own", "engine", "state"),
    [
        (None, None, ParityState.EQUAL),
        (packed([1]), None, ParityState.UNKNOWN),
        (None, packed([1]), ParityState.DIFFERENT),
    ],
)
def test_a_prompt_that_one_side_refuses(own: bytes | None, engine: bytes | None, state: ParityState) -> None:
    assert compare("p", own, engine).state is state


def test_one_difference_counts_and_one_equal_is_enough_without() -> None:
    equal, unknown = Parity(ParityState.EQUAL), Parity(ParityState.UNKNOWN)
    different = Parity(ParityState.DIFFERENT, "p", 0, 1, 2)
    assert overall([equal, different, unknown]) == different
    assert overall([unknown, equal]) == equal
    assert overall([unknown]) == overall([]) == unknown


def test_probes_are_proper_requests() -> None:
    assert len({name for name, _ in PROBES}) == len(PROBES)
    for _, prompt in PROBES:
        assert (prompt.messages is None) != (prompt.prompt is None)
        for raw in (prompt.messages, prompt.prompt, prompt.tools):
            assert raw is None or json.loads(raw)


def test_a_result_as_json() -> None:
    assert Parity(ParityState.EQUAL).as_json() == {"state": "equal"}
    assert Parity(ParityState.DIFFERENT, "p", 1, 3, 2).as_json() == {
        "state": "different",
        "probe": "p",
        "position": 1,
        "tokens": 3,
        "engine_tokens": 2,
    }

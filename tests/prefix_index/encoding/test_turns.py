from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefix_index.encoding.json_text import Buffer, split_array
from prefix_index.encoding.turns import KnownTurns, TurnFinder

NAMESPACE, TOOLS = b"n" * 16, b""


def message(number: int, size: int) -> dict[str, Any]:
    return {"role": "user", "content": f"{number} " + "x" * size}


talks = st.lists(st.tuples(st.integers(0, 1), st.sampled_from([1, 40, 3_000, 5_000])), min_size=1, max_size=6)


@given(st.lists(talks, min_size=1, max_size=8), st.booleans())
def test_the_longest_earlier_prompt_is_found_whatever_its_length(
    all_talks: list[list[tuple[int, int]]], pretty: bool
) -> None:
    known = KnownTurns()
    seen: list[tuple[list[tuple[int, int]], int]] = []
    for talk in all_talks:
        raw = json.dumps([message(*piece) for piece in talk], indent=1 if pretty else None).encode()
        prompt_id, resumed_id = known.resume(NAMESPACE, TOOLS, raw)
        heads = [(len(earlier), number) for earlier, number in seen if talk[: len(earlier)] == earlier]
        assert resumed_id == (max(heads)[1] if heads else 0)
        seen.append((talk, prompt_id))


def test_a_long_prompt_is_not_scanned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    scanned: list[int] = []

    def split(raw: bytes) -> list[Buffer] | None:
        scanned.append(len(raw))
        return split_array(raw)

    monkeypatch.setattr("prefix_index.encoding.turns.split_array", split)
    known = KnownTurns()
    talk = [message(number, 1_000) for number in range(20)]
    first, _ = known.resume(NAMESPACE, TOOLS, json.dumps(talk).encode())
    _, resumed = known.resume(NAMESPACE, TOOLS, json.dumps([*talk, message(20, 10)]).encode())
    assert resumed == first
    assert scanned[0] > 20_000
    assert len(scanned) == 2
    assert scanned[1] < 100


def test_other_spacing_between_messages_is_the_same_prompt() -> None:
    known = KnownTurns()
    talk = [json.dumps(message(number, 1_000)) for number in range(20)]
    first, _ = known.resume(NAMESPACE, TOOLS, f"[{','.join(talk)}]".encode())
    again, resumed = known.resume(NAMESPACE, TOOLS, f" [ {' , '.join(talk)} ]\n".encode())
    assert first == again == resumed


@pytest.mark.parametrize("tail", [b"", b",]", b",", b"x]", b",{}", b"]]", b",{}]]", b",{]"])
def test_a_head_with_a_broken_end_is_no_continuation(tail: bytes) -> None:
    finder = TurnFinder()
    raw = json.dumps([message(number, 1_000) for number in range(20)]).encode()
    filed: dict[bytes, int] = {}
    located = finder.locate(NAMESPACE, TOOLS, raw, filed.get)
    filed[located.end] = 1
    finder.remember(located)
    assert finder.locate(NAMESPACE, TOOLS, raw, filed.get).known == 1
    broken = finder.locate(NAMESPACE, TOOLS, raw[:-1] + tail, filed.get)
    assert (broken.known, broken.rest) == (None, [])


def test_what_is_remembered_is_bounded() -> None:
    known = KnownTurns(max_turns=50)
    for number in range(300):
        known.resume(NAMESPACE, TOOLS, json.dumps([message(number, 5_000)]).encode())
    assert len(known._turns) == 50
    assert len(known._finder._heads) == 50

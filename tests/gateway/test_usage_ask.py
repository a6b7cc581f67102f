"""Usage is asked for where the client did not, and its event taken out again: not a byte else is lost or changed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.body import parse_body
from gateway.usage_ask import Ask, UsageSieve, ask_of

if TYPE_CHECKING:
    from collections.abc import Iterable

USAGE = {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 8}}
ASKED = b'"stream_options":{"include_usage":true}'


def ask(body: bytes) -> Ask | None:
    return ask_of(bytes(parse_body(body).stream_options))


def asking(body: bytes) -> bytes:
    how = ask(body)
    assert how is not None
    return how.apply(body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"stream":true}',
        b'{ "stream" : true, "n": 1e-7, "big": 12345678901234567890123, "a": 1, "a": 2 }\n',
        b' \r\n\t{\n"stream":true}',
        '{"stream":true,"text":"größe 😀 \\u00e9 stream_options"}'.encode(),
        b'{"stream":true,"nested":{"stream_options":{"include_usage":false}}}',
        b'{"stream":true,"x":"\\ud800","y":NaN}',
    ],
)
def test_what_is_asked_is_put_in_front_and_not_a_byte_is_changed(body: bytes) -> None:
    opening, rest = body.split(b"{", 1)
    assert asking(body) == b"{" + ASKED + b"," + rest
    assert not opening.strip()
    assert json.loads(asking(body)) | {"stream_options": None} == json.loads(body) | {"stream_options": None}


@pytest.mark.parametrize("name", ["stream_options", "stream\\u005foptions"])
def test_a_null_is_replaced(name: str) -> None:
    body = f'{{"stream":true, "{name}" : null,"n":1e-7,"a":"\\u00e9"}}'.encode()
    asked = asking(body)
    assert asked == b"{" + ASKED + b',"stream":true,"n":1e-7,"a":"\\u00e9"}'
    assert asking(b'{"stream_options":{"include_usage":false},"stream_options":null}') == b"{" + ASKED + b"}"


@pytest.mark.parametrize(
    "options", [{"include_usage": False}, {"include_usage": True}, {"include_usage": None}, {}, {"a": 1}, 5, "x", []]
)
def test_what_the_client_says_stands(options: Any) -> None:
    """An object without include_usage too: engines take it for true then, so the client may wait for the event."""
    assert ask(json.dumps({"stream": True, "stream_options": options}).encode()) is None


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "utf-8-sig"])
@pytest.mark.parametrize("how", list(Ask))
def test_a_body_that_cannot_be_spliced_is_left_alone(encoding: str, how: Ask) -> None:
    body = '{"stream": true}'.encode(encoding)
    asked = how.apply(body)
    assert asked is body or json.loads(asked) == {"stream": True, "stream_options": {"include_usage": True}}
    assert Ask.ADD.apply(body) is body
    for odd in (b"[1]", b"{", b"{}", b"", b"{'a'"):
        assert Ask.ADD.apply(odd) is odd


# The stream.


def event(payload: Any, end: bytes = b"\n") -> bytes:
    text = payload if isinstance(payload, bytes) else json.dumps(payload, ensure_ascii=False).encode()
    return b"data: " + text + end + end


def choice(text: str = "tok", **fields: Any) -> dict[str, Any]:
    return {"id": "x", "choices": [{"index": 0, "delta": {"content": text}}], **fields}


USAGE_ONLY = {"id": "x", "choices": [], "usage": USAGE}
DONE = b"[DONE]"


def sifted(pieces: Iterable[bytes]) -> list[bytes]:
    sieve = UsageSieve()
    shown = [sieve.sift(piece) for piece in pieces]
    return [*shown, sieve.end()]


def stream_with(end: bytes, usage: dict[str, Any] = USAGE_ONLY) -> tuple[bytes, bytes]:
    """A stream and what is to be left of it."""
    before = event(choice("é🙂"), end) + b": ping" + end * 2 + event(choice(usage=None), end)
    after = event(DONE, end)
    return before + event(usage, end) + after, before + after


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
def test_o22_the_event_goes_wherever_the_stream_is_cut(end: bytes) -> None:
    stream, left = stream_with(end)
    for cut in range(len(stream) + 1):
        assert b"".join(sifted([stream[:cut], stream[cut:]])) == left, cut
    assert b"".join(sifted(stream[i : i + 1] for i in range(len(stream)))) == left


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
def test_nothing_waits_longer_than_for_the_end_of_its_event(end: bytes) -> None:
    first, second = event(choice("a"), end), event(choice("b"), end)
    for cut in range(len(second)):
        sieve = UsageSieve()
        assert sieve.sift(first + second[:cut]) == first
        assert sieve.sift(second[cut:]) == second


@given(
    events=st.lists(
        st.one_of(
            st.text(max_size=30).map(choice),
            st.just(USAGE_ONLY),
            st.just({"choices": []}),
            st.just({"choices": [], "usage": None}),
            st.just(choice(usage=USAGE)),
            st.just({"choices": [], "error": {"usage": USAGE}}),
            st.sampled_from([b"[DONE]", b"", b"{", b'"usage": {', b'{"usage":{},"choices":0}', b"x" * 20_000]),
        ),
        max_size=8,
    ),
    ends=st.lists(st.sampled_from([b"\n", b"\r\n"]), min_size=8, max_size=8),
    cuts=st.lists(st.integers(0, 60_000), max_size=12),
    tail=st.booleans(),
)
def test_all_streams_in_all_cuts(events: list[Any], ends: list[bytes], cuts: list[int], tail: bool) -> None:
    pairs = list(zip(events, ends, strict=False))
    stream = b"".join(event(one, end) for one, end in pairs)
    left = b"".join(event(one, end) for one, end in pairs if one is not USAGE_ONLY)
    if tail and pairs and events[-1] is not USAGE_ONLY:
        stream, left = stream[:-1], left[:-1]
    at = sorted({cut % (len(stream) + 1) for cut in cuts})
    pieces = [stream[a:b] for a, b in zip([0, *at], [*at, len(stream)], strict=True)]
    assert b"".join(sifted(pieces)) == left


@pytest.mark.parametrize(
    "payload",
    [
        choice(usage=USAGE),
        {"choices": [], "usage": None},
        {"choices": None, "usage": USAGE},
        {"usage": USAGE},
        {"choices": [], "prompt_filter_results": []},
        {"choices": [], "nested": {"usage": USAGE}},
        choice('"choices":[],"usage":{}'),
        {"choices": [], "usage": 5},
    ],
)
def test_all_else_passes(payload: Any) -> None:
    """Continuous usage too, which comes with the text."""
    stream = event(payload) + event(DONE)
    assert b"".join(sifted([stream])) == stream


def test_an_event_of_several_lines() -> None:
    named = b"event: x\nid: 5\n" + event(USAGE_ONLY)
    assert b"".join(sifted([named + event(DONE)])) == event(DONE)
    split = b'data: {"choices":[],\ndata: "usage":{}}\n\n'
    assert b"".join(sifted([split])) == split, "nobody sends that; it is not guessed at"


def test_what_is_not_ended_is_not_lost() -> None:
    sieve = UsageSieve()
    assert sieve.sift(event(choice()) + b'data: {"choi') == event(choice())
    assert sieve.end() == b'data: {"choi'
    assert sieve.end() == b""
    sieve = UsageSieve()
    assert sieve.sift(event(USAGE_ONLY)[:-1]) == b""
    assert sieve.end() == b"", "a server may leave the last blank line out"


def test_a_long_event_goes_on_as_it_comes() -> None:
    sieve = UsageSieve()
    long = event(choice("x" * 60_000))
    shown = [sieve.sift(long[i : i + 10_000]) for i in range(0, len(long), 10_000)]
    assert b"".join(shown) == long
    assert [len(one) for one in shown[:4]] == [0, 20_000, 10_000, 10_000], "only its beginning waits"
    assert sieve.sift(event(USAGE_ONLY)) == b""
    assert sieve.sift(event(DONE)) == event(DONE)


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
def test_the_end_of_a_long_event_may_be_cut(end: bytes) -> None:
    long, last = event(choice("x" * 20_000), end), event(USAGE_ONLY, end)
    for back in range(5):
        sieve = UsageSieve()
        stream = long + last
        cut = len(long) - back
        assert sieve.sift(stream[:cut]) + sieve.sift(stream[cut:]) + sieve.end() == long


def test_timings_that_go_with_it_are_noticed() -> None:
    for payload, noticed in ((USAGE_ONLY, False), ({**USAGE_ONLY, "timings": {"cache_n": 1}}, True)):
        sieve = UsageSieve()
        assert sieve.sift(event(payload)) == b""
        assert sieve.took_timings is noticed

"""Reading of streams and answers as they go by: usage and the end mark, however the network cuts them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.dialects.openai import ChatStream, read_answer
from gateway.observe import JsonObserver, data_lines

USAGE = {"prompt_tokens": 100, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 64}}
PLAIN = {"choices": [{"index": 0, "delta": {"content": "é🙂"}}], "usage": None}


def sse(*payloads: Any, end: bytes = b"\n") -> bytes:
    lines = [p if isinstance(p, bytes) else json.dumps(p, ensure_ascii=False).encode() for p in payloads]
    return b"".join(b"data: " + line + end + end for line in lines)


def observed(*pieces: bytes) -> ChatStream:
    observer = ChatStream()
    for piece in pieces:
        observer.feed(piece)
    observer.finish()
    return observer


@pytest.mark.parametrize("end", [b"\n", b"\r\n"], ids=["LF", "CRLF"])
@pytest.mark.parametrize("shape", ["own chunk", "last content chunk"])
def test_o18_usage_is_read_wherever_the_stream_is_cut(shape: str, end: bytes) -> None:
    if shape == "own chunk":  # O22 (a)
        stream = sse(PLAIN, PLAIN, {"choices": [], "usage": USAGE}, b"[DONE]", end=end)
    else:  # O22 (b)
        stream = sse(PLAIN, {**PLAIN, "usage": USAGE}, b"[DONE]", end=end)
    whole = observed(stream)
    for cut in range(len(stream) + 1):
        observer = observed(stream[:cut], stream[cut:])
        assert observer.usage is not None, cut
        assert (observer.usage.prompt_tokens, observer.usage.completion_tokens) == (100, 7)
        assert observer.usage.cached_tokens == 64
        assert observer.done, cut
        assert observer.chunks == whole.chunks, cut
        assert observer.at_boundary


@pytest.mark.parametrize("end", [b"\n", b"\r\n"], ids=["LF", "CRLF"])
def test_o18_one_byte_at_a_time(end: bytes) -> None:
    stream = sse(PLAIN, PLAIN, {"choices": [], "usage": USAGE}, b"[DONE]", end=end)
    observer = observed(*(stream[i : i + 1] for i in range(len(stream))))
    assert observer.usage == observed(stream).usage is not None
    assert observer.done
    assert observer.chunks == 3


@pytest.mark.parametrize("end", [b"\n", b"\r\n"], ids=["LF", "CRLF"])
def test_a_half_sent_event_is_no_boundary(end: bytes) -> None:
    stream = sse(PLAIN, end=end)
    for cut in range(1, len(stream)):
        observer = ChatStream()
        observer.feed(stream + stream[:cut])
        assert not observer.at_boundary, cut
    observer = ChatStream()
    assert observer.at_boundary
    observer.feed(stream)
    assert observer.at_boundary


def test_the_last_usage_counts() -> None:
    chunks = [{**PLAIN, "usage": {**USAGE, "completion_tokens": n}} for n in (1, 2, 3)]
    usage = observed(sse(*chunks, PLAIN, b"[DONE]")).usage
    assert usage is not None
    assert usage.completion_tokens == 3


@pytest.mark.parametrize(
    "content",
    ['"usage": {"prompt_tokens": 5}', 'data: {"usage": {"prompt_tokens": 5}}', '\n\ndata: {"usage": {}}\n\n', "usage"],
)
def test_text_that_looks_like_usage_is_text(content: str) -> None:
    event = {"choices": [{"index": 0, "delta": {"content": content, "usage": "x"}}]}
    assert observed(sse(event, b"[DONE]")).usage is None
    nested = {"choices": [{"index": 0, "delta": {"usage": {"prompt_tokens": 5}}}]}
    assert observed(sse(nested, b"[DONE]")).usage is None


@pytest.mark.parametrize(
    "usage",
    ["many", 5, [], {"prompt_tokens": "5"}, {"prompt_tokens": None}, {"prompt_tokens": 5, "prompt_tokens_details": 1}],
)
def test_odd_usage_is_no_usage(usage: Any) -> None:
    observer = observed(sse({"usage": USAGE}, {"usage": usage}, b"[DONE]"))
    assert observer.usage is not None
    assert observer.usage.prompt_tokens == 100, "the odd one is passed over"
    assert observer.done


@pytest.mark.parametrize("details", [None, {}, {"cached_tokens": None}, "absent"])
def test_cached_tokens_may_be_unknown(details: Any) -> None:
    usage = {"prompt_tokens": 5, **({} if details == "absent" else {"prompt_tokens_details": details})}
    for read in (observed(sse({"usage": usage})).usage, whole({"usage": usage}).usage):
        assert read is not None
        assert read.cached_tokens is None
        assert read.completion_tokens is None


@pytest.mark.parametrize("stream", [b"data: [DONE]\n\n", b"data:[DONE]\n\n", b"data: [DONE]\n", b"data: [DONE]"])
def test_the_end_mark_in_its_spellings(stream: bytes) -> None:
    observer = observed(sse(PLAIN) + stream)
    assert observer.done
    assert observer.chunks == 1


@pytest.mark.parametrize("stream", [b"", sse(PLAIN), sse({"content": "data: [DONE]"}), b": [DONE]\n\n", b"[DONE]\n\n"])
def test_no_end_mark(stream: bytes) -> None:
    assert not observed(stream).done


def test_comments_names_and_ids_are_passed_over() -> None:
    stream = b": ping\n\nevent: x\nid: 5\n" + sse({"usage": USAGE}) + b": ping\n\n" + sse(b"[DONE]")
    observer = observed(stream)
    assert observer.usage is not None
    assert observer.done


def test_an_event_without_end_is_not_kept_without_bound() -> None:
    observer = ChatStream()
    observer.feed(b"data: ")
    for _ in range(64):
        observer.feed(b"x" * 65_536)
        assert len(observer._carry) <= 1 << 20
    assert not observer.at_boundary
    observer.feed(b"\n\n" + sse({"usage": USAGE}, b"[DONE]"))
    assert observer.usage is not None
    assert observer.done


def whole(body: Any, cut: int = 1) -> JsonObserver:
    observer = JsonObserver(read_answer)
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    observer.feed(raw[:cut])
    observer.feed(raw[cut:])
    observer.finish()
    return observer


def test_usage_of_a_whole_answer_wherever_it_is_cut() -> None:
    raw = json.dumps({"choices": [{"message": {"content": '"usage": {}'}}], "usage": USAGE}).encode()
    for cut in range(len(raw)):
        usage = whole(raw, cut).usage
        assert usage is not None
        assert usage.cached_tokens == 64


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"null", b"\xff", b"[" * 100_000, b'{"usage": null}'])
def test_an_answer_that_is_no_json_object_has_no_usage(raw: bytes) -> None:
    assert whole(raw).usage is None


def test_a_huge_answer_is_passed_over() -> None:
    observer = JsonObserver(read_answer)
    for _ in range(9):
        observer.feed(b" " * (1 << 20))
    assert not observer._parts
    observer.feed(json.dumps({"usage": USAGE}).encode())
    observer.finish()
    assert observer.usage is None


def test_a_shorter_bound() -> None:
    raw = json.dumps({"usage": USAGE}).encode()
    for bound, seen in ((len(raw), True), (len(raw) - 1, False)):
        observer = JsonObserver(read_answer, bound)
        observer.feed(raw)
        observer.finish()
        assert (observer.usage is not None) is seen


def test_lines_with_a_mark() -> None:
    events = b"event: x\r\ndata: 1 z\r\n\r\ndata:2 z\n\ndata: b\n\n: data: z\nid: z\n"
    assert list(data_lines(events, b"z")) == [b" 1 z", b"2 z"]


TIMINGS = {"cache_n": 30, "prompt_n": 12, "predicted_n": 5}


@pytest.mark.parametrize("usage", [{}, {"usage": None}])
def test_timings_tell_what_usage_does_not(usage: dict[str, Any]) -> None:
    """llama.cpp has them in the last chunk, asked for usage or not."""
    stream = sse(PLAIN, {"choices": [{"index": 0, "delta": {}}], **usage, "timings": TIMINGS}, b"[DONE]")
    for cut in range(len(stream)):
        assert observed(stream[:cut], stream[cut:]).usage == (42, 5, 30), cut
    assert whole({"choices": [], **usage, "timings": TIMINGS}).usage == (42, 5, 30)


def test_usage_goes_before_timings() -> None:
    own = {"usage": {"prompt_tokens": 100, "completion_tokens": 7}, "timings": TIMINGS}
    assert whole(own).usage == (100, 7, 30), "older builds have the cached ones in timings alone"
    assert whole({**own, "usage": USAGE}).usage == (100, 7, 64)
    for odd in (None, 5, {}, {"cache_n": "1", "prompt_n": 1}):
        assert whole({"timings": odd}).usage is None
        assert whole({"usage": USAGE, "timings": odd}).usage == (100, 7, 64)

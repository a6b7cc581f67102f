"""Streams and answers of the Responses API, on the part alone."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.transport import ResponseHead
from gateway.dialects.responses import Responses, ResponseStream
from gateway.observe import JsonObserver, Usage
from vocabulary.errors import UpstreamTruncated

USAGE = {"input_tokens": 100, "input_tokens_details": {"cached_tokens": 64}, "output_tokens": 7, "total_tokens": 107}


def events(*payloads: dict[str, Any], end: bytes = b"\n") -> bytes:
    return b"".join(
        b"event: "
        + payload["type"].encode()
        + end
        + b"data: "
        + json.dumps(payload, ensure_ascii=False).encode()
        + end
        + end
        for payload in payloads
    )


def state(kind: str, usage: Any = None, **fields: Any) -> dict[str, Any]:
    return {"type": f"response.{kind}", "response": {"id": "resp_1", "usage": usage, "output": [], **fields}}


def delta(text: str) -> dict[str, Any]:
    return {"type": "response.output_text.delta", "delta": text}


WHOLE = (
    state("created"),
    state("in_progress"),
    delta('"response": {"id": "x", "usage": {"input_tokens": 5}} é🙂'),
    delta("response.completed"),
    state("completed", USAGE),
)


def observed(*pieces: bytes) -> ResponseStream:
    observer = ResponseStream()
    for piece in pieces:
        observer.feed(piece)
    observer.finish()
    return observer


@pytest.mark.parametrize("ending", [b"\n", b"\r\n"], ids=["LF", "CRLF"])
def test_o18_usage_id_and_end_are_found_wherever_the_stream_is_cut(ending: bytes) -> None:
    stream = events(*WHOLE, end=ending)
    for cut in range(len(stream) + 1):
        observer = observed(stream[:cut], stream[cut:])
        assert observer.usage == Usage(100, 7, 64), cut
        assert (observer.done, observer.answer_id, observer.chunks) == (True, "resp_1", 2), cut


@given(st.lists(st.integers(0, len(events(*WHOLE))), max_size=12))
def test_o18_in_any_pieces(cuts: list[int]) -> None:
    stream = events(*WHOLE)
    places = [0, *sorted(cuts), len(stream)]
    observer = observed(*(stream[a:b] for a, b in pairwise(places)))
    assert (observer.usage, observer.done, observer.answer_id) == (Usage(100, 7, 64), True, "resp_1")


@pytest.mark.parametrize(
    ("last", "done"),
    [
        (state("completed", USAGE), True),
        (state("incomplete", USAGE), True),
        (state("failed"), True),
        (state("queued"), False),
        ({"type": "error", "message": "no"}, False),
        (delta("response.completed"), False),
    ],
)
def test_the_end(last: dict[str, Any], done: bool) -> None:
    observer = observed(events(state("created"), last))
    assert observer.done is done
    assert observer.answer_id == "resp_1"


@pytest.mark.parametrize(
    "usage", ["many", 5, [], {"input_tokens": "5"}, {"input_tokens": 5, "input_tokens_details": 1}]
)
def test_odd_usage_is_no_usage(usage: Any) -> None:
    assert observed(events(state("created"), state("completed", usage))).usage is None


def test_a_whole_response() -> None:
    observer = Responses().observer(ResponseHead(200, [], None, b"application/json"))
    assert isinstance(observer, JsonObserver)
    observer.feed(json.dumps({"id": "resp_2", "object": "response", "usage": USAGE}).encode())
    observer.finish()
    assert (observer.usage, observer.answer_id) == (Usage(100, 7, 64), "resp_2")
    broken = Responses().observer(ResponseHead(200, [], None, b"application/json"))
    broken.feed(b'{"id": 5}')
    broken.finish()
    assert (broken.usage, broken.answer_id) == (None, None)


def test_the_error_event_serves_readers_of_both_kinds() -> None:
    event = Responses().error_event(UpstreamTruncated("cut"))
    name, data, *rest = event.split(b"\n")
    assert (name, rest) == (b"event: error", [b"", b""])
    told = json.loads(data.removeprefix(b"data: "))
    assert (told["type"], told["code"], told["message"]) == ("error", "upstream_truncated", "cut")
    assert told["error"]["code"] == "upstream_truncated"

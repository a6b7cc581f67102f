"""Anthropic's errors and streams, on the part alone; tests/integration/test_messages.py has the real client."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.transport import ResponseHead
from gateway.dialects.anthropic import Anthropic, MessageStream
from gateway.observe import JsonObserver, Observer, Usage
from vocabulary.errors import (
    BodyTooLarge,
    InvalidBody,
    ModelNotAllowed,
    ModelNotFound,
    NoBackendAvailable,
    QuotaExceeded,
    RequestFailed,
    Unauthenticated,
    UpstreamFirstByteTimeout,
    UpstreamTruncated,
)


def events(*payloads: dict[str, Any], end: bytes = b"\n", names: bool = True) -> bytes:
    wire = []
    for payload in payloads:
        text = json.dumps(payload, ensure_ascii=False).encode()
        name = b"event: " + payload["type"].encode() + end if names else b""
        wire.append(name + b"data: " + text + end + end)
    return b"".join(wire)


def start(**usage: Any) -> dict[str, Any]:
    return {"type": "message_start", "message": {"id": "msg_1", "role": "assistant", "usage": usage}}


def delta(text: str) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}


def end(**usage: Any) -> dict[str, Any]:
    return {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage}


STOP = {"type": "message_stop"}
WHOLE = (
    start(input_tokens=5, cache_read_input_tokens=60, cache_creation_input_tokens=35, output_tokens=1),
    {"type": "ping"},
    delta('say "usage": {"input_tokens": 9} é🙂'),
    delta("event: message_stop\n\n"),
    end(output_tokens=7),
    STOP,
)


def observed(*pieces: bytes) -> MessageStream:
    observer = MessageStream()
    for piece in pieces:
        observer.feed(piece)
    observer.finish()
    return observer


@pytest.mark.parametrize("ending", [b"\n", b"\r\n"], ids=["LF", "CRLF"])
def test_o18_usage_and_the_end_are_found_wherever_the_stream_is_cut(ending: bytes) -> None:
    stream = events(*WHOLE, end=ending)
    for cut in range(len(stream) + 1):
        observer = observed(stream[:cut], stream[cut:])
        assert observer.usage == Usage(100, 7, 60), cut
        assert observer.done, cut
        assert observer.chunks == 2, cut
        assert observer.at_boundary


@given(st.lists(st.integers(0, len(events(*WHOLE))), max_size=12))
def test_o18_in_any_pieces(cuts: list[int]) -> None:
    stream = events(*WHOLE)
    places = [0, *sorted(cuts), len(stream)]
    observer = observed(*(stream[a:b] for a, b in pairwise(places)))
    assert (observer.usage, observer.done, observer.chunks) == (Usage(100, 7, 60), True, 2)


@pytest.mark.parametrize(
    ("told", "usage"),
    [
        ([start(input_tokens=9, output_tokens=0), end(output_tokens=3)], Usage(9, 3, None)),
        # vLLM tells the prompt again at the end, and null for what it does not count
        (
            [start(input_tokens=9, cache_read_input_tokens=None), end(input_tokens=9, output_tokens=3)],
            Usage(9, 3, None),
        ),
        # others know it only then
        ([start(input_tokens=0, output_tokens=0), end(input_tokens=9, output_tokens=3)], Usage(9, 3, None)),
        ([start(input_tokens=9), end(input_tokens=0, output_tokens=3)], Usage(9, 3, None)),
        # all of them at once, or split only at the end
        ([start(input_tokens=9), end(input_tokens=2, cache_read_input_tokens=7, output_tokens=3)], Usage(9, 3, 7)),
        ([start(input_tokens=9, cache_read_input_tokens=0), end(output_tokens=3)], Usage(9, 3, 0)),
        ([start(input_tokens=9)], Usage(9, None, None)),
        ([end(output_tokens=1), end(output_tokens=3)], Usage(0, 3, None)),
    ],
)
def test_what_engines_tell_of_usage(told: list[dict[str, Any]], usage: Usage) -> None:
    assert observed(events(*told, STOP)).usage == usage


@pytest.mark.parametrize("usage", ["many", 5, [], {"input_tokens": "5"}, None])
def test_odd_usage_is_no_usage(usage: Any) -> None:
    odd = {"type": "message_delta", "usage": usage}
    assert observed(events(start(input_tokens=9, output_tokens=2), odd, STOP)).usage == Usage(9, 2, None)


@pytest.mark.parametrize(
    ("stream", "done"),
    [
        (events(STOP), True),
        (events(STOP, names=False), True),
        (b"event:message_stop\ndata:{}\n\n", True),
        (b'event: message_stop\ndata: {"type":"message_stop"}', True),
        (events(delta("message_stop")), False),
        (b": event: message_stop\n\n", False),
        (b"", False),
    ],
)
def test_the_end_mark(stream: bytes, done: bool) -> None:
    assert observed(stream).done is done


def head(content_type: bytes, status: int = 200) -> ResponseHead:
    return ResponseHead(status, [], None, content_type)


def test_a_whole_message() -> None:
    observer: Observer = Anthropic().observer(head(b"application/json"))
    assert isinstance(observer, JsonObserver)
    usage = {"input_tokens": 2, "cache_read_input_tokens": 7, "output_tokens": 3}
    raw = json.dumps({"type": "message", "content": [{"usage": {}}], "usage": usage}).encode()
    for byte in raw:
        observer.feed(bytes((byte,)))
    observer.finish()
    assert observer.usage == Usage(9, 3, 7)
    assert isinstance(Anthropic().observer(head(b"text/event-stream")), MessageStream)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (InvalidBody("no"), "invalid_request_error"),
        (Unauthenticated("no"), "authentication_error"),
        (ModelNotAllowed("no"), "permission_error"),
        (ModelNotFound("no"), "not_found_error"),
        (BodyTooLarge("no"), "request_too_large"),
        (QuotaExceeded("no", 1.0), "rate_limit_error"),
        (RequestFailed("no"), "api_error"),
        (UpstreamTruncated("no"), "api_error"),
        (NoBackendAvailable("no"), "overloaded_error"),
        (UpstreamFirstByteTimeout("no"), "timeout_error"),
    ],
)
def test_errors(error: RequestFailed, kind: str) -> None:
    body = json.loads(Anthropic().error_body(error, b"req-1"))
    assert body["type"] == "error"
    assert body["request_id"] == "req-1"
    assert body["error"] == {"type": kind, "message": "no", "code": error.code, "param": None}
    event = Anthropic().error_event(error)
    name, _, data = event.partition(b"\n")
    assert name == b"event: error"
    assert json.loads(data.removeprefix(b"data: ")) == {"type": "error", "error": body["error"]}
    assert event.endswith(b"\n\n")
    assert event.count(b"\n") == 3


def test_a_broken_event_becomes_a_ping() -> None:
    whole = events(delta("text"))
    for cut in range(1, len(whole) - 1):
        broken = whole[:cut] + Anthropic().break_off
        assert broken.endswith(b"\n\n")
        name = [line for line in broken.split(b"\n") if line.startswith(b"event:")][-1]
        assert name == b"event: ping", "the last name of an event counts"

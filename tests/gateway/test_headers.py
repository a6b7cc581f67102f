"""Which headers pass, and the heads and errors that the hot path writes itself."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from gateway.headers import (
    ResponseLines,
    error_body,
    error_event,
    response_head,
    trailer_lines,
    upstream_header_lines,
)
from vocabulary.errors import ModelMissing, UpstreamTruncated

if TYPE_CHECKING:
    from backends.transport import Headers


def upstream(*pairs: tuple[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    lines = upstream_header_lines(list(pairs))
    if not lines:
        return []
    assert lines.endswith(b"\r\n")
    split = [line.split(b": ", 1) for line in lines[:-2].split(b"\r\n")]
    return [(name, value) for name, value in split]


def test_request_headers_pass_in_order() -> None:
    assert upstream((b"accept", b"*/*"), (b"x-a", b"1"), (b"x-a", b"2"), (b"x-empty", b"")) == [
        (b"accept", b"*/*"),
        (b"x-a", b"1"),
        (b"x-a", b"2"),
        (b"x-empty", b""),
    ]


@pytest.mark.parametrize(
    "name",
    [
        b"authorization",
        b"x-api-key",
        b"api-key",
        b"cookie",
        b"proxy-authorization",
        b"host",
        b"content-length",
        b"transfer-encoding",
        b"te",
        b"trailer",
        b"upgrade",
        b"keep-alive",
        b"proxy-connection",
        b"expect",
        b"x-request-id",
        b"x-warmroute-backend",
        b"x-warmroute-anything",
    ],
)
def test_what_never_reaches_a_backend(name: bytes) -> None:
    assert upstream((name, b"from the client")) == []


@pytest.mark.parametrize(
    "connection", [b"close", b"keep-alive", b"Keep-Alive", b"", b"x-hop", b"close, X-Hop ,,", b"x-hop,te"]
)
def test_connection_options_of_a_request(connection: bytes) -> None:
    got = upstream((b"x-hop", b"1"), (b"connection", connection), (b"x-kept", b"2"))
    assert (b"x-kept", b"2") in got
    assert ((b"x-hop", b"1") in got) is (b"hop" not in connection.lower())
    assert all(name != b"connection" for name, _ in got)


def head(headers: Headers, status: int = 200) -> list[bytes]:
    lines = ResponseLines().of(headers)
    written = response_head(status, lines, b"x-own: 1\r\n", b"content-length: 0\r\n")
    assert written.endswith(b"\r\n\r\n")
    return written[:-4].split(b"\r\n")


def test_response_headers_pass_in_order_and_case_and_ours_follow() -> None:
    assert head([(b"X-Engine", b"E"), (b"Set-Cookie", b"a"), (b"Set-Cookie", b"b")]) == [
        b"HTTP/1.1 200 OK",
        b"X-Engine: E",
        b"Set-Cookie: a",
        b"Set-Cookie: b",
        b"x-own: 1",
        b"content-length: 0",
    ]


def test_framing_hop_by_hop_and_internal_names_of_a_response_do_not_pass() -> None:
    names = [
        b"Content-Length",
        b"Transfer-Encoding",
        b"Connection",
        b"Keep-Alive",
        b"X-Warmroute-Backend",
        b"X-Request-Id",
    ]
    assert head([(name, b"close") for name in names]) == [b"HTTP/1.1 200 OK", b"x-own: 1", b"content-length: 0"]


@pytest.mark.parametrize(
    "values", [[b"x-a, X-B"], [b"x-a", b"x-b"], [b"close", b"X-A,x-b"], [b"x-a,x-b", b"keep-alive"]]
)
def test_fields_that_a_backend_declares_hop_by_hop_do_not_pass(values: list[bytes]) -> None:
    headers = [(b"X-A", b"1"), *((b"Connection", value) for value in values), (b"x-b", b"2"), (b"x-c", b"3")]
    assert head(headers)[1:] == [b"x-c: 3", b"x-own: 1", b"content-length: 0"]


@pytest.mark.parametrize(
    ("status", "line"),
    [
        (404, b"HTTP/1.1 404 Not Found"),
        (429, b"HTTP/1.1 429 Too Many Requests"),
        (299, b"HTTP/1.1 299 "),
        (599, b"HTTP/1.1 599 "),
        (799, b"HTTP/1.1 799 "),
    ],
)
def test_status_lines(status: int, line: bytes) -> None:
    assert head([], status)[0] == line


def test_trailers_pass_as_headers_do() -> None:
    assert trailer_lines([(b"X-T", b"1"), (b"Content-Length", b"5"), (b"X-Warmroute-A", b"2")]) == b"X-T: 1\r\n"


def test_errors_in_both_forms() -> None:
    body = json.loads(error_body(ModelMissing('say "model"\n', param="model")))
    assert body == {
        "error": {
            "message": 'say "model"\n',
            "type": "invalid_request_error",
            "param": "model",
            "code": "model_missing",
        }
    }
    event = error_event(UpstreamTruncated("cut\n\nshort"))
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    assert event.count(b"\n") == 2, "one event, whatever the text"
    error = json.loads(event[6:])["error"]
    assert error == {"message": "cut\n\nshort", "type": "upstream_error", "code": "upstream_truncated"}


def test_response_lines_are_written_anew_when_anything_differs() -> None:
    lines = ResponseLines()
    first: Headers = [(b"A", b"1"), (b"connection", b"keep-alive")]
    assert lines.of(first) == lines.of(list(first)) == b"A: 1\r\n"
    assert lines.of([(b"a", b"1")]) == b"a: 1\r\n"
    assert lines.of([(b"A", b"2")]) == b"A: 2\r\n"
    assert lines.of([]) == b""

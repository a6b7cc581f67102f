"""Which headers pass, and the heads and errors that the hot path writes itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gateway.headers import (
    ResponseLines,
    credential_lines,
    response_head,
    trailer_lines,
    upstream_header_lines,
)

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
        b"x-data-parallel-rank",
        b"x-dp-rank",
        b"x-prefill-dp-rank",
        b"x-worker-instance-id",
        b"x-dynamo-worker-instance-id",
        b"x-prefill-instance-id",
        b"x-gateway-destination-endpoint",
        b"x-gateway-destination-endpoint-subset",
        b"x-gateway-model-name-rewrite",
        b"x-llm-d-model-name-rewrite",
        b"x-prefiller-host-port",
        b"x-encoder-hosts-ports",
        b"x-session-token",
        b"x-smg-routing-key",
        b"x-smg-target-worker",
        b"x-vllm-priority",
        b"forwarded",
        b"x-forwarded-for",
        b"x-forwarded-host",
        b"x-forwarded-anything",
        b"x-real-ip",
        b"x_warmroute_backend",
        b"x_api_key",
        b"x-api_key",
        b"transfer_encoding",
        b"content_length",
        b"x_data_parallel_rank",
        b"x_smg-routing_key",
        b"x_forwarded_for",
        b"x_real_ip",
    ],
)
def test_what_never_reaches_a_backend(name: bytes) -> None:
    assert upstream((name, b"from the client")) == []


def test_a_believed_proxys_word_passes_and_the_proxy_is_added() -> None:
    headers = [
        (b"x-forwarded-for", b"192.0.2.1"),
        (b"x-forwarded-proto", b"https"),
        (b"x-forwarded-for", b"192.0.2.2, 192.0.2.3"),
        (b"x-real-ip", b"192.0.2.1"),
        (b"forwarded", b"for=192.0.2.1"),
        (b"x_forwarded_for", b"198.51.100.1"),
        (b"x_real_ip", b"198.51.100.1"),
        (b"x-warmroute-class", b"batch"),
    ]
    assert upstream_header_lines(headers, b"10.0.0.1") == (
        b"x-forwarded-proto: https\r\n"
        b"x-real-ip: 192.0.2.1\r\n"
        b"forwarded: for=192.0.2.1\r\n"
        b"x-forwarded-for: 192.0.2.1, 192.0.2.2, 192.0.2.3, 10.0.0.1\r\n"
    )
    assert upstream_header_lines([], b"10.0.0.1") == b"x-forwarded-for: 10.0.0.1\r\n"
    assert upstream_header_lines([(b"connection", b"x-a"), (b"x-a", b"1")], b"::1") == b"x-forwarded-for: ::1\r\n"


def test_names_that_only_resemble_others_pass() -> None:
    names = (b"x_custom", b"x-forwarded", b"x-warmroute", b"x-smg", b"x-data-parallel-ranks", b"my-authorization")
    assert upstream(*((name, b"1") for name in names)) == [(name, b"1") for name in names]


def test_credentials_as_lines() -> None:
    headers = [(b"x-api-key", b"k"), (b"cookie", b"c"), (b"authorization", b"Bearer b"), (b"api-key", b"a")]
    assert credential_lines(headers) == b"x-api-key: k\r\nauthorization: Bearer b\r\n"


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
        b"X_Warmroute_Decision",
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


def test_response_lines_are_written_anew_when_anything_differs() -> None:
    lines = ResponseLines()
    first: Headers = [(b"A", b"1"), (b"connection", b"keep-alive")]
    assert lines.of(first) == lines.of(list(first)) == b"A: 1\r\n"
    assert lines.of([(b"a", b"1")]) == b"a: 1\r\n"
    assert lines.of([(b"A", b"2")]) == b"A: 2\r\n"
    assert lines.of([]) == b""

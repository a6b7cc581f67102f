"""Which headers pass, and the response heads that the hot path writes itself.

Everything passes unchanged except hop-by-hop fields, framing, credentials and the gateway's own `x-warmroute-*` names:
an internal header from outside never gets in (requests), and never comes out but from us (responses).
"""

from __future__ import annotations

import http
import json
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from backends.transport import Headers
    from vocabulary.errors import RequestFailed

HOP_BY_HOP: Final = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
"""RFC 9110 section 7.6.1, and the old names that clients still send."""

_CREDENTIALS: Final = frozenset((b"authorization", b"x-api-key", b"api-key", b"cookie"))
_REQUEST_DROPPED: Final = HOP_BY_HOP | _CREDENTIALS | {b"host", b"content-length", b"expect", b"x-request-id"}
_RESPONSE_DROPPED: Final = HOP_BY_HOP | {b"content-length", b"x-request-id"}
_INTERNAL: Final = b"x-warmroute-"
_PLAIN_CONNECTION: Final = (b"close", b"keep-alive")

STATUS_LINES: Final = {
    **{status: b"HTTP/1.1 %d \r\n" % status for status in range(200, 600)},
    **{status.value: b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode()) for status in http.HTTPStatus},
}


def upstream_header_lines(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """What a backend gets of a client's headers (names in lower case), as lines."""
    lines: list[bytes] = []
    for name, value in headers:
        if name in _REQUEST_DROPPED or name.startswith(_INTERNAL):
            if name == b"connection" and value.lower() not in _PLAIN_CONNECTION:
                return upstream_header_lines(_without_named(headers))
        else:
            lines += (name, b": ", value, b"\r\n")
    return b"".join(lines)


def _without_named(headers: Sequence[tuple[bytes, bytes]]) -> Headers:
    """Without `connection` and the fields that it declares hop-by-hop."""
    named = {b"connection"}
    for name, value in headers:
        if name.lower() == b"connection":
            named.update(token.strip().lower() for token in value.split(b","))
    return [(name, value) for name, value in headers if name.lower() not in named]


def response_head(status: int, passed: bytes, own: bytes, framing: bytes) -> bytes:
    """The head as the client gets it: the backend's lines that pass, `own` lines, then the framing lines."""
    status_line = STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status
    return b"%b%b%b%b\r\n" % (status_line, passed, own, framing)


def response_header_lines(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """What a client gets of a backend's headers, in their order and case."""
    parts: list[bytes] = []
    for name, value in headers:
        lower = name.lower()
        if lower in _RESPONSE_DROPPED or lower.startswith(_INTERNAL):
            if lower == b"connection" and value.lower() not in _PLAIN_CONNECTION:
                return response_header_lines(_without_named(headers))
        else:
            parts += (name, b": ", value, b"\r\n")
    return b"".join(parts)


class ResponseLines:
    """Of one backend, which sends the same headers with most responses: comparing is cheaper than writing them anew."""

    __slots__ = ("_headers", "_lines")

    def __init__(self) -> None:
        self._headers: Sequence[tuple[bytes, bytes]] = ()
        self._lines = b""

    def of(self, headers: Sequence[tuple[bytes, bytes]]) -> bytes:
        if headers != self._headers:
            self._lines = response_header_lines(headers)
            self._headers = headers
        return self._lines


def trailer_lines(trailers: Headers) -> bytes:
    return b"".join(
        b"%b: %b\r\n" % (name, value)
        for name, value in trailers
        if name.lower() not in _RESPONSE_DROPPED and not name.lower().startswith(_INTERNAL)
    )


def error_body(error: RequestFailed) -> bytes:
    """The OpenAI shape."""
    fields = {"message": str(error), "type": error.kind, "param": error.param, "code": error.code}
    return json.dumps({"error": fields}).encode()


def error_event(error: RequestFailed) -> bytes:
    """The in-band form, for a stream whose head is out."""
    fields = {"message": str(error), "type": error.kind, "code": error.code}
    return b"data: " + json.dumps({"error": fields}).encode() + b"\n\n"

"""A request's headers, read in one pass for all who need something of them.

Clients on a kept connection send the same headers with every request but for the length, so a connection remembers the
last ones: comparing is cheaper than reading.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gateway.headers import upstream_header_lines
from gateway.request_ids import fit_request_id
from gateway.session_id import from_headers

if TYPE_CHECKING:
    from backends.transport import Headers


class RequestHead(NamedTuple):
    lines: bytes
    """What a backend gets, without the request id."""
    request_id: bytes | None
    """The client's own, if it is fit to be logged."""
    content_type: bytes | None
    session_id: bytes | None
    """Raw, as the client names its session."""


def read_request_head(headers: Headers) -> RequestHead:
    """`headers`: names in lower case, `content-length` may be left out."""
    request_id = content_type = None
    for name, value in headers:
        if name == b"content-type":
            content_type = value
        elif name == b"x-request-id":
            request_id = fit_request_id(value)
    return RequestHead(upstream_header_lines(headers), request_id, content_type, from_headers(headers))


class RequestHeadReader:
    """Of one connection."""

    __slots__ = ("_head", "_headers")

    def __init__(self) -> None:
        self._headers: Headers | None = None
        self._head: RequestHead

    def read(self, headers: Headers) -> RequestHead:
        if headers != self._headers:
            self._head = read_request_head(headers)
            self._headers = headers
        return self._head

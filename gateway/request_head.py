"""A request's headers, read in one pass for all who need something of them.

Clients on a kept connection send the same headers with every request but for the length, so a connection remembers the
last ones: comparing is cheaper than reading. What access made of them is remembered with them, as long as it holds.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from gateway.headers import credential_lines, upstream_header_lines
from gateway.request_ids import fit_request_id
from gateway.session_id import from_headers

if TYPE_CHECKING:
    from backends.transport import Headers
    from gateway.access.access import Access
    from gateway.access.caller import Caller
    from gateway.access.credential import Refusal


_CODING: Final = re.compile(rb"^accept-encoding: .*\r\n", re.MULTILINE)


class RequestHead(NamedTuple):
    lines: bytes
    """What a backend gets, without the request id."""
    request_id: bytes | None
    """The client's own, if it is fit to be logged."""
    content_type: bytes | None
    session_id: bytes | None
    """Raw, as the client names its session."""
    caller: Caller | None
    """None: nobody who may come in; then `refusal` says why."""
    refusal: Refusal | None = None
    credentials: bytes = b""
    """Lines that follow to a backend that has no credential of its own."""
    until_s: float = math.inf
    """`caller` may be believed until then, by `Access.wall_clock`."""
    uncoded_lines: bytes | None = None
    """`lines` for an answer that the gateway must be able to read; None: those do as they are."""


def read_request_head(headers: Headers, access: Access, peer: str | None = None) -> RequestHead:
    """`headers`: names in lower case, `content-length` may be left out. `peer`: the other end of the connection."""
    request_id = content_type = None
    for name, value in headers:
        if name == b"content-type":
            content_type = value
        elif name == b"x-request-id":
            request_id = fit_request_id(value)
    caller, until_s, refusal = access.identify(headers)
    lines = upstream_header_lines(headers, peer.encode() if peer is not None and access.trusts(peer) else None)
    return RequestHead(
        lines,
        request_id,
        content_type,
        from_headers(headers),
        caller,
        refusal,
        credential_lines(headers) if access.forward_credentials else b"",
        until_s,
        _CODING.sub(b"", lines) if b"accept-encoding: " in lines else None,
    )


class RequestHeadReader:
    """Of one connection, whose other end is `peer`."""

    __slots__ = ("_access", "_expires", "_generation", "_head", "_headers", "_peer")

    def __init__(self, access: Access, peer: str | None) -> None:
        self._access = access
        self._peer = peer
        self._generation = -1
        self._headers: Headers | None = None
        self._head: RequestHead
        self._expires = False

    def read(self, headers: Headers) -> RequestHead:
        access = self._access
        if (
            headers != self._headers
            or access.generation != self._generation
            or (self._expires and access.wall_clock() >= self._head.until_s)
        ):
            self._head = head = read_request_head(headers, access, self._peer)
            self._headers = headers
            self._generation = access.generation
            self._expires = head.until_s != math.inf
        return self._head

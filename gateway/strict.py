"""What an HTTP/1.1 parser lets through and a gateway must not: heads that two readers could read in two ways, or that
are too large. The parser itself refuses bad framing, line ends and characters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import httptools

from vocabulary.errors import BadHttp, HeadTooLarge, UnsupportedCoding

if TYPE_CHECKING:
    from backends.transport import Headers

_BYTES_PER_FIELD: Final = 32
"""Counted beside name and value, as RFC 9113 section 6.5.2 does: many tiny fields cost memory too."""


def origin_form(target: bytes, method: bytes) -> bytes:
    """Path and query of a request target in any of its forms (RFC 9112 section 3.2). Raises BadHttp."""
    if b"#" in target:
        raise BadHttp("the request target has a fragment")
    if target.startswith(b"/") or (target == b"*" and method == b"OPTIONS"):
        return target
    if target[:8].lower().startswith((b"http://", b"https://")):
        try:
            parts = httptools.parse_url(target)
        except httptools.HttpParserError:
            raise BadHttp("the request target is not a readable URL") from None
        return (parts.path or b"/") + (b"?" + parts.query if parts.query is not None else b"")
    raise BadHttp("the request target is neither a path nor an http URL")


def check_head(headers: Headers, http10: bool, max_bytes: int) -> None:
    """`headers`: names in lower case. Raises BadHttp, HeadTooLarge or UnsupportedCoding."""
    size = hosts = codings = 0
    for name, value in headers:
        size += len(name) + len(value) + _BYTES_PER_FIELD
        if name == b"host":
            hosts += 1
            if b"," in value or b" " in value or b"\t" in value:
                raise BadHttp("the Host field names no host")
        elif name == b"transfer-encoding":
            codings += 1
            if value.strip().lower() != b"chunked":
                raise UnsupportedCoding("no transfer coding but chunked is understood")
    if size > max_bytes:
        raise HeadTooLarge(head_too_large_text(max_bytes))
    if hosts > 1 or (hosts == 0 and not http10):
        raise BadHttp("the request must have one Host field")
    if codings > 1 or (codings and http10):
        raise BadHttp("the request's framing is ambiguous")


def head_too_large_text(max_bytes: int) -> str:
    return f"the request head is larger than listen.max_header_kb allows ({max_bytes} bytes)"

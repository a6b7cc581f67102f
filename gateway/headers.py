"""Which headers pass, and the response heads that the hot path writes itself.

Everything passes unchanged except hop-by-hop fields, framing, credentials, what only proxies may say, what tells an
engine or another router where to place a request, and the gateway's own `x-warmroute-*` names: an internal header from
outside never gets in (requests), and never comes out but from us (responses). A name counts with `_` for `-` too: some
servers take both for one.
"""

from __future__ import annotations

import http
from typing import TYPE_CHECKING, Final

from gateway.access.credential import CREDENTIAL_HEADERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from backends.transport import Headers

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
_PLACEMENT: Final = frozenset(
    (
        b"x-data-parallel-rank",
        b"x-dp-rank",
        b"x-prefill-dp-rank",
        b"x-worker-instance-id",
        b"x-dynamo-worker-instance-id",
        b"x-prefill-instance-id",
        b"x-prefiller-host-port",
        b"x-encoder-hosts-ports",
        b"x-gateway-model-name-rewrite",
        b"x-llm-d-model-name-rewrite",
        b"x-session-token",
        b"x-vllm-priority",
    )
)
"""Of vLLM, SGLang, Dynamo, llm-d and the Gateway API inference extension."""
_REQUEST_DROPPED: Final = (
    HOP_BY_HOP | _CREDENTIALS | _PLACEMENT | {b"host", b"content-length", b"expect", b"x-request-id"}
)
_RESPONSE_DROPPED: Final = HOP_BY_HOP | {b"content-length", b"x-request-id"}
_INTERNAL: Final = b"x-warmroute-"
_REQUEST_DROPPED_FAMILIES: Final = (_INTERNAL, b"x-smg-", b"x-gateway-destination-endpoint")
_FORWARDED: Final = frozenset((b"forwarded", b"x-real-ip"))
_FORWARDED_FAMILY: Final = b"x-forwarded-"
_FORWARDED_FOR: Final = b"x-forwarded-for"
_PLAIN_CONNECTION: Final = (b"close", b"keep-alive")

STATUS_LINES: Final = {
    **{status: b"HTTP/1.1 %d \r\n" % status for status in range(200, 600)},
    **{status.value: b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode()) for status in http.HTTPStatus},
}


def upstream_header_lines(headers: Sequence[tuple[bytes, bytes]], proxy: bytes | None = None) -> bytes:
    """What a backend gets of a client's headers (names in lower case), as lines.

    `proxy`: the address of the connection's peer, if that is a proxy which is believed about who stands behind it.
    """
    lines: list[bytes] = []
    hops: list[bytes] = []
    for name, value in headers:
        plain = name.replace(b"_", b"-") if b"_" in name else name
        if plain in _REQUEST_DROPPED or plain.startswith(_REQUEST_DROPPED_FAMILIES):
            if name == b"connection" and value.lower() not in _PLAIN_CONNECTION:
                return upstream_header_lines(_without_named(headers), proxy)
        elif plain in _FORWARDED or plain.startswith(_FORWARDED_FAMILY):
            if proxy is None or plain is not name:
                continue
            if name == _FORWARDED_FOR:
                hops.append(value)
            else:
                lines += (name, b": ", value, b"\r\n")
        else:
            lines += (name, b": ", value, b"\r\n")
    if proxy is not None:
        lines += (_FORWARDED_FOR, b": ", b", ".join((*hops, proxy)), b"\r\n")
    return b"".join(lines)


def credential_lines(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """The client's credentials as lines, for a backend that is to see them."""
    return b"".join(b"%b: %b\r\n" % pair for pair in headers if pair[0] in CREDENTIAL_HEADERS)


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
        if lower in _RESPONSE_DROPPED or lower.replace(b"_", b"-").startswith(_INTERNAL):
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
        if name.lower() not in _RESPONSE_DROPPED and not name.lower().replace(b"_", b"-").startswith(_INTERNAL)
    )

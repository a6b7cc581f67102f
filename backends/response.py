"""Reads one response after another off a connection with httptools.

The parser's callbacks only collect; the connection acts after `feed` has returned, so no sink ever runs inside the C
parser.
"""

from __future__ import annotations

from typing import Final

import httptools

from backends.transport import Headers, ResponseHead
from vocabulary.errors import UpstreamProtocolError

MAX_HEAD_BYTES: Final = 256 * 1024
"""Header and trailer bytes accepted from a backend. Engines send under 2 KiB; the bound is against a broken one."""
_LENGTH_OF_LENGTH: Final = len(b"content-length")
_INTERIM_BYTES: Final = 64
"""Counted for an interim answer itself, so that a flood of them ends."""


class _BadHead(Exception):
    """Stops the parser, which would let it pass."""


def _read(headers: Headers) -> tuple[bool, bytes, bool]:
    """(in chunks, content type, compressed). Raises _BadHead on a transfer coding that would have to be undone."""
    chunked = compressed = False
    content_type = b""
    for name, value in headers:
        lower = name.lower()
        if lower == b"content-type":
            content_type = value
        elif lower == b"transfer-encoding":
            if chunked or value.strip().lower() != b"chunked":
                raise _BadHead
            chunked = True
        elif lower == b"content-encoding":
            compressed = value.lower() != b"identity"
    return chunked, content_type, compressed


class ResponseReader:
    __slots__ = (
        "_barren_bytes",
        "_body",
        "_content_length",
        "_head",
        "_head_bytes",
        "_headers",
        "_interim",
        "_keep_alive",
        "_known",
        "_known_headers",
        "_parser",
        "begun",
        "complete",
        "ends_with_connection",
        "extra",
        "head_seen",
        "trailers",
    )

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        # what the headers of the last response said: engines send the same ones with every response
        self._known_headers: Headers = []
        self._known = (False, b"", False)
        self.reset()

    def reset(self) -> None:
        """Ready for the next response on the same connection."""
        self._headers: Headers = []
        self._content_length: int | None = None
        self._body: list[bytes] = []
        self._head: ResponseHead | None = None
        self._head_bytes = 0
        self._barren_bytes = 0
        self._interim = False
        self._keep_alive = False
        self.trailers: Headers = []
        self.begun = False
        """A byte of the response was seen."""
        self.head_seen = False
        self.complete = False
        self.extra = False
        """Bytes followed the response: the connection cannot be used again."""
        self.ends_with_connection = False
        """Neither a length nor chunks: the end of the connection is the end of the body."""

    def feed(self, data: bytes) -> None:
        """Raises UpstreamProtocolError on bytes that are no HTTP/1.1; after a complete response they set `extra`."""
        self.begun = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self.complete:
                raise UpstreamProtocolError("the backend's answer is not HTTP/1.1") from error
            self.extra = True
        if self._body:
            self._barren_bytes = 0
        elif not self.complete:  # a head, or what is around the body: the parser keeps lines that do not end
            self._barren_bytes += len(data)
        if self._head_bytes > MAX_HEAD_BYTES or self._barren_bytes > 2 * MAX_HEAD_BYTES:
            raise UpstreamProtocolError("the backend's response head is too large")

    def take_head(self) -> ResponseHead | None:
        """The response head, once, when it is complete."""
        head, self._head = self._head, None
        return head

    def take_body(self) -> bytes:
        """Body bytes that came since the last call."""
        body = self._body
        if not body:
            return b""
        self._body = []
        return body[0] if len(body) == 1 else b"".join(body)

    def should_keep_alive(self) -> bool:
        return self._keep_alive and not self.extra

    # httptools callbacks

    def on_message_begin(self) -> None:
        if self.complete:
            self.extra = True

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > MAX_HEAD_BYTES:
            return
        if self.head_seen:
            self.trailers.append((name, value))
        elif len(name) == _LENGTH_OF_LENGTH and name.lower() == b"content-length":
            self._content_length = int(value)  # apart: often all that differs from the response before
        else:
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self.complete:
            return
        status = self._parser.get_status_code()
        if status < 200:  # 100, 103: between the gateway and the backend only
            if status in (0, 101):  # nobody asked for another protocol
                raise _BadHead
            self._interim = True
            self._head_bytes += _INTERIM_BYTES
            self._headers = []
            self._content_length = None
            return
        if self._headers != self._known_headers:
            self._known_headers = self._headers
            self._known = _read(self._headers)
        chunked, content_type, compressed = self._known
        length = None if chunked else self._content_length
        self._head = ResponseHead(status, self._known_headers, length, content_type, compressed)
        self.head_seen = True
        self.ends_with_connection = not chunked and length is None and status not in (204, 304)

    def on_body(self, body: bytes) -> None:
        if not self.complete:
            self._body.append(body)

    def on_message_complete(self) -> None:
        if self._interim:
            self._interim = False
        else:
            self.complete = True
            self._keep_alive = bool(self._parser.should_keep_alive())  # the parser forgets it soon after

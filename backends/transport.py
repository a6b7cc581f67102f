"""The seam between the gateway and a backend's HTTP: two methods, callbacks for what comes back.

Callbacks run on the event loop, never inside `send`. After `on_end` or `on_error`, or once `Call.cancel` was called, a
sink hears nothing more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from backends.upstream import Timeouts
    from vocabulary.errors import UpstreamError

Headers = list[tuple[bytes, bytes]]


class UpstreamRequest(NamedTuple):
    """One request to a backend."""

    method: bytes
    target: bytes
    """Path and query, as on the request line."""
    header_lines: bytes
    """`name: value` lines, each with its CRLF. No framing, host or hop-by-hop fields: the transport adds its own."""
    body: bytes


class ResponseHead(NamedTuple):
    status: int
    headers: Headers
    """As received but for the length, names in the backend's own case, hop-by-hop fields included. Not to be changed:
    the same list may stand for several responses."""
    content_length: int | None
    """Set when the body is framed by its length; a body in chunks or up to the end of the connection has none."""
    content_type: bytes = b""
    compressed: bool = False
    """The body has a content coding."""


class ResponseSink(Protocol):
    def on_head(self, head: ResponseHead, data: bytes) -> None:
        """The response head, with the body bytes that came in the same read: often all of them, so that one write can
        pass both on."""
        ...

    def on_data(self, data: bytes) -> None:
        """Further body bytes as sent, without the framing. Never empty."""
        ...

    def on_end(self, trailers: Headers) -> None:
        """The body is complete."""
        ...

    def on_error(self, error: UpstreamError) -> None:
        """The exchange failed; before `on_head` no byte of a response was seen by the sink."""
        ...


class Call(Protocol):
    """One request under way. All methods may be called in any phase, any number of times."""

    def cancel(self) -> None:
        """Closes the backend's socket at once."""
        ...

    def pause(self) -> None:
        """Stop reading: the backend is slowed down by its socket filling up."""
        ...

    def resume(self) -> None: ...


class Upstream(Protocol):
    def send(self, request: UpstreamRequest, sink: ResponseSink) -> Call: ...

    def set_timeouts(self, timeouts: Timeouts) -> None: ...

    def heard_within(self, seconds: float) -> bool:
        """A running response got bytes so recently."""
        ...

    async def close(self) -> None:
        """No new connections are kept; returns when the last running call has ended."""
        ...

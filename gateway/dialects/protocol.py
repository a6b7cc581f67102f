"""What the life of a request needs to know of the API that it is of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from backends.transport import ResponseHead
    from gateway.observe import Observer
    from vocabulary.errors import RequestFailed


class Dialect(Protocol):
    """Pure."""

    @property
    def break_off(self) -> bytes:
        """Ends an event that is half sent, so that another may follow."""
        ...

    def error_body(self, error: RequestFailed, request_id: bytes = b"") -> bytes:
        """The JSON body of an answer that is an error."""
        ...

    def error_event(self, error: RequestFailed) -> bytes:
        """The in-band form, for a stream whose head is out."""
        ...

    def observer(self, head: ResponseHead) -> Observer:
        """Who can read this response."""
        ...

"""The bounds of one request, as the hot path reads them, and of the bodies of all requests together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from vocabulary.errors import BodyTooLarge

_DRAIN_FACTOR: Final = 4


@dataclass(frozen=True, slots=True)
class RequestLimits:
    max_body_bytes: int
    max_attempts: int
    retry_statuses: frozenset[int]
    """Statuses of a backend that another one is asked after."""
    max_drained_bytes: int = field(init=False)
    """A body over the limit is read to its end up to here, so that the connection stays usable; then it is closed."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_drained_bytes", self.max_body_bytes * _DRAIN_FACTOR)

    @property
    def body_too_large_text(self) -> str:
        return f"the request body is larger than listen.max_body_mb allows ({self.max_body_bytes} bytes)"

    def check_body_size(self, size: int) -> None:
        """Raises BodyTooLarge."""
        if size > self.max_body_bytes:
            raise BodyTooLarge(self.body_too_large_text)


class RequestBuffer:
    """Bytes of request bodies in memory, of all connections. Whoever takes some gives them back exactly once."""

    __slots__ = ("max_bytes", "used")

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.used = 0

    def take(self, size: int) -> bool:
        """False, and nothing is taken, where there is no room."""
        used = self.used + size
        if used > self.max_bytes:
            return False
        self.used = used
        return True

    def give_back(self, size: int) -> None:
        self.used -= size

    @property
    def full_text(self) -> str:
        return f"the request bodies in memory have reached listen.max_buffered_mb ({self.max_bytes} bytes)"

"""The bounds of one request, as the hot path reads them."""

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

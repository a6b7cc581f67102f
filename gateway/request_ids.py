"""One id per request: the client's own if it is fit to be logged, else a new one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_FIT: Final = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")


class RequestIds:
    """New ids are a prefix, random per process, and a counter: unique, sortable, and cheaper than a UUID each."""

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix
        self._count = 0

    def take(self, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        """The id of a request with these headers (names in lower case)."""
        for name, value in headers:
            if name == b"x-request-id" and _FIT.fullmatch(value):
                return value
        self._count += 1
        return b"%b-%x" % (self._prefix, self._count)

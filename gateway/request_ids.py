"""One id per request: the client's own if it is fit to be logged, else a new one."""

from __future__ import annotations

import re
from typing import Final

_FIT: Final = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")


def fit_request_id(value: bytes) -> bytes | None:
    """A client's request id, None if it should not stand in logs and headers."""
    return value if _FIT.fullmatch(value) else None


class RequestIds:
    """New ids are a prefix, random per process, and a counter: unique, sortable, and cheaper than a UUID each."""

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix
        self._count = 0

    def new(self) -> bytes:
        self._count += 1
        return b"%b-%x" % (self._prefix, self._count)

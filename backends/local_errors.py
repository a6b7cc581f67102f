"""Failures to connect that are this machine's own: a backend must not be blamed for them (O63)."""

from __future__ import annotations

import errno
from typing import Final

_LOCAL: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL))
"""No file descriptor, no memory for a socket, no free port to connect from."""


def is_local(error: BaseException | None) -> bool:
    """Also where a library has wrapped it."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, BaseExceptionGroup) and any(is_local(inner) for inner in error.exceptions):
            return True
        if isinstance(error, OSError) and error.errno in _LOCAL:
            return True
        error = error.__cause__ or error.__context__
    return False

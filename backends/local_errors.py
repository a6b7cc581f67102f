"""Failures to connect that are this machine's own: a backend must not be blamed for them (O63)."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_LOCAL: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL))
"""No file descriptor, no memory for a socket, no free port to connect from."""


def causes(error: BaseException) -> Iterator[BaseException]:
    """The error and all that led to it; libraries wrap the system's own one several times."""
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        one = todo.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        todo += (one.__cause__, one.__context__)
        if isinstance(one, BaseExceptionGroup):
            todo += one.exceptions


def is_local(error: BaseException) -> bool:
    """Also where a library has wrapped it."""
    return any(isinstance(cause, OSError) and cause.errno in _LOCAL for cause in causes(error))

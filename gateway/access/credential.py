"""The credential of a request, as the clients of OpenAI and Anthropic send it."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable


class Refusal(enum.StrEnum):
    """Why nobody was recognised: for the operator's metrics; the client is never told which."""

    MISSING = "missing"
    SCHEME = "scheme"  # authorization with another scheme than Bearer
    CONFLICT = "conflict"  # two credentials that differ
    UNKNOWN = "unknown"  # no such key
    EXPIRED = "expired"  # a token whose time is over, or has not come
    INVALID = "invalid"  # a token that is not believed


WANTED: Final = "a valid API key is needed, as `authorization: Bearer KEY` or `x-api-key: KEY`"
"""The one text for every refusal: nobody learns how near they came."""
CREDENTIAL_HEADERS: Final = frozenset((b"authorization", b"x-api-key"))


def credential(headers: Iterable[tuple[bytes, bytes]]) -> bytes | Refusal:
    """From `authorization: Bearer` or `x-api-key` (names in lower case). Several must be equal."""
    found: bytes | None = None
    for name, value in headers:
        if name == b"authorization":
            scheme, _, given = value.strip(b" \t").partition(b" ")
            if scheme.lower() != b"bearer":
                return Refusal.SCHEME
            given = given.strip(b" \t")
        elif name == b"x-api-key":
            given = value.strip(b" \t")
        else:
            continue
        if found is not None and given != found:
            return Refusal.CONFLICT
        found = given
    return found or Refusal.MISSING

"""The words that every package shares, one meaning each. Imports nothing of ours.

backend    one engine endpoint, named in the config
instance   one life of a backend: a restart is a new instance, its number is never used again
block key  the chained 64-bit key of a block and of all blocks before it
session    requests that extend one another, as a keyed digest: the client's own id stays at the door
"""

from __future__ import annotations

import enum
from typing import Final, NewType

BackendId = NewType("BackendId", str)
InstanceId = NewType("InstanceId", int)
TenantId = NewType("TenantId", str)
SessionKey = NewType("SessionKey", bytes)
"""16 bytes: a digest of tenant and session under the deployment secret."""

BlockKeys = NewType("BlockKeys", bytes)
"""Chained block keys of one prompt, 8 bytes each, first block first. Compact, and comparable by slices."""

KEY_BYTES: Final = 8

VERSION: Final = "0.1.0"


class Trust(enum.StrEnum):
    """How far the index may be believed about one instance."""

    EXACT = "exact"  # events flow, the sequence is unbroken
    ESTIMATED = "estimated"  # no events: what was routed there is assumed cached
    BLIND = "blind"  # no store, or a lost feed


class Kind(enum.StrEnum):
    """Why a request went where it went: the closed list of `x-warmroute-decision`."""

    __hash__ = str.__hash__  # Enum's own runs Python, and kinds are looked up for every request

    SESSION = "session"  # to the backend that served the session's last turn
    PREFIX = "prefix"  # to a backend that holds a part of the prompt
    LOAD = "load"  # nothing cached spoke for a backend
    FORCED = "forced"  # only one backend could take it
    RETRY = "retry"  # a second attempt after a failed one
    FALLBACK = "fallback"  # routed without the facts the policy wants

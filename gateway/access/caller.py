"""Who sent a request, as the rest of the gateway sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gateway.session_id import lineage_owner
from vocabulary import TenantId

if TYPE_CHECKING:
    from gateway.access.quota import Quota

EVERYONE: Final = TenantId("")
"""The one tenant of a gateway that asks nobody who they are."""


@dataclass(slots=True, eq=False)
class Caller:
    """One tenant. The object lives as long as the tenant is configured, over reloads, so that its counts go on."""

    tenant: TenantId
    lineage_owner: bytes
    """See `session_id.lineage_owner`."""
    quota: Quota | None = None
    """None: nothing is counted or limited."""
    models: frozenset[str] | None = None
    """Names and aliases that it may ask for; None: all."""
    salt: bytes | None = None
    """What engines get as `cache_salt`, 32 hex digits; None: the client's own passes."""
    sees_decisions: bool = True
    """Its responses tell how they were routed and what was predicted."""

    def may_use(self, model: str) -> bool:
        return self.models is None or model in self.models


def everyone(secret: bytes) -> Caller:
    return Caller(EVERYONE, lineage_owner(EVERYONE, secret))

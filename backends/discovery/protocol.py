"""What a source of backends tells, and to whom.

Invariant of every source: only an answer changes what it reports. An error (no name server, no API server, a
half-written file) is told beside it and never empties the fleet.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from vocabulary.errors import WarmrouteError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from backends.addresses import Address


@dataclass(frozen=True, slots=True)
class Found:
    """One endpoint of an answer."""

    name: str
    """Unique within the answer, and the same for the same endpoint in every answer."""
    address: Address
    server_hostname: str | None = None
    """Name in its certificate, where `address` holds an IP address."""
    models: tuple[str, ...] = ()
    ready: bool = True
    terminating: bool = False

    @property
    def takes_traffic(self) -> bool:
        return self.ready and not self.terminating


Report: TypeAlias = "Callable[[tuple[Found, ...]], None]"
"""Gets each answer, whole: what is not in it is gone."""
Failed: TypeAlias = "Callable[[Exception], None]"
"""Gets each error; the last answer stands."""
Sleep: TypeAlias = "Callable[[float], Awaitable[None]]"
"""asyncio.sleep, or a test's; seconds."""


class Source(Protocol):
    """One place to ask."""

    async def run(self, report: Report, failed: Failed) -> None:
        """Ask, report and ask again until cancelled. Its caller owns the task."""
        ...


class DiscoveryError(WarmrouteError):
    """A source could not be read, or said what cannot be used. Texts hold names and places, never addresses."""


class AddressRefused(DiscoveryError):
    """An answer held addresses that nothing is sent to; the rest of it was taken."""


class EmptyAnswer(DiscoveryError):
    """The name exists no more, or has no records."""


class InvalidList(DiscoveryError):
    """A file that is no list of backends; the text names the line."""


class UnusableEndpoints(DiscoveryError):
    """Kubernetes has endpoints that the settings do not fit, such as a port of another name."""


def opaque_name(address: Address) -> str:
    """Names what has no name of its own by a digest: names stand in response headers, addresses do not."""
    return hashlib.blake2b(str(address).encode(), digest_size=4).hexdigest()

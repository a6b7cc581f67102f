"""Which peers are believed about who stands behind them."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class TrustedProxies:
    """Immutable. `networks`: CIDRs of either family."""

    __slots__ = ("_networks",)

    def __init__(self, networks: Iterable[str]) -> None:
        self._networks = tuple(ipaddress.ip_network(network) for network in networks)

    def trusts(self, peer: str | None) -> bool:
        """`peer`: the address at the other end of the TCP connection; None: it has none."""
        if not self._networks or peer is None:
            return False
        try:
            address = ipaddress.ip_address(peer.partition("%")[0])
        except ValueError:
            return False
        if address.version == 6 and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self._networks)

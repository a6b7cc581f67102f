"""Which addresses a backend may have: the checks that the config and every source of backends share.

Invariant: what passes here is no address of a cloud's metadata service, however it is written. Texts never hold the
value: it may be a secret in the wrong place.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

_SCHEMES: Final = ("http", "https")
_HOST: Final = re.compile(r"[0-9A-Za-z_.-]{1,253}")
_OLD_IPV4: Final = re.compile(r"(?:.*\.)?(?:[0-9]+|0[xX][0-9a-fA-F]*)\.?")
"""`2852039166`, `0xa9fea9fe`, `169.254.43518`: the system's resolver reads them as addresses."""
_EXAMPLE: Final = "like http://10.0.0.1:8000"
_METADATA: Final = frozenset(
    ipaddress.ip_address(address)
    for address in (
        "100.100.100.200",  # Alibaba Cloud
        "168.63.129.16",  # Azure's wire server
        "fd00:ec2::254",  # AWS
        "fd20:ce::254",  # Google Cloud
    )
)
"""Metadata services outside the link-local range."""
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
_BROADCAST: Final = ipaddress.ip_address("255.255.255.255")


class AddressFault(ValueError):
    """A URL or host that no backend may have."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Address:
    scheme: str
    host: str
    """A name, or an IP address without brackets."""
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


def unsafe(host: str) -> str | None:
    """Why nothing may be sent to this IP address; None for a good one, and for names."""
    text = host.strip("[]")
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return "an IPv4 address that is not written as four decimal numbers" if _OLD_IPV4.fullmatch(text) else None
    if isinstance(address, ipaddress.IPv6Address):
        address = _embedded(address) or address
    if address.is_link_local:
        return "a link-local address"
    if address.is_multicast or address == _BROADCAST:
        return "a multicast address"
    if address.is_unspecified:
        return "an unspecified address"
    if address in _METADATA:
        return "the address of a cloud's metadata service"
    return None


def _embedded(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address that the packets end up at."""
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour


def base_url(value: str) -> str:
    """Scheme and authority only, in lower case: `http://10.0.0.1:8000`. Raises AddressFault."""
    try:
        parts = urlsplit(value)
        port = parts.port
        host = parts.hostname
    except ValueError:
        raise AddressFault("not a readable URL", _EXAMPLE) from None
    # urlsplit quietly drops tabs and newlines
    if not re.fullmatch(r"[!-~]+", value) or "\\" in value:
        raise AddressFault("not a readable URL", _EXAMPLE)
    if "@" in value:
        raise AddressFault("a URL holds no credentials", "use api_key: ${NAME} or api_key_file")
    if parts.scheme.lower() not in _SCHEMES or not host:
        raise AddressFault("must start with http:// or https:// and name a host", _EXAMPLE)
    if ":" not in host and not _HOST.fullmatch(host):
        raise AddressFault("not a readable URL", _EXAMPLE)
    if port == 0:
        raise AddressFault("port 0 is not an address")
    reason = unsafe(host)
    if reason is not None:
        raise AddressFault(f"not an address of a backend: {reason}")
    authority = f"[{host}]" if ":" in host else host
    base = f"{parts.scheme.lower()}://{authority}" + (f":{port}" if port is not None else "")
    if parts.path not in ("", "/") or parts.query or parts.fragment or value.endswith(("?", "#")):
        raise AddressFault("only scheme, host and port: the gateway adds the paths itself", f"write {base}")
    return base


def address(url: str) -> Address:
    """Of a URL that passed `base_url`, with the scheme's own port where it names none."""
    parts = urlsplit(url)
    return Address(parts.scheme, parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80))

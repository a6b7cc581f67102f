"""Which peers are proxies that are believed."""

from __future__ import annotations

import pytest

from gateway.access.proxies import TrustedProxies


@pytest.mark.parametrize(
    ("peer", "trusted"),
    [
        ("10.1.2.3", True),
        ("::ffff:10.1.2.3", True),
        ("11.1.2.3", False),
        ("192.0.2.7", True),
        ("192.0.2.8", False),
        ("fd00::1", True),
        ("fe80::1%eth0", False),
        ("fd00::1%eth0", True),
        ("::1", False),
        ("not an address", False),
        ("", False),
        (None, False),
    ],
)
def test_peers(peer: str | None, trusted: bool) -> None:
    assert TrustedProxies(["10.0.0.0/8", "192.0.2.7", "fd00::/8"]).trusts(peer) is trusted


def test_nobody_is_trusted_unless_named() -> None:
    assert not TrustedProxies([]).trusts("127.0.0.1")

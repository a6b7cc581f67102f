"""Where a credential may stand, and what counts as none."""

from __future__ import annotations

import pytest

from gateway.access.credential import Refusal, credential


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ([(b"authorization", b"Bearer key-1")], b"key-1"),
        ([(b"authorization", b"bearer  key-1 ")], b"key-1"),
        ([(b"authorization", b"BEARER\tkey-1")], Refusal.SCHEME),
        ([(b"x-api-key", b" key-1 ")], b"key-1"),
        ([(b"x-api-key", b"key-1"), (b"authorization", b"Bearer key-1")], b"key-1"),
        ([(b"authorization", b"Bearer key-1"), (b"authorization", b"Bearer key-1")], b"key-1"),
        ([(b"x-api-key", b"key-2"), (b"authorization", b"Bearer key-1")], Refusal.CONFLICT),
        ([(b"authorization", b"Bearer key-1"), (b"authorization", b"Bearer key-2")], Refusal.CONFLICT),
        ([(b"x-api-key", b""), (b"authorization", b"Bearer key-1")], Refusal.CONFLICT),
        ([(b"authorization", b"Basic a2V5")], Refusal.SCHEME),
        ([(b"authorization", b"key-1")], Refusal.SCHEME),
        ([(b"authorization", b"")], Refusal.SCHEME),
        ([(b"x-api-key", b"key-1"), (b"authorization", b"Basic a2V5")], Refusal.SCHEME),
        ([(b"authorization", b"Bearer")], Refusal.MISSING),
        ([(b"authorization", b"Bearer ")], Refusal.MISSING),
        ([(b"x-api-key", b"")], Refusal.MISSING),
        ([(b"x_api_key", b"key-1"), (b"api-key", b"key-1"), (b"proxy-authorization", b"Bearer k")], Refusal.MISSING),
        ([], Refusal.MISSING),
    ],
)
def test_credentials(headers: list[tuple[bytes, bytes]], found: bytes | Refusal) -> None:
    assert credential(headers) == found

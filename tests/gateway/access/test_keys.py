"""API keys by their digests."""

from __future__ import annotations

from hashlib import sha256

from gateway.access.keys import ApiKeys


def digest(key: bytes) -> bytes:
    return sha256(key).digest()


def test_several_keys_have_one_owner() -> None:
    keys = ApiKeys({"a": [digest(b"one"), digest(b"two")], "b": [digest(b"three")]})
    assert [keys.owner(key) for key in (b"one", b"two", b"three", b"four", b"")] == ["a", "a", "b", None, None]
    assert keys
    assert not ApiKeys({"a": []})


def test_a_digest_is_no_key() -> None:
    keys = ApiKeys({"a": [digest(b"one")]})
    assert keys.owner(digest(b"one")) is None
    assert keys.owner(digest(b"one").hex().encode()) is None


def test_digests_with_one_beginning_are_told_apart() -> None:
    real = digest(b"one")
    forged = real[:8] + bytes(24)
    assert ApiKeys({"b": [forged], "a": [real]}).owner(b"one") == "a"
    assert ApiKeys({"b": [forged]}).owner(b"one") is None


def test_no_key_is_held() -> None:
    keys = ApiKeys({"a": [digest(b"canary-key")]})
    assert b"canary-key" not in repr(keys._by_index).encode()

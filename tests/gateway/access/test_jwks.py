"""Which keys of a JWK set may be used for what."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from gateway.access.jwks import MAX_KEYS, read_key_set
from tests.support.tokens import ec_key, ed_key, key_set, private_jwk, public_jwk, rsa_key

ALL = ("RS256", "RS384", "PS256", "ES256", "ES384", "EdDSA")


def usable(entry: Any) -> set[str]:
    keys = read_key_set(key_set(entry, public_jwk(ed_key(), kid="other")), ALL)
    return {algorithm for algorithm in ALL if keys.find("k", algorithm) is not None}


def test_a_key_is_bound_to_what_it_is_for() -> None:
    rsa, p256, p384 = rsa_key(), ec_key(), ec_key(ec.SECP384R1)
    assert usable(public_jwk(rsa, kid="k")) == {"RS256", "RS384", "PS256"}
    assert usable(public_jwk(rsa, kid="k", alg="RS384", use="sig", key_ops=["verify"])) == {"RS384"}
    assert usable(public_jwk(p256, kid="k")) == {"ES256"}
    assert usable(public_jwk(p384, kid="k")) == {"ES384"}
    assert usable(public_jwk(ed_key(), kid="k")) == {"EdDSA"}


@pytest.mark.parametrize(
    "entry",
    [
        public_jwk(ec_key(), kid="k", use="enc"),
        public_jwk(ec_key(), kid="k", alg="ES384"),
        public_jwk(ec_key(), kid="k", key_ops=["sign"]),
        public_jwk(ec_key(), kid="k", key_ops="verify"),
        public_jwk(ec_key(ec.SECP256K1), kid="k"),
        public_jwk(ec_key(), kid="k", x="AAAA"),
        public_jwk(ec_key(), kid="k", x=5),
        private_jwk(ec_key(), kid="k"),
        public_jwk(rsa_key(1024), kid="k"),
        {"kty": "oct", "kid": "k", "k": base64.urlsafe_b64encode(b"s" * 32).decode()},
        {"kty": "RSA", "kid": "k"},
        {"kty": "EC", "kid": "k", "crv": "P-256"},
        {"kid": "k"},
        {},
        None,
        "text",
        [],
    ],
)
def test_what_cannot_be_used_is_skipped(entry: Any) -> None:
    assert usable(entry) == set()


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"keys": {}}',
        b'{"keys": []}',
        b'{"keys": [null]}',
        b"\xff",
        b"[" * 100_000,
        key_set({"kty": "oct", "k": "canary"}),
        key_set(*({} for _ in range(MAX_KEYS + 1))),
    ],
)
def test_a_set_without_a_key_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError) as caught:
        read_key_set(text, ALL)
    assert "canary" not in str(caught.value)


def test_a_token_that_names_no_key_gets_the_only_one() -> None:
    first, second = public_jwk(ec_key(), kid="1"), public_jwk(ec_key())
    assert read_key_set(key_set(second), ALL).find(None, "ES256") is not None
    assert read_key_set(key_set(first), ALL).find(None, "ES256") is not None
    both = read_key_set(key_set(first, second), ALL)
    assert both.find(None, "ES256") is None
    assert both.find("1", "ES256") is not None
    assert both.find("2", "ES256") is None
    assert both.knows("1")
    assert not both.knows("2")


def test_the_first_of_two_keys_with_one_name_counts() -> None:
    first, second = ec_key(), ec_key()
    keys = read_key_set(key_set(public_jwk(first, kid="k"), public_jwk(second, kid="k")), ALL)
    found = keys.find("k", "ES256")
    assert found is not None
    assert found.key.public_numbers() == first.public_key().public_numbers()

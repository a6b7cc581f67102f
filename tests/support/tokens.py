"""A signer of bearer tokens: its keys, its JWK set, and tokens of every kind."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

if TYPE_CHECKING:
    from collections.abc import Callable

ISSUER = "https://login.example.com/"
AUDIENCE = "warmroute"

_FORMS: dict[type, Callable[..., Any]] = {
    rsa.RSAPrivateKey: RSAAlgorithm.to_jwk,
    ec.EllipticCurvePrivateKey: ECAlgorithm.to_jwk,
    ed25519.Ed25519PrivateKey: OKPAlgorithm.to_jwk,
}


@cache
def rsa_key(bits: int = 2048, number: int = 0) -> rsa.RSAPrivateKey:
    """Slow to make, so made once. `number` tells keys of one size apart."""
    return rsa.generate_private_key(65537, bits)


def ec_key(curve: type[ec.EllipticCurve] = ec.SECP256R1) -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(curve())


def ed_key() -> ed25519.Ed25519PrivateKey:
    return ed25519.Ed25519PrivateKey.generate()


def public_jwk(key: Any, **fields: Any) -> dict[str, Any]:
    form = next(form for kind, form in _FORMS.items() if isinstance(key, kind))
    entry = form(key.public_key(), as_dict=True)
    entry.pop("key_ops", None)
    return {**entry, **fields}


def private_jwk(key: Any, **fields: Any) -> dict[str, Any]:
    form = next(form for kind, form in _FORMS.items() if isinstance(key, kind))
    return {**form(key, as_dict=True), **fields}


def key_set(*entries: Any) -> bytes:
    return json.dumps({"keys": list(entries)}).encode()


@dataclass
class Signer:
    """ES256 unless told otherwise."""

    kid: str | None = "k1"
    algorithm: str = "ES256"
    key: Any = field(default_factory=ec_key)

    @property
    def jwk(self) -> dict[str, Any]:
        return public_jwk(self.key, **({"kid": self.kid} if self.kid is not None else {}))

    @property
    def jwks(self) -> bytes:
        return key_set(self.jwk)

    def token(self, tenant: object = "a", *, headers: dict[str, Any] | None = None, **claims: Any) -> str:
        """A good token unless told otherwise; a claim that is None is left out."""
        now_s = time.time()
        payload = {"iss": ISSUER, "aud": AUDIENCE, "exp": now_s + 600, "iat": now_s, "tenant": tenant, **claims}
        head = {**({"kid": self.kid} if self.kid is not None else {}), **(headers or {})}
        kept = {name: value for name, value in payload.items() if value is not None}
        return jwt.api_jws.encode(json.dumps(kept).encode(), self.key, self.algorithm, head)

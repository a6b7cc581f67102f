"""A signer's public keys, from a JWK set (RFC 7517).

Invariant: only asymmetric public keys for signatures get in, each bound to the algorithms that it may be used with. So
a token can neither choose a symmetric algorithm with a public key as its secret, nor another curve.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from jwt import PyJWK
from jwt.exceptions import PyJWTError

if TYPE_CHECKING:
    from collections.abc import Collection

MAX_KEYS: Final = 100
_KINDS: Final[dict[str, tuple[str, str | None]]] = {
    **{f"{family}{bits}": ("RSA", None) for family in ("RS", "PS") for bits in (256, 384, 512)},
    "ES256": ("EC", "P-256"),
    "ES384": ("EC", "P-384"),
    "ES512": ("EC", "P-521"),
    "EdDSA": ("OKP", "Ed25519"),
}
"""`kty` and `crv` per algorithm (RFC 7518 section 3.1, RFC 8037)."""
_RSA_BITS: Final = range(2048, 8193)


class KeySet:
    """Immutable."""

    __slots__ = ("_by_algorithm", "_by_kid", "_kids")

    def __init__(self, by_kid: dict[tuple[str, str], PyJWK], by_algorithm: dict[str, list[PyJWK]]) -> None:
        self._by_kid = by_kid
        self._by_algorithm = by_algorithm
        self._kids = {kid for kid, _ in by_kid}

    def __bool__(self) -> bool:
        return bool(self._by_algorithm)

    def knows(self, kid: str) -> bool:
        return kid in self._kids

    def find(self, kid: str | None, algorithm: str) -> PyJWK | None:
        """A token that names no key gets one only where there is no choice."""
        if kid is not None:
            return self._by_kid.get((kid, algorithm))
        keys = self._by_algorithm.get(algorithm, ())
        return keys[0] if len(keys) == 1 else None


NO_KEYS: Final = KeySet({}, {})


def read_key_set(text: bytes, algorithms: Collection[str]) -> KeySet:
    """Raises ValueError where no key in it can be used; single keys that cannot are skipped. The texts hold no part of
    the set."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("not a JWK set: no JSON") from None
    entries = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(entries, list) or len(entries) > MAX_KEYS:
        raise ValueError(f"not a JWK set: it needs a list `keys` of at most {MAX_KEYS}")
    by_kid: dict[tuple[str, str], PyJWK] = {}
    by_algorithm: dict[str, list[PyJWK]] = {}
    for entry in entries:
        for algorithm in algorithms:
            key = _key(entry, algorithm)
            if key is not None:
                by_algorithm.setdefault(algorithm, []).append(key)
                if isinstance(entry.get("kid"), str):
                    by_kid.setdefault((entry["kid"], algorithm), key)
    if not by_algorithm:
        raise ValueError("the JWK set holds no key for any of the algorithms of auth.jwt")
    return KeySet(by_kid, by_algorithm)


def _key(entry: Any, algorithm: str) -> PyJWK | None:
    if not isinstance(entry, dict) or "d" in entry:  # a private key is no longer one once it is published
        return None
    kind, curve = _KINDS[algorithm]
    operations = entry.get("key_ops")
    fits = (
        entry.get("kty") == kind
        and entry.get("crv") == curve
        and entry.get("alg", algorithm) == algorithm
        and entry.get("use", "sig") == "sig"
        and (operations is None or (isinstance(operations, list) and "verify" in operations))
    )
    if not fits:
        return None
    try:
        key = PyJWK(entry, algorithm)
    except (PyJWTError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return None if kind == "RSA" and key.key.key_size not in _RSA_BITS else key

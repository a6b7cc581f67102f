"""Bearer tokens (RFC 7519): who they name, and until when.

Invariant: a claim is looked at only after the signature, the issuer and the audience were found right.
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import jwt
from jwt.exceptions import PyJWTError

from gateway.access.credential import Refusal
from gateway.access.jwks import NO_KEYS, KeySet

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.config.access import Jwt

MAX_TOKEN_BYTES: Final = 16_384
MAX_REMEMBERED: Final = 10_000
_MAX_TIME_S: Final = 2**53


class Verified(NamedTuple):
    owner: str
    """What the tenant claim says: not yet known to be a tenant."""
    until_s: float
    """Wall clock."""


class TokenVerifier:
    """`on_unknown_key`: called when a token names a key that is not in the set."""

    def __init__(self, settings: Jwt, wall_clock: Callable[[], float], on_unknown_key: Callable[[], None]) -> None:
        self.settings = settings
        self._wall_clock = wall_clock
        self._on_unknown_key = on_unknown_key
        self._keys = NO_KEYS
        self._remembered: OrderedDict[bytes, Verified] = OrderedDict()
        """By digest. Those are let in again without looking at their signature."""

    def set_keys(self, keys: KeySet) -> None:
        self._keys = keys
        self._remembered.clear()

    @staticmethod
    def fits(credential: bytes) -> bool:
        """It has the form of a token."""
        return credential.startswith(b"eyJ") and credential.count(b".") == 2

    def verify(self, token: bytes) -> Verified | Refusal:
        if len(token) > MAX_TOKEN_BYTES:
            return Refusal.INVALID
        digest = sha256(token).digest()
        known = self._remembered.get(digest)
        if known is not None:
            if known.until_s > self._wall_clock():
                self._remembered.move_to_end(digest)
                return known
            del self._remembered[digest]
        result = self._verify_anew(token)
        if isinstance(result, Verified):
            self._remembered[digest] = result
            if len(self._remembered) > MAX_REMEMBERED:
                self._remembered.popitem(last=False)
        return result

    def _verify_anew(self, token: bytes) -> Verified | Refusal:
        settings = self.settings
        try:
            header = jwt.get_unverified_header(token)
            algorithm, kid = header.get("alg"), header.get("kid")
            if algorithm not in settings.algorithms:
                return Refusal.INVALID
            key = self._keys.find(kid, algorithm)
            if key is None:
                if kid is None or not self._keys.knows(kid):
                    self._on_unknown_key()
                return Refusal.INVALID
            claims = jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                audience=settings.audience,
                issuer=settings.issuer,
                # the times are checked here, by a clock that is ours
                options={
                    "require": ["exp", "iss", "aud"],
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                },
            )
        except (PyJWTError, ValueError, TypeError, RecursionError):
            return Refusal.INVALID
        return self._judge(claims)

    def _judge(self, claims: dict[str, Any]) -> Verified | Refusal:
        leeway_s, now_s = self.settings.leeway_s, self._wall_clock()
        until_s, owner = claims["exp"], claims.get(self.settings.tenant_claim)
        if not _is_time(until_s) or not isinstance(owner, str):
            return Refusal.INVALID
        begins = [claims[name] for name in ("nbf", "iat") if name in claims]
        if not all(map(_is_time, begins)):
            return Refusal.INVALID
        if now_s >= until_s + leeway_s or any(now_s < begin_s - leeway_s for begin_s in begins):
            return Refusal.EXPIRED
        return Verified(owner, until_s + leeway_s)


def _is_time(value: object) -> bool:
    """A NumericDate (RFC 7519 section 2)."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _MAX_TIME_S

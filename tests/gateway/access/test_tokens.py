"""Bearer tokens: who is let in, and every way of not being."""

from __future__ import annotations

import base64
import hmac
import json
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization

from gateway.access.credential import Refusal
from gateway.access.jwks import read_key_set
from gateway.access.tokens import MAX_REMEMBERED, MAX_TOKEN_BYTES, TokenVerifier, Verified
from gateway.config.access import Jwt
from tests.support.tokens import AUDIENCE, ISSUER, Signer, ec_key, ed_key, key_set, public_jwk, rsa_key

NOW_S = 1_000_000.0


@dataclass
class Setting:
    signer: Signer = field(default_factory=Signer)
    now_s: float = NOW_S
    unknown: int = 0

    def __post_init__(self) -> None:
        self.settings = Jwt(
            issuer=ISSUER, audience=AUDIENCE, algorithms=("RS256", "PS256", "ES256", "EdDSA"), leeway_s=30.0
        )
        self.verifier = TokenVerifier(self.settings, lambda: self.now_s, self._unknown)
        self.use(self.signer.jwks)

    def _unknown(self) -> None:
        self.unknown += 1

    def use(self, jwks: bytes) -> None:
        self.verifier.set_keys(read_key_set(jwks, self.settings.algorithms))

    def token(self, tenant: object = "a", **claims: Any) -> str:
        return self.signer.token(tenant, **{"exp": NOW_S + 600, "iat": NOW_S, **claims})

    def verify(self, token: str | bytes) -> Verified | Refusal:
        return self.verifier.verify(token if isinstance(token, bytes) else token.encode())


def test_a_good_token_names_its_tenant_until_it_ends() -> None:
    setting = Setting()
    assert setting.verify(setting.token("team-a")) == Verified("team-a", NOW_S + 630)


@pytest.mark.parametrize(
    "signer",
    [
        Signer("k", "RS256", rsa_key()),
        Signer("k", "PS256", rsa_key()),
        Signer("k", "EdDSA", ed_key()),
        Signer(None, "ES256", ec_key()),
    ],
    ids=["RS256", "PS256", "EdDSA", "no kid"],
)
def test_every_signature_that_the_settings_name(signer: Signer) -> None:
    setting = Setting(signer)
    assert isinstance(setting.verify(setting.token()), Verified)


@pytest.mark.parametrize(
    ("claims", "refusal"),
    [
        ({"iss": "https://evil.example.com/"}, Refusal.INVALID),
        ({"iss": None}, Refusal.INVALID),
        ({"iss": [ISSUER]}, Refusal.INVALID),
        ({"aud": "other"}, Refusal.INVALID),
        ({"aud": None}, Refusal.INVALID),
        ({"aud": []}, Refusal.INVALID),
        ({"exp": NOW_S - 30}, Refusal.EXPIRED),
        ({"exp": None}, Refusal.INVALID),
        ({"exp": "soon"}, Refusal.INVALID),
        ({"exp": True}, Refusal.INVALID),
        ({"exp": float("nan")}, Refusal.INVALID),
        ({"exp": float("inf")}, Refusal.INVALID),
        ({"exp": 10**400}, Refusal.INVALID),
        ({"nbf": NOW_S + 31}, Refusal.EXPIRED),
        ({"nbf": "now"}, Refusal.INVALID),
        ({"iat": NOW_S + 31}, Refusal.EXPIRED),
        ({"iat": "now"}, Refusal.INVALID),
        ({"tenant": None}, Refusal.INVALID),
        ({"tenant": 5}, Refusal.INVALID),
        ({"tenant": ["a"]}, Refusal.INVALID),
    ],
)
def test_claims_that_are_refused(claims: dict[str, Any], refusal: Refusal) -> None:
    setting = Setting()
    assert setting.verify(setting.token(**claims)) is refusal
    assert setting.unknown == 0


def test_the_leeway_holds_at_both_ends() -> None:
    setting = Setting()
    assert isinstance(setting.verify(setting.token(exp=NOW_S - 29, nbf=NOW_S + 29)), Verified)
    assert isinstance(setting.verify(setting.token(aud=["x", AUDIENCE])), Verified)


def part(value: object) -> bytes:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=")


def hs256(head: dict[str, Any], claims: dict[str, Any], secret: bytes) -> bytes:
    signed = part(head) + b"." + part(claims)
    return signed + b"." + base64.urlsafe_b64encode(hmac.digest(secret, signed, sha256)).rstrip(b"=")


def test_a_public_key_is_no_secret_of_a_symmetric_signature() -> None:
    setting = Setting(Signer("k1", "RS256", rsa_key()))
    public = rsa_key().public_key()
    claims = {"iss": ISSUER, "aud": AUDIENCE, "exp": NOW_S + 600, "tenant": "a"}
    pem = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    der = public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    for secret in (pem, pem.strip(), der, setting.signer.jwks, b""):
        for algorithm in ("HS256", "RS256"):
            token = hs256({"alg": algorithm, "kid": "k1", "typ": "JWT"}, claims, secret)
            assert setting.verify(token) is Refusal.INVALID


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "", None, 5, ["ES256"], "ES384", "HS256"])
def test_no_other_algorithm_gets_in(algorithm: Any) -> None:
    setting = Setting()
    head, claims, signature = setting.token().encode().split(b".")
    forged = part({"alg": algorithm, "kid": "k1"})
    for token in (b".".join((forged, claims, signature)), forged + b"." + claims + b"."):
        assert setting.verify(token) is Refusal.INVALID
    assert isinstance(setting.verify(b".".join((head, claims, signature))), Verified)


def test_another_signers_key_under_a_known_name() -> None:
    setting, stranger = Setting(), Signer("k1")
    token = stranger.token("a", exp=NOW_S + 600, iat=NOW_S)
    assert setting.verify(token) is Refusal.INVALID
    inside = stranger.token("a", exp=NOW_S + 600, iat=NOW_S, headers={"jwk": stranger.jwk, "jku": "https://evil/"})
    assert setting.verify(inside) is Refusal.INVALID
    assert setting.unknown == 0


def test_a_key_of_another_kind_under_a_known_name() -> None:
    """The token's algorithm is allowed, but not with that key."""
    setting = Setting(Signer("k1", "RS256", rsa_key()))
    stranger = Signer("k1", "ES256")
    assert setting.verify(stranger.token("a", exp=NOW_S + 600, iat=NOW_S)) is Refusal.INVALID


def test_changed_claims_and_signatures() -> None:
    setting = Setting()
    head, claims, signature = setting.token("a").encode().split(b".")
    other = part({**json.loads(base64.urlsafe_b64decode(claims + b"==")), "tenant": "b"})
    for token in (
        b".".join((head, other, signature)),
        b".".join((head, claims, signature[:-4] + b"AAAA")),
        b".".join((head, claims, b"")),
        b".".join((head, claims)),
        b"eyJ..",
        b"eyJ.eyJ.eyJ",
        b"\xff.\xff.\xff",
        b"",
    ):
        assert setting.verify(token) is Refusal.INVALID


@pytest.mark.parametrize("kid", ["k2", "", "../k1", "k1 "])
def test_an_unknown_key_is_told_so_that_it_is_looked_for(kid: str) -> None:
    setting = Setting()
    token = setting.signer.token("a", exp=NOW_S + 600, headers={"kid": kid})
    assert setting.verify(token) is Refusal.INVALID
    assert setting.unknown == 1


def test_critical_extensions_and_detached_payloads() -> None:
    setting = Setting()
    unknown: list[dict[str, Any]] = [{"crit": ["exp"], "exp": 5}, {"crit": []}]
    for headers in unknown:
        with_crit = part({"alg": "ES256", "kid": "k1", **headers})
        _, claims, signature = setting.token().encode().split(b".")
        assert setting.verify(b".".join((with_crit, claims, signature))) is Refusal.INVALID
    detached = jwt.api_jws.encode(b"{}", setting.signer.key, "ES256", {"kid": "k1"}, is_payload_detached=True)
    assert setting.verify(detached) is Refusal.INVALID


def test_a_huge_token_is_not_looked_at() -> None:
    setting = Setting()
    token = setting.token(filler="x" * MAX_TOKEN_BYTES)
    assert setting.verify(token) is Refusal.INVALID


def test_a_verified_token_is_remembered_until_it_ends() -> None:
    setting = Setting()
    token = setting.token()
    first = setting.verify(token)
    assert setting.verify(token) is first
    setting.now_s = NOW_S + 629.9
    assert setting.verify(token) is first
    setting.now_s = NOW_S + 630
    assert setting.verify(token) is Refusal.EXPIRED


def test_new_keys_forget_what_old_ones_have_signed() -> None:
    setting = Setting()
    token = setting.token()
    assert isinstance(setting.verify(token), Verified)
    setting.use(key_set(public_jwk(ec_key(), kid="k1")))
    assert setting.verify(token) is Refusal.INVALID


def test_what_is_remembered_is_bounded_and_holds_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.access.tokens.MAX_REMEMBERED", 3)
    assert MAX_REMEMBERED > 3
    setting = Setting()
    tokens = [setting.token(jti=str(number)) for number in range(5)]
    for token in tokens:
        setting.verify(token)
    remembered = setting.verifier._remembered
    assert list(remembered) == [sha256(token.encode()).digest() for token in tokens[2:]]
    assert tokens[-1] not in repr(remembered)


@pytest.mark.parametrize(
    ("credential", "fits"), [(b"eyJh.eyJi.c", True), (b"sk-abc", False), (b"eyJh.b", False), (b"a.b.c", False)]
)
def test_what_looks_like_a_token(credential: bytes, fits: bool) -> None:
    assert TokenVerifier.fits(credential) is fits

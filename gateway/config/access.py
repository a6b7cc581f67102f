"""The sections that say who may come in: authentication, tenants, TLS."""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from gateway.config.addresses import JwksUrl
from gateway.config.fields import SHOWN, Count, ModelName, Name, Seconds, Section, Words
from gateway.config.files import CaFile, CertificateFile, ExistingFile, JwksFile, matching_key
from gateway.config.secrets import ApiKeys, ApiKeysFile


class Tls(Section):
    """Certificates of a listener. The files are read again when they change: new connections get the new ones."""

    cert_file: CertificateFile = Field(
        description="Certificate chain (PEM), the server's own first.", examples=["server.pem"]
    )
    key_file: ExistingFile = Field(description="Its private key (PEM), without a password.", examples=["server.key"])
    client_ca_file: CaFile | None = Field(
        default=None,
        description="Clients must show a certificate that one of these CAs (PEM) has signed.",
        examples=["clients-ca.pem"],
    )

    _key = field_validator("key_file")(matching_key)


class Jwt(Section):
    """Bearer tokens that somebody else signs. A token names its tenant; tenants that are not listed are refused."""

    jwks_file: JwksFile | None = Field(
        default=None, description="The signer's public keys (a JWK set).", examples=["jwks.json"]
    )
    jwks_url: JwksUrl | None = Field(
        default=None,
        description="The same, fetched from here and again every jwks_refresh_s. http only on loopback.",
        examples=["https://login.example.com/.well-known/jwks.json"],
        json_schema_extra=SHOWN,
    )
    jwks_refresh_s: Seconds = Field(default=300.0, description="Time between two fetches of jwks_url.")
    issuer: Words = Field(description="What `iss` of a token must be.", examples=["https://login.example.com/"])
    audience: Words = Field(description="What `aud` of a token must be, or hold.", examples=["warmroute"])
    tenant_claim: Words = Field(default="tenant", description="The claim that names the tenant.")
    algorithms: Annotated[
        tuple[Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"], ...],
        Field(min_length=1),
    ] = Field(default=("RS256", "ES256", "EdDSA"), description="Signatures accepted. Only asymmetric ones exist here.")
    leeway_s: Annotated[float, Field(ge=0, le=600)] = Field(
        default=30.0, description="How far clocks may differ when `exp` and `nbf` are checked."
    )


class Auth(Section):
    """Who clients are. With any key or with jwt, every request to /v1 needs a credential."""

    forward_credentials: bool = Field(
        default=False,
        description="true: the client's authorization and x-api-key go to backends that have no api_key of their own.",
    )
    jwt: Jwt | None = Field(default=None, description="Accept bearer tokens besides API keys.")


class Tenant(Section):
    """Whose requests they are. Sessions, lineage and cache salt are kept apart by tenant."""

    name: Name = Field(description="Unique; stands in logs and metrics.", examples=["team-a"])
    api_keys: ApiKeys = Field(
        default=(),
        description="Its keys, several while one replaces another: ${NAME}, or sha256: and the hex digest of a key.",
        examples=[["${TEAM_A_KEY}"]],
        json_schema_extra=SHOWN,
    )
    api_keys_file: ApiKeysFile = Field(
        default=(),
        description="The same from a file, one per line: keys, or sha256: and the hex digest of one.",
        examples=["/run/secrets/team-a"],
    )
    models: Annotated[tuple[ModelName, ...], Field(min_length=1)] | None = Field(
        default=None, description="Models it may use, by name or alias. Unset: all.", examples=[["llama-3.1-8b"]]
    )
    max_concurrent_requests: Count | None = Field(
        default=None, description="More at once are refused with 429. Unset: no limit.", examples=[64]
    )
    requests_per_min: Count | None = Field(
        default=None,
        description="More, on average, are refused with 429; a burst of ten seconds' worth may pass. Unset: no limit.",
        examples=[600],
    )
    cache_salt: Literal["auto", "gateway", "client"] = Field(
        default="auto",
        description="gateway: engines get a salt of the tenant's own, so that nobody shares or times its cache; the"
        " client's is removed. client: the client's passes. auto: gateway as soon as there are two tenants.",
    )
    sees_decisions: bool = Field(
        default=False,
        description="Its responses carry x-warmroute-decision and x-warmroute-cached-tokens. Without tenants all do.",
    )

    @property
    def key_digests(self) -> frozenset[bytes]:
        """SHA-256 of every key: the keys themselves are not kept."""
        return frozenset((*self.api_keys, *self.api_keys_file))

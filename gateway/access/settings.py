"""What access needs of a config, with all that can fail done: `Access.apply` itself cannot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.access.jwks import KeySet, read_key_set
from gateway.access.keys import ApiKeys
from gateway.access.proxies import TrustedProxies
from vocabulary.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gateway.config import Config
    from gateway.config.access import Jwt, Tenant


@dataclass(frozen=True, slots=True)
class TenantSettings:
    name: str
    max_concurrent_requests: int | None
    requests_per_min: int | None
    models: frozenset[str] | None
    owns_salt: bool
    """The gateway salts its requests."""
    sees_decisions: bool


@dataclass(frozen=True, slots=True)
class AccessSettings:
    tenants: tuple[TenantSettings, ...]
    keys: ApiKeys
    proxies: TrustedProxies
    forward_credentials: bool
    jwt: Jwt | None
    key_set: KeySet | None
    """Of jwks_file."""


def access_settings(config: Config) -> AccessSettings:
    """Reads auth.jwt.jwks_file. Raises ConfigError."""
    owned = len(config.tenants) > 1
    return AccessSettings(
        tenants=tuple(_tenant(entry, config, owned=owned) for entry in config.tenants),
        keys=ApiKeys({entry.name: sorted(entry.key_digests) for entry in config.tenants}),
        proxies=TrustedProxies(config.listen.trusted_proxies),
        forward_credentials=config.auth.forward_credentials,
        jwt=config.auth.jwt,
        key_set=_file_keys(config.auth.jwt),
    )


def _tenant(entry: Tenant, config: Config, *, owned: bool) -> TenantSettings:
    return TenantSettings(
        entry.name,
        entry.max_concurrent_requests,
        entry.requests_per_min,
        None if entry.models is None else _all_names(entry.models, config),
        entry.cache_salt == "gateway" or (entry.cache_salt == "auto" and owned),
        entry.sees_decisions,
    )


def _all_names(models: Iterable[str], config: Config) -> frozenset[str]:
    """A model may be asked for by any of its names, whichever of them the tenant's list has."""
    names = set(models)
    for name in tuple(names):
        if (entry := config.model(name)) is not None:
            names.update((entry.name, *entry.aliases))
    return frozenset(names)


def _file_keys(jwt: Jwt | None) -> KeySet | None:
    if jwt is None or jwt.jwks_file is None:
        return None
    try:
        return read_key_set(jwt.jwks_file.read_bytes(), jwt.algorithms)
    except OSError as error:
        raise ConfigError(f"auth.jwt.jwks_file cannot be read ({type(error).__name__})") from error
    except ValueError as error:
        raise ConfigError(f"auth.jwt.jwks_file: {error}") from error

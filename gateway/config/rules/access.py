"""Rules of auth and tenants: everybody listed can come in, and as one tenant only."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from pydantic_core import PydanticCustomError

from gateway.config.problems import Finding
from gateway.config.rules.fleet import unknown_models
from gateway.config.rules.tree import entries, given, one_of_two, section, unique_names
from gateway.config.secrets import file_digests, key_digest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.config.fields import Surroundings
    from gateway.config.problems import Location
    from gateway.config.rules.tree import Tree


def auth(tree: Tree) -> Iterator[Finding]:
    found = section(tree, "auth")
    if found.get("forward_credentials") is True:
        message = "backends without an api_key see the clients' credentials"
        yield Finding(("auth", "forward_credentials"), message, "meant only for engines that check them", warning=True)
    jwt = found.get("jwt")
    if not isinstance(jwt, dict):
        return
    yield from one_of_two(jwt, ("auth", "jwt"), "jwks_file", "jwks_url")
    if not given(jwt, "jwks_url"):
        if not given(jwt, "jwks_file"):
            yield Finding(("auth", "jwt"), "the signer's keys are missing", "add jwks_url or jwks_file", on_key=True)
        if given(jwt, "jwks_refresh_s"):
            message = "has an effect only with jwks_url"
            yield Finding(("auth", "jwt", "jwks_refresh_s"), message, "the file is read again when it changes")
    if not tree.get("tenants"):
        message = "every token is refused: it must name a tenant that is listed, and there is none"
        yield Finding(("auth", "jwt"), message, "add tenants", on_key=True)


def tenants(tree: Tree) -> Iterator[Finding]:
    yield from unique_names(tree, "tenants")
    with_jwt = given(section(tree, "auth"), "jwt")
    listed = list(entries(tree, "tenants"))
    for location, entry in listed:
        if not with_jwt and not entry.get("api_keys") and not given(entry, "api_keys_file"):
            message = "nobody can come in as this tenant: it has no key, and there is no auth.jwt"
            yield Finding(location, message, "add api_keys or api_keys_file")
        yield from unknown_models(tree, (*location, "models"), entry.get("models"))
        if entry.get("cache_salt") == "client" and len(listed) > 1:
            message = "clients choose the salt: a tenant that learns another's can time its cache"
            yield Finding((*location, "cache_salt"), message, "use auto or gateway", warning=True)


def lasting_salts(tree: Tree) -> Iterator[Finding]:
    """Salts come from the deployment secret."""
    kinds = [entry.get("cache_salt", "auto") for _, entry in entries(tree, "tenants")]
    salted = "gateway" in kinds or ("auto" in kinds and len(kinds) > 1)
    store = section(tree, "store")
    if salted and not given(store, "secret") and not given(store, "secret_file"):
        message = "the tenants' cache salts are new at each start: what engines have cached is lost with every restart"
        yield Finding(("tenants",), message, "set store.secret", on_key=True, warning=True)


def shared_keys(tree: Tree, surroundings: Surroundings) -> Iterator[Finding]:
    """A key stands for one tenant and nothing else. Compares digests; keys that cannot be read are skipped."""
    token = _digest_or_none(section(tree, "admin").get("token"), surroundings)
    owner: dict[bytes, int] = {}
    for location, entry in entries(tree, "tenants"):
        position = int(location[1])
        for place, digest in _digests(location, entry, surroundings):
            if digest == token:
                yield Finding(place, "this key is the admin token too", "its clients would rule the gateway")
            if owner.setdefault(digest, position) != position:
                yield Finding(place, "this key is another tenant's too", f"also tenants[{owner[digest]}]")


def _digests(location: Location, entry: Tree, surroundings: Surroundings) -> Iterator[tuple[Location, bytes]]:
    keys = entry.get("api_keys")
    for i, key in enumerate(keys if isinstance(keys, tuple) else ()):
        digest = _digest_or_none(key, surroundings)
        if digest is not None:
            yield (*location, "api_keys", i), digest
    with contextlib.suppress(PydanticCustomError):
        for digest in file_digests(entry.get("api_keys_file"), surroundings):
            yield (*location, "api_keys_file"), digest


def _digest_or_none(key: Any, surroundings: Surroundings) -> bytes | None:
    try:
        return key_digest(key, surroundings)
    except PydanticCustomError:
        return None

"""Rules of listen and admin: who reaches them, and that no two want the same address."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Final

from gateway.config.addresses import is_loopback
from gateway.config.problems import Finding
from gateway.config.rules.tree import entries, given, number, one_of_two, section, texts
from gateway.config.sections import Admin, Listen
from gateway.endpoints import Endpoints

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.config.rules.tree import Tree

_LONG_KEEP_ALIVE_S: Final = 120


def listen(tree: Tree) -> Iterator[Finding]:
    found = section(tree, "listen")
    yield from _exposure(tree, found)
    keep_alive = number(found.get("keep_alive_s"))
    if keep_alive is not None and keep_alive > _LONG_KEEP_ALIVE_S:
        hint = f"{_LONG_KEEP_ALIVE_S} or less unless the proxy in front keeps connections longer"
        yield Finding(("listen", "keep_alive_s"), "idle connections are held for long", hint, warning=True)
    body = number(found.get("max_body_mb", Listen().max_body_mb))
    buffered = number(found.get("max_buffered_mb", Listen().max_buffered_mb))
    if body is not None and buffered is not None and body > buffered:
        place = ("listen", "max_buffered_mb" if "max_buffered_mb" in found else "max_body_mb")
        yield Finding(place, "max_body_mb is more than max_buffered_mb: the largest bodies are never taken")
    for i, network in texts(found.get("trusted_proxies")):
        if network.endswith("/0"):
            message = "every client is believed to be a proxy, and may name any address as its own"
            yield Finding(("listen", "trusted_proxies", i), message, "name the proxies' networks", warning=True)


def _exposure(tree: Tree, found: Tree) -> Iterator[Finding]:
    keys, open_to_all = has_keys(tree), found.get("allow_unauthenticated") is True
    if keys and open_to_all:
        message = "has no effect: there are keys, so every request needs one"
        yield Finding(("listen", "allow_unauthenticated"), message, "remove it", on_key=True, warning=True)
    host = found.get("host")
    if not isinstance(host, str) or is_loopback(host):
        return
    if not keys and not open_to_all:
        hint = "give tenants keys, or set listen.allow_unauthenticated: true if the network keeps strangers out"
        yield Finding(("listen", "host"), "not a loopback address, and clients are not authenticated", hint)
    # a proxy that is trusted is where https ends
    elif keys and not given(found, "tls") and not found.get("trusted_proxies"):
        hint = "set listen.tls, or listen.trusted_proxies if https ends at a proxy"
        yield Finding(("listen", "host"), "keys and prompts cross the network unencrypted", hint, warning=True)


def has_keys(tree: Tree) -> bool:
    """Whether clients are asked who they are."""
    if given(section(tree, "auth"), "jwt"):
        return True
    return any(entry.get(key) for _, entry in entries(tree, "tenants") for key in ("api_keys", "api_keys_file"))


def admin(tree: Tree) -> Iterator[Finding]:
    found = section(tree, "admin")
    yield from one_of_two(found, ("admin",), "token", "token_file")
    host = found.get("host")
    if not isinstance(host, str) or is_loopback(host):
        return
    if not given(found, "token") and not given(found, "token_file"):
        hint = "set admin.token: ${NAME} or admin.token_file, or use 127.0.0.1"
        yield Finding(("admin", "host"), "not a loopback address, and callers need no token", hint)
        return
    if not found.get("hosts"):
        hint = "list in admin.hosts the names that callers use"
        yield Finding(("admin", "host"), "callers that use a name and not the address are refused", hint, warning=True)
    if not given(found, "tls"):
        yield Finding(("admin", "host"), "the token crosses the network unencrypted", "set admin.tls", warning=True)


def ports(tree: Tree) -> Iterator[Finding]:
    """No two listeners at one address. Port 0 takes a free one and clashes with none."""
    taken: list[tuple[str, str, int]] = []
    for path, host, port in _addresses(tree):
        for other, its_host, its_port in taken:
            if port == its_port != 0 and _overlap(host, its_host):
                named = section(tree, path[0])
                place = path if path[1] in named else tuple(other.split("."))
                yield Finding(place, f"{other} and {'.'.join(path)} are the same")
        taken.append((".".join(path), host, port))


def _addresses(tree: Tree) -> Iterator[tuple[tuple[str, str], str, int]]:
    for name, defaults in (("listen", Listen()), ("admin", Admin())):
        found = section(tree, name)
        host, port = found.get("host", defaults.host), found.get("port", defaults.port)
        if isinstance(host, str) and isinstance(port, int):
            yield (name, "port"), host, port
    bind = section(tree, "admin").get("metrics_bind")
    if isinstance(bind, str):
        host, _, digits = bind.rpartition(":")
        if digits.isdecimal():
            yield ("admin", "metrics_bind"), host, int(digits)


def _overlap(one: str, other: str) -> bool:
    first, second = _address(one), _address(other)
    return first == second or "" in (first, second)


def _address(host: str) -> str:
    """Equal for one address; empty for all addresses."""
    try:
        address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host.strip("[]"))
    except ValueError:
        return host.lower()
    return "" if address.is_unspecified else str(address)


def paths(tree: Tree) -> Iterator[Finding]:
    built_in = Endpoints().paths
    before: list[str] = []
    for i, path in texts(section(tree, "listen").get("paths")):
        place = ("listen", "paths", i)
        if path in built_in:
            yield Finding(place, "this path is built in", "remove it", warning=True)
        for earlier in before:
            if path == earlier or (earlier.endswith("*") and path.startswith(earlier[:-1])):
                yield Finding(place, "already covered by an earlier entry", "remove it")
                break
        before.append(path)

"""Rules of discovery: each kind has its own knobs, and what is found needs names of its own."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Final

from gateway.config.problems import Finding
from gateway.config.rules.tree import entries, given, one_of_two, unique_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gateway.config.problems import Location
    from gateway.config.rules.tree import Tree

_KNOBS: Final[Mapping[str, tuple[str, ...]]] = {
    "dns": ("host", "port", "scheme", "refresh_s", "ca_file"),
    "file": ("path", "refresh_s", "ca_file"),
    "kubernetes": ("service", "selector", "namespace", "kubeconfig", "port", "scheme", "ca_file"),
}
"""Of each kind, besides those that all have."""
_SPECIAL: Final = tuple(dict.fromkeys(key for keys in _KNOBS.values() for key in keys))


def discovery(tree: Tree) -> Iterator[Finding]:
    yield from unique_names(tree, "discovery")
    backends = [entry.get("name") for _, entry in entries(tree, "backends")]
    for location, entry in entries(tree, "discovery"):
        kind, name = entry.get("kind"), entry.get("name")
        if isinstance(kind, str) and kind in _KNOBS:
            yield from _foreign_knobs(location, entry, kind)
            yield from _needed_knobs(location, entry, kind)
        yield from one_of_two(entry, location, "api_key", "api_key_file")
        if kind != "file" and given(entry, "ca_file") and entry.get("scheme", "http") == "http":
            yield Finding((*location, "ca_file"), "has no effect with scheme: http", on_key=True)
        for i, backend in enumerate(backends):
            if isinstance(name, str) and isinstance(backend, str) and backend.startswith(f"{name}-"):
                message = f"backends[{i}] has a name like those of what is found here"
                yield Finding((*location, "name"), message, "they begin with this name and a dash")


def _foreign_knobs(location: Location, entry: Tree, kind: str) -> Iterator[Finding]:
    for key in _SPECIAL:
        if given(entry, key) and key not in _KNOBS[kind]:
            others = " or ".join(other for other, keys in _KNOBS.items() if key in keys)
            yield Finding((*location, key), f"has no effect with kind: {kind}", f"it is of {others}", on_key=True)


def _needed_knobs(location: Location, entry: Tree, kind: str) -> Iterator[Finding]:
    place = (*location, "kind")
    if kind == "kubernetes":
        if not given(entry, "service") and not given(entry, "selector"):
            yield Finding(place, "kind: kubernetes needs service or selector", "add service: NAME")
        yield from one_of_two(entry, location, "service", "selector")
    elif kind == "file":
        if not given(entry, "path"):
            yield Finding(place, "kind: file needs path", "add path: FILE")
    else:
        yield from _dns(location, entry)


def _dns(location: Location, entry: Tree) -> Iterator[Finding]:
    host, port = entry.get("host"), entry.get("port")
    if host is None:
        yield Finding((*location, "kind"), "kind: dns needs host", "add host: NAME")
    if isinstance(host, str) and host.startswith("_"):
        if port is not None:
            yield Finding((*location, "port"), "has no effect: SRV records name the port", "remove it", on_key=True)
        return
    if isinstance(host, str) and _is_address(host):
        yield Finding((*location, "host"), "is an address and no name", "list it under backends")
    if port is None and host is not None:
        yield Finding((*location, "host"), "needs port: A and AAAA records name none", "add port: NUMBER")
    if isinstance(port, str) and not port.isdecimal():
        yield Finding((*location, "port"), "must be a number with kind: dns")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True

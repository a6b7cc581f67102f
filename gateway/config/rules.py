"""Rules that span fields. They read the raw tree, so they also run where single fields are wrong.

Each rule yields its findings and skips whatever has not the right type: that is reported by the field itself.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from gateway.config.fields import is_loopback
from gateway.config.fleet import Policy
from gateway.config.problems import Finding
from gateway.config.root import DEFAULT_ROUTE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from gateway.config.problems import Location

    Tree = Mapping[str, Any]
    Rule = Callable[[Tree], Iterator[Finding]]

_LONG_KEEP_ALIVE_S: Final = 120
_PARAMETERS: Final = tuple(key for key in Policy.model_fields if key != "name")


def _section(tree: Tree, name: str) -> Tree:
    value = tree.get(name)
    return value if isinstance(value, dict) else {}


def _entries(tree: Tree, name: str) -> Iterator[tuple[Location, Tree]]:
    value = tree.get(name)
    for i, entry in enumerate(value if isinstance(value, tuple) else ()):
        if isinstance(entry, dict):
            yield (name, i), entry


def _texts(value: Any) -> Iterator[tuple[int, str]]:
    for i, item in enumerate(value if isinstance(value, tuple) else ()):
        if isinstance(item, str):
            yield i, item


def listeners(tree: Tree) -> Iterator[Finding]:
    listen, admin = _section(tree, "listen"), _section(tree, "admin")
    host = listen.get("host")
    if isinstance(host, str) and not is_loopback(host) and listen.get("allow_unauthenticated") is not True:
        hint = "set listen.allow_unauthenticated: true if the network in front keeps strangers out"
        yield Finding(("listen", "host"), "not a loopback address, and clients are not authenticated", hint)
    admin_host = admin.get("host")
    if isinstance(admin_host, str) and not is_loopback(admin_host):
        yield Finding(("admin", "host"), "must be a loopback address", "127.0.0.1, ::1 or localhost")
    ports = listen.get("port", 8000), admin.get("port", 8001)
    if ports[0] == ports[1] != 0:
        place = ("admin", "port") if "port" in admin else ("listen", "port")
        yield Finding(place, "listen.port and admin.port are the same")
    keep_alive = listen.get("keep_alive_s")
    if isinstance(keep_alive, int | float) and keep_alive > _LONG_KEEP_ALIVE_S:
        hint = f"{_LONG_KEEP_ALIVE_S} or less unless the proxy in front keeps connections longer"
        yield Finding(("listen", "keep_alive_s"), "idle connections are held for long", hint, warning=True)


def store(tree: Tree) -> Iterator[Finding]:
    section = _section(tree, "store")
    url = section.get("url")
    if isinstance(url, str) and url != "memory":
        yield Finding(("store", "url"), "must be memory: state is kept in the process", "write url: memory")
    yield from _one_of_two(section, ("store",), "secret", "secret_file")


def _one_of_two(entry: Tree, location: Location, first: str, second: str) -> Iterator[Finding]:
    if entry.get(first) is not None and entry.get(second) is not None:
        yield Finding((*location, second), f"{first} and {second} are both given", "keep one", on_key=True)


def models(tree: Tree) -> Iterator[Finding]:
    taken: dict[str, str] = {}
    for location, entry in _entries(tree, "models"):
        named = [((*location, "name"), entry.get("name"))]
        named += [((*location, "aliases", i), alias) for i, alias in _texts(entry.get("aliases"))]
        for place, name in named:
            if not isinstance(name, str):
                continue
            if name in taken:
                yield Finding(place, "this name or alias is already taken", f"by {taken[name]}")
            taken.setdefault(name, f"models[{location[1]}]")
        yield from _encoding(location, entry)


def _encoding(location: Location, entry: Tree) -> Iterator[Finding]:
    encoding = entry.get("encoding", "bytes")
    if encoding == "bytes":
        for key in ("tokenizer", "chat_template", "block_size"):
            if entry.get(key) is not None:
                message = "has no effect with encoding: bytes"
                yield Finding((*location, key), message, "remove it, or write encoding: tokens", on_key=True)
    if encoding == "tokens":
        if entry.get("tokenizer") is None:
            yield Finding((*location, "encoding"), "encoding: tokens needs a tokenizer", "add tokenizer: FILE")
        if entry.get("chat_template") is None:
            message = "without chat_template chats are routed by load alone"
            yield Finding((*location, "encoding"), message, "add chat_template: FILE", warning=True)


def backends(tree: Tree) -> Iterator[Finding]:
    names: dict[str, int] = {}
    addresses: dict[tuple[str, str, int | None], int] = {}
    for location, entry in _entries(tree, "backends"):
        position = int(location[1])
        name, url = entry.get("name"), entry.get("url")
        if isinstance(name, str):
            if name in names:
                yield Finding((*location, "name"), "duplicate name", f"also backends[{names[name]}]")
            names.setdefault(name, position)
        address = _address(url)
        if address is not None:
            if address in addresses:
                yield Finding((*location, "url"), "duplicate url", f"also backends[{addresses[address]}]")
            addresses.setdefault(address, position)
        yield from _one_of_two(entry, location, "api_key", "api_key_file")
        yield from _tls(location, entry, address)


def _address(url: Any) -> tuple[str, str, int | None] | None:
    """Equal for URLs of one endpoint; None for what is no URL."""
    try:
        parts = urlsplit(url) if isinstance(url, str) else None
        if parts is None or not parts.hostname:
            return None
        scheme = parts.scheme.lower()
        return scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(scheme)
    except ValueError:
        return None


def _tls(location: Location, entry: Tree, address: tuple[str, str, int | None] | None) -> Iterator[Finding]:
    unverified = entry.get("tls_verify") is False
    ca_file = entry.get("ca_file") is not None
    if address is not None and address[0] == "http":
        for key, given in (("ca_file", ca_file), ("tls_verify", unverified)):
            if given:
                yield Finding((*location, key), "has no effect on an http url", on_key=True)
    elif unverified and ca_file:
        yield Finding((*location, "ca_file"), "has no effect with tls_verify: false", "keep one", on_key=True)
    elif unverified:
        yield Finding((*location, "tls_verify"), "any certificate is accepted", "use ca_file", warning=True)


def routes(tree: Tree) -> Iterator[Finding]:
    known = dict.fromkeys(_known_models(tree))
    names: dict[str, int] = {}
    for_all: int | None = None
    for location, entry in _entries(tree, "routes"):
        position, name = int(location[1]), entry.get("name")
        if isinstance(name, str):
            if name in names:
                yield Finding((*location, "name"), "duplicate name", f"also routes[{names[name]}]")
            names.setdefault(name, position)
            if name == DEFAULT_ROUTE and entry.get("models") is not None:
                yield Finding((*location, "name"), "the name default is kept for the route without models")
        if for_all is not None:
            message = f"never reached: routes[{for_all}] takes every model"
            yield Finding(location, message, "put the route without models last")
        elif entry.get("models") is None:
            for_all = position
        for i, model in _texts(entry.get("models")):
            if model not in known:
                near = difflib.get_close_matches(model, known, 1)
                hint = f"did you mean {near[0]}?" if near else "name it under models, or in models of a backend"
                yield Finding((*location, "models", i), "unknown model", hint)


def _known_models(tree: Tree) -> Iterator[str]:
    for _, entry in _entries(tree, "models"):
        if isinstance(entry.get("name"), str):
            yield entry["name"]
        yield from (alias for _, alias in _texts(entry.get("aliases")))
    for _, entry in _entries(tree, "backends"):
        yield from (model for _, model in _texts(entry.get("models")))


def models_in_routes(tree: Tree) -> Iterator[Finding]:
    canonical = {
        alias: entry["name"]
        for _, entry in _entries(tree, "models")
        if isinstance(entry.get("name"), str)
        for _, alias in _texts(entry.get("aliases"))
    }
    taken: dict[str, int] = {}
    for location, entry in _entries(tree, "routes"):
        for i, model in _texts(entry.get("models")):
            name = canonical.get(model, model)
            if name in taken:
                yield Finding((*location, "models", i), f"never reached: routes[{taken[name]}] takes this model")
            taken.setdefault(name, int(location[1]))


def policies(tree: Tree) -> Iterator[Finding]:
    windows: dict[float, int] = {}
    for location, entry in _entries(tree, "routes"):
        policy = entry.get("policy", "warm")
        parameters: Tree = policy if isinstance(policy, dict) else {}
        if (parameters.get("name", "warm") if parameters else policy) != "warm":
            for key in _PARAMETERS:
                if key in parameters:
                    yield Finding((*location, "policy", key), "has an effect only with policy warm", on_key=True)
            continue
        window = parameters.get("live_window_s", Policy().live_window_s)
        if isinstance(window, int | float):
            if windows and window not in windows:
                other = next(iter(windows.values()))
                yield Finding((*location, "policy", "live_window_s"), f"must be the same as in routes[{other}]")
            windows.setdefault(window, int(location[1]))


def no_interpolation(tree: Tree) -> Iterator[Finding]:
    """`${NAME}` outside the secrets is a mistake and not a value."""

    def walk(value: Any, location: Location) -> Iterator[Finding]:
        if isinstance(value, dict):
            for key, inner in value.items():
                if key not in {"api_key", "secret"}:
                    yield from walk(inner, (*location, key))
        elif isinstance(value, tuple):
            for i, inner in enumerate(value):
                yield from walk(inner, (*location, i))
        elif isinstance(value, str) and "${" in value:
            yield Finding(location, "environment variables are read only in secrets", "api_key and store.secret")

    return walk(tree, ())


RULES: Final[tuple[Rule, ...]] = (
    listeners,
    store,
    models,
    backends,
    routes,
    models_in_routes,
    policies,
    no_interpolation,
)


def some_backend(tree: Tree) -> Iterator[Finding]:
    """Only for files: code may build a config before its backends have ports."""
    if not tree.get("backends") and isinstance(tree.get("backends", ()), tuple):
        yield Finding(("backends",), "at least one backend is needed", "add - {name: gpu-1, url: http://HOST:PORT}")

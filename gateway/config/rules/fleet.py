"""Rules of models and backends: unique, known, and without knobs that contradict."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from gateway.config.problems import Finding
from gateway.config.rules.tree import entries, given, one_of_two, texts, unique_names
from prefix_index.encoding.template_files import template_sources

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.config.fields import Surroundings
    from gateway.config.problems import Location
    from gateway.config.rules.tree import Tree


_ENCODINGS: Final = frozenset({"bytes", "tokens", "engine"})
_KNOBS_OF: Final = {
    "tokenizer": frozenset({"tokens"}),
    "chat_template": frozenset({"tokens"}),
    "block_size": frozenset({"tokens", "engine"}),
    "encode_timeout_ms": frozenset({"engine"}),
}
"""The encodings that a knob is for."""
_BESIDE: Final = "it stands beside the tokenizer"


def models(tree: Tree) -> Iterator[Finding]:
    taken: dict[str, str] = {}
    for location, entry in entries(tree, "models"):
        named = [((*location, "name"), entry.get("name"))]
        named += [((*location, "aliases", i), alias) for i, alias in texts(entry.get("aliases"))]
        for place, name in named:
            if not isinstance(name, str):
                continue
            if name in taken:
                yield Finding(place, "this name or alias is already taken", f"by {taken[name]}")
            taken.setdefault(name, f"models[{location[1]}]")
        yield from _encoding(location, entry)


def _encoding(location: Location, entry: Tree) -> Iterator[Finding]:
    encoding = entry.get("encoding", "bytes")
    for key, wanted in _KNOBS_OF.items():
        if given(entry, key) and isinstance(encoding, str) and encoding in _ENCODINGS - wanted:
            message = f"has no effect with encoding: {encoding}"
            hint = f"remove it, or write encoding: {' or '.join(sorted(wanted, reverse=True))}"
            yield Finding((*location, key), message, hint, on_key=True)
    if encoding == "tokens" and not given(entry, "tokenizer"):
        yield Finding((*location, "encoding"), "encoding: tokens needs a tokenizer", "add tokenizer: FILE")


def chat_templates(tree: Tree, surroundings: Surroundings) -> Iterator[Finding]:
    """What is read beside a tokenizer is good, and there is a template."""
    for location, entry in entries(tree, "models"):
        tokenizer = entry.get("tokenizer")
        if entry.get("encoding") != "tokens" or not isinstance(tokenizer, str | Path) or "\0" in str(tokenizer):
            continue
        if given(entry, "chat_template"):
            continue
        try:
            found = template_sources(surroundings.base / tokenizer).default is not None
        except OSError as error:
            name = Path(str(error.filename)).name
            yield Finding((*location, "tokenizer"), f"{name} cannot be read: {error.strerror}", _BESIDE)
        except ValueError as error:
            yield Finding((*location, "tokenizer"), str(error), _BESIDE)
        else:
            if not found:
                message = "without a chat template chats are routed by load alone"
                yield Finding((*location, "encoding"), message, "add chat_template: FILE", warning=True)


def known_models(tree: Tree) -> Iterator[str]:
    for _, entry in entries(tree, "models"):
        if isinstance(entry.get("name"), str):
            yield entry["name"]
        yield from (alias for _, alias in texts(entry.get("aliases")))
    for name in ("backends", "discovery"):
        for _, entry in entries(tree, name):
            yield from (model for _, model in texts(entry.get("models")))


def unknown_models(tree: Tree, location: Location, listed: Any) -> Iterator[Finding]:
    known = dict.fromkeys(known_models(tree))
    for i, model in texts(listed):
        if model not in known:
            near = difflib.get_close_matches(model, known, 1)
            hint = f"did you mean {near[0]}?" if near else "name it under models, or in models of a backend"
            yield Finding((*location, i), "unknown model", hint)


def backends(tree: Tree) -> Iterator[Finding]:
    yield from unique_names(tree, "backends")
    addresses: dict[tuple[str, str, int | None], int] = {}
    for location, entry in entries(tree, "backends"):
        address = _address(entry.get("url"))
        if address is not None:
            if address in addresses:
                yield Finding((*location, "url"), "duplicate url", f"also backends[{addresses[address]}]")
            addresses.setdefault(address, int(location[1]))
        yield from one_of_two(entry, location, "api_key", "api_key_file")
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
    if address is not None and address[0] == "http":
        for key in ("ca_file", "cert_file", "key_file"):
            if given(entry, key):
                yield Finding((*location, key), "has no effect on an http url", on_key=True)
        if unverified:
            yield Finding((*location, "tls_verify"), "has no effect on an http url", on_key=True)
        return
    for key, other in (("cert_file", "key_file"), ("key_file", "cert_file")):
        if given(entry, key) and not given(entry, other):
            yield Finding((*location, key), f"needs {other}", f"add {other}: FILE", on_key=True)
    if unverified and given(entry, "ca_file"):
        yield Finding((*location, "ca_file"), "has no effect with tls_verify: false", "keep one", on_key=True)
    elif unverified:
        yield Finding((*location, "tls_verify"), "any certificate is accepted", "use ca_file", warning=True)


def some_backend(tree: Tree) -> Iterator[Finding]:
    """Only for files: code may build a config before its backends have ports."""
    if not tree.get("backends") and isinstance(tree.get("backends", ()), tuple) and not tree.get("discovery"):
        message = "at least one backend is needed, here or by discovery"
        yield Finding(("backends",), message, "add - {name: gpu-1, url: http://HOST:PORT}")

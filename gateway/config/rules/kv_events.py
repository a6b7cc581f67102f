"""Rules of KV events: they name tokens, so only a model whose tokens are known can use them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.config.problems import Finding
from gateway.config.rules.tree import entries, section, texts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.config.problems import Location
    from gateway.config.rules.tree import Tree


def kv_events(tree: Tree) -> Iterator[Finding]:
    encodings = _encodings(tree)
    endpoints: dict[str, int] = {}
    for location, entry in entries(tree, "backends"):
        events = section(entry, "kv_events")
        endpoint = events.get("endpoint")
        if isinstance(endpoint, str):
            if endpoint in endpoints:
                message = "another backend's events come from there"
                yield Finding((*location, "kv_events", "endpoint"), message, f"also backends[{endpoints[endpoint]}]")
            endpoints.setdefault(endpoint, int(location[1]))
        if events:
            yield from _without_tokens(location, entry, encodings)
    for location, entry in entries(tree, "discovery"):
        if section(entry, "kv_events"):
            yield from _without_tokens(location, entry, encodings)


def _encodings(tree: Tree) -> dict[str, object]:
    """By every name of a model."""
    found = {}
    for _, entry in entries(tree, "models"):
        names = [entry.get("name"), *(alias for _, alias in texts(entry.get("aliases")))]
        found.update({name: entry.get("encoding", "bytes") for name in names if isinstance(name, str)})
    return found


def _without_tokens(location: Location, entry: Tree, encodings: dict[str, object]) -> Iterator[Finding]:
    listed = [model for _, model in texts(entry.get("models"))]
    asked = listed or list(encodings)
    if any(encodings.get(model) not in (None, "bytes") for model in asked):
        return
    message = "needs a model with encoding: tokens: events name blocks of tokens"
    hint = "write it under models: {name: NAME, encoding: tokens, tokenizer: FILE}"
    yield Finding((*location, "kv_events"), message, hint, on_key=True)

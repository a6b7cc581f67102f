"""Rules that span fields. They read the raw tree, so they also run where single fields are wrong.

Each rule yields its findings and skips whatever has not the right type: that is reported by the field itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gateway.config.problems import Finding
from gateway.config.root import Config
from gateway.config.rules.access import auth, lasting_salts, shared_keys, tenants
from gateway.config.rules.discovery import discovery
from gateway.config.rules.fleet import backends, chat_templates, models, some_backend
from gateway.config.rules.kv_events import kv_events
from gateway.config.rules.listeners import admin, listen, paths, ports
from gateway.config.rules.routes import models_in_routes, policies, routes
from gateway.config.rules.tree import Rule, Tree, one_of_two, section
from gateway.config.schema import interpolated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.config.problems import Location

__all__ = ["RULES", "Rule", "chat_templates", "no_interpolation", "shared_keys", "some_backend"]

_INTERPOLATED: Final = frozenset(interpolated(Config))


def store(tree: Tree) -> Iterator[Finding]:
    found = section(tree, "store")
    url = found.get("url")
    if isinstance(url, str) and url != "memory":
        yield Finding(("store", "url"), "must be memory: state is kept in the process", "write url: memory")
    yield from one_of_two(found, ("store",), "secret", "secret_file")


def no_interpolation(tree: Tree) -> Iterator[Finding]:
    """`${NAME}` outside the secrets is a mistake and not a value."""

    def walk(value: Any, location: Location) -> Iterator[Finding]:
        if isinstance(value, dict):
            for key, inner in value.items():
                if key not in _INTERPOLATED:
                    yield from walk(inner, (*location, key))
        elif isinstance(value, tuple):
            for i, inner in enumerate(value):
                yield from walk(inner, (*location, i))
        elif isinstance(value, str) and "${" in value:
            hint = ", ".join(sorted(_INTERPOLATED))
            yield Finding(location, "environment variables are read only in secrets", hint)

    return walk(tree, ())


RULES: Final[tuple[Rule, ...]] = (
    listen,
    admin,
    ports,
    paths,
    auth,
    tenants,
    lasting_salts,
    store,
    models,
    backends,
    discovery,
    kv_events,
    routes,
    models_in_routes,
    policies,
)

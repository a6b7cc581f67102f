"""Rules of routes and their policies: every one can be reached, every parameter has an effect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.config.fleet import Policy
from gateway.config.problems import Finding
from gateway.config.root import DEFAULT_ROUTE
from gateway.config.rules.fleet import unknown_models
from gateway.config.rules.tree import entries, number, section, texts, unique_names
from gateway.config.sections import Sessions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.config.rules.tree import Tree

_PARAMETERS: Final = tuple(key for key in Policy.model_fields if key != "name")


def routes(tree: Tree) -> Iterator[Finding]:
    yield from unique_names(tree, "routes")
    for_all: int | None = None
    for location, entry in entries(tree, "routes"):
        if entry.get("name") == DEFAULT_ROUTE and entry.get("models") is not None:
            yield Finding((*location, "name"), "the name default is kept for the route without models")
        if for_all is not None:
            message = f"never reached: routes[{for_all}] takes every model"
            yield Finding(location, message, "put the route without models last")
        elif entry.get("models") is None:
            for_all = int(location[1])
        yield from unknown_models(tree, (*location, "models"), entry.get("models"))


def models_in_routes(tree: Tree) -> Iterator[Finding]:
    canonical = {
        alias: entry["name"]
        for _, entry in entries(tree, "models")
        if isinstance(entry.get("name"), str)
        for _, alias in texts(entry.get("aliases"))
    }
    taken: dict[str, int] = {}
    for location, entry in entries(tree, "routes"):
        for i, model in texts(entry.get("models")):
            name = canonical.get(model, model)
            if name in taken:
                yield Finding((*location, "models", i), f"never reached: routes[{taken[name]}] takes this model")
            taken.setdefault(name, int(location[1]))


def policies(tree: Tree) -> Iterator[Finding]:
    windows: dict[float, int] = {}
    for location, entry in entries(tree, "routes"):
        policy = entry.get("policy", "warm")
        parameters: Tree = policy if isinstance(policy, dict) else {}
        if (parameters.get("name", "warm") if parameters else policy) != "warm":
            for key in _PARAMETERS:
                if key in parameters:
                    yield Finding((*location, "policy", key), "has an effect only with policy warm", on_key=True)
            continue
        window = number(parameters.get("live_window_s", Policy().live_window_s))
        if window is not None:
            if windows and window not in windows:
                other = next(iter(windows.values()))
                yield Finding((*location, "policy", "live_window_s"), f"must be the same as in routes[{other}]")
            windows.setdefault(window, int(location[1]))
    yield from _forgotten_while_live(tree, max(windows, default=Policy().live_window_s))


def _forgotten_while_live(tree: Tree, window_s: float) -> Iterator[Finding]:
    idle_ttl = number(section(tree, "sessions").get("idle_ttl_s", Sessions().idle_ttl_s))
    if idle_ttl is not None and idle_ttl < window_s:
        message = "shorter than live_window_s of the routes: sessions are forgotten while they count as live"
        yield Finding(("sessions", "idle_ttl_s"), message, f"{window_s:g} or more", warning=True)

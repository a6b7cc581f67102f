"""The whole config, as the rest of the gateway reads it. Immutable; a reload builds a new one."""

import hashlib
import json
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from pydantic import Field, PrivateAttr

from gateway.config.fields import Section
from gateway.config.fleet import Backend, Model, Policy, Route
from gateway.config.problems import Problem
from gateway.config.sections import Admin, Health, Limits, Listen, Sessions, Store, Telemetry

DEFAULT_ROUTE: Final = "default"
"""Name of the route that takes what no other takes."""


class Config(Section):
    """Build it with `load`, `loads` or `default_config`: they also apply the rules that span fields."""

    listen: Listen = Listen()
    admin: Admin = Admin()
    store: Store = Store()
    models: tuple[Model, ...] = Field(
        default=(),
        description="How prompts are encoded, per model. Empty: as bytes, which needs no files. An example entry:",
    )
    backends: tuple[Backend, ...] = Field(default=(), description="The engines. At least one.")
    routes: tuple[Route, ...] = Field(
        default=(), description="Which policy places what. Empty: one route for all, as here."
    )
    sessions: Sessions = Sessions()
    limits: Limits = Limits()
    health: Health = Health()
    telemetry: Telemetry = Telemetry()

    _warnings: tuple[Problem, ...] = PrivateAttr(default=())

    @property
    def warnings(self) -> tuple[Problem, ...]:
        """What is legal but probably not meant, by place."""
        return self._warnings

    @cached_property
    def id(self) -> str:
        """12 hex digits: equal for equal settings, on any machine. Secrets do not enter, files by name only."""
        settings = self.model_dump(mode="python", exclude={"store": {"secret", "secret_file"}})
        for backend in settings["backends"]:
            del backend["api_key"], backend["api_key_file"]
        text = json.dumps(settings, sort_keys=True, separators=(",", ":"), default=_plain)
        return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()

    @cached_property
    def all_routes(self) -> tuple[Route, ...]:
        """The routes, ending with one that takes every model."""
        if self.routes and self.routes[-1].models is None:
            return self.routes
        return (*self.routes, Route(name=DEFAULT_ROUTE))

    @cached_property
    def _model_by_name(self) -> dict[str, Model]:
        return {name: model for model in self.models for name in (model.name, *model.aliases)}

    def model(self, name: str) -> Model | None:
        """The entry that names the model, by its name or an alias."""
        return self._model_by_name.get(name)

    def route(self, model: str) -> Route:
        """The first route for a model, given by name or alias."""
        entry = self.model(model)
        names = {model} if entry is None else {entry.name, *entry.aliases}
        return next(route for route in self.all_routes if route.models is None or not names.isdisjoint(route.models))

    @property
    def live_window_s(self) -> float:
        """Of all routes: the rules make sure that it is one."""
        return next((r.policy.live_window_s for r in self.routes if r.policy.name == "warm"), Policy().live_window_s)


def _plain(value: Any) -> str:
    if isinstance(value, Path):
        return value.name
    raise TypeError(type(value).__name__)

"""The whole config, as the rest of the gateway reads it. Immutable; a reload builds a new one."""

import hashlib
import json
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from pydantic import Field, PrivateAttr, SecretStr

from gateway.config.access import Auth, Tenant
from gateway.config.discovery import Discovery
from gateway.config.fields import COMMENTED, Section
from gateway.config.fleet import Backend, Model, Policy, Route
from gateway.config.problems import Problem
from gateway.config.schema import secrecy
from gateway.config.sections import Admin, Health, Limits, Listen, Sessions, Store, Telemetry

DEFAULT_ROUTE: Final = "default"
"""Name of the route that takes what no other takes."""


class Config(Section):
    """Build it with `load`, `loads` or `default_config`: they also apply the rules that span fields."""

    listen: Listen = Listen()
    admin: Admin = Admin()
    auth: Auth = Auth()
    tenants: tuple[Tenant, ...] = Field(
        default=(),
        description="Empty: nobody is asked who they are, and all are one tenant. An example entry:",
        json_schema_extra=COMMENTED,
    )
    store: Store = Store()
    models: tuple[Model, ...] = Field(
        default=(),
        description="How prompts are encoded, per model. Empty: as bytes, which needs no files. An example entry:",
    )
    backends: tuple[Backend, ...] = Field(default=(), description="The engines. At least one, here or by discovery.")
    discovery: tuple[Discovery, ...] = Field(
        default=(),
        description="Sources of further backends. Empty: none. An example entry:",
        json_schema_extra=COMMENTED,
    )
    routes: tuple[Route, ...] = Field(
        default=(), description="Which policy places what. Empty: one route for all, as here."
    )
    sessions: Sessions = Sessions()
    limits: Limits = Limits()
    health: Health = Health()
    telemetry: Telemetry = Telemetry()

    _warnings: tuple[Problem, ...] = PrivateAttr(default=())
    _source: Path | None = PrivateAttr(default=None)
    _named_files: tuple[Path, ...] = PrivateAttr(default=())

    @property
    def warnings(self) -> tuple[Problem, ...]:
        """What is legal but probably not meant, by place."""
        return self._warnings

    @property
    def source(self) -> Path | None:
        """The file it was read from; None for a text, or one built in code."""
        return self._source

    @property
    def files(self) -> tuple[Path, ...]:
        """All that a reload would read: the file itself and those it names, of secrets too, each once."""
        return self._named_files if self._source is None else (self._source, *self._named_files)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Every secret in clear, to mask it wherever it might appear. Of clients' keys only digests are kept."""
        return tuple(secret.get_secret_value() for secret in _secrets(self))

    @cached_property
    def id(self) -> str:
        """12 hex digits: equal for equal settings, on any machine. Secrets do not enter, files by name only."""
        text = json.dumps(_plain(self), sort_keys=True, separators=(",", ":"))
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


def _plain(value: Any) -> Any:
    if isinstance(value, Section):
        fields = type(value).model_fields
        return {key: _plain(getattr(value, key)) for key, info in fields.items() if secrecy(info) is None}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value.name if isinstance(value, Path) else value


def _secrets(value: Any) -> Iterator[SecretStr]:
    if isinstance(value, SecretStr):
        yield value
    elif isinstance(value, Section):
        for key in type(value).model_fields:
            yield from _secrets(getattr(value, key))
    elif isinstance(value, tuple):
        for item in value:
            yield from _secrets(item)

"""What the gateway knows per model: its encoder, its token ratio, its route. Built once from the config, and for
models that only the backends name on first use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vocabulary.errors import InvalidBody, ModelMissing, ModelNotFound, NoBackendAvailable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from backends.registry import Registry
    from prefix_index.encoding.protocol import Encoder
    from prefix_index.encoding.ratio import BytesPerToken
    from routing import Policy, PolicyState


@dataclass(frozen=True, slots=True)
class Model:
    """One model, whatever name a client used for it."""

    name: str
    """Canonical: the metrics label and part of every block key."""
    route: str
    policy: Policy
    state: PolicyState
    encoder: Encoder
    ratios: BytesPerToken | None
    """Bytes per engine token for the `bytes` encoding; None where the encoding's units are tokens."""

    def tokens_per_unit(self) -> float:
        """Engine tokens in one unit of the encoding."""
        return 1.0 / self.ratios.ratio(self.name) if self.ratios is not None else 1.0

    def learn(self, units: int, tokens: int) -> None:
        """The engine counted `tokens` in a prompt of so many units."""
        if self.ratios is not None:
            self.ratios.observe(self.name, units, tokens)


class Models:
    """Resolves the `model` of a request body. Only names that the config or a backend knows ever enter the table."""

    def __init__(self, configured: Mapping[str, Model], build: Callable[[str], Model], registry: Registry) -> None:
        self._table = dict(configured)
        self._configured = frozenset(configured)
        self._build = build
        self._registry = registry

    def replace(self, configured: Mapping[str, Model], build: Callable[[str], Model]) -> None:
        """From now on by another config."""
        self._table = dict(configured)
        self._configured = frozenset(configured)
        self._build = build

    def forget_unserved(self) -> None:
        """Names that only backends knew, which are gone."""
        served = self._registry.models
        for name in self._table.keys() - self._configured - served:
            del self._table[name]

    def resolve(self, requested: object) -> tuple[str, Model]:
        """(name as requested, model). Raises InvalidBody, ModelMissing, ModelNotFound, NoBackendAvailable."""
        if requested is None or requested == "":
            requested = self._only_one()
        elif not isinstance(requested, str):
            raise InvalidBody("model must be a string", param="model")
        model = self._table.get(requested)
        if model is None:
            if not self._registry.serving(requested):
                self._raise_unknown()
            model = self._table[requested] = self._build(requested)
        return requested, model

    def any(self) -> Model:
        """For a request that names no model, where any backend will do."""
        model = self._table.get("")
        if model is None:
            model = self._table[""] = self._build("")
        return model

    def _only_one(self) -> str:
        names = self._registry.models
        if len(names) == 1:
            return next(iter(names))
        if not names:
            raise NoBackendAvailable("no backend has answered so far")
        raise ModelMissing("the request names no model, and the fleet serves more than one", param="model")

    def _raise_unknown(self) -> None:
        if any(not backend.models for backend in self._registry):
            raise NoBackendAvailable("no backend is known to serve this model yet; some have not answered so far")
        raise ModelNotFound("no backend serves this model; GET /v1/models lists those there are", param="model")

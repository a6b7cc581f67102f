"""The fleet: which backends exist, which instance each one is on, who serves which model."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Protocol

from backends.backend import Backend, BackendSpec
from backends.engines import ENGINES
from backends.health import Health, HealthPolicy
from backends.instance import Instance
from vocabulary import BackendId, InstanceId

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from backends.engines import Engine
    from backends.load import EngineLoad
    from backends.transport import Upstream


class FleetListener(Protocol):
    """Who keeps state per instance hears when one begins and ends."""

    def instance_started(self, instance: Instance) -> None: ...

    def instance_retired(self, instance: Instance) -> None:
        """Its cache is gone. Leases may still be open on it."""
        ...

    def load_changed(self, instance: Instance) -> None:
        """`instance.engine_load` is newer."""
        ...

    def spec_changed(self, instance: Instance) -> None:
        """`instance.backend.spec` is another one; the engine behind it is the same."""
        ...


class Registry:
    """Owned by one event loop. `serving` is the hot read; everything else happens at human speed."""

    def __init__(
        self,
        health_policy: HealthPolicy,
        make_upstream: Callable[[BackendSpec], Upstream],
        clock: Callable[[], float],
        models_changed: Callable[[], None],
    ) -> None:
        self._health_policy = health_policy
        self._make_upstream = make_upstream
        self._clock = clock
        self._models_changed = models_changed
        self._instance_ids = itertools.count(1)
        self._backends: dict[BackendId, Backend] = {}
        self._by_model: dict[str, tuple[Backend, ...]] = {}
        self._listeners: list[FleetListener] = []

    def listen(self, listener: FleetListener) -> None:
        self._listeners.append(listener)
        for backend in self._backends.values():
            listener.instance_started(backend.instance)

    def set_health_policy(self, policy: HealthPolicy) -> None:
        """For all backends, also those to come; what they count goes on."""
        self._health_policy = policy
        for backend in self._backends.values():
            backend.health.set_policy(policy)

    def add(self, spec: BackendSpec) -> Backend:
        """Raises ValueError when a backend of that name is there."""
        if spec.name in self._backends:
            raise ValueError(f"backend {spec.name} exists")
        return self._enter(spec)

    def remove(self, name: BackendId) -> Backend:
        """Takes no new request from now on; running ones end on their own leases and connections."""
        backend = self._backends.pop(name)
        self._retire(backend.instance)
        self._index_models()
        return backend

    def replace(self, spec: BackendSpec) -> Backend:
        """Another backend takes over the name in one step; the old one is as if removed."""
        old = self._backends[spec.name]
        new = self._enter(spec)
        self._retire(old.instance)
        return new

    def update(self, spec: BackendSpec) -> Backend:
        """Other settings for the same engine over the same connections."""
        backend = self._backends[spec.name]
        before, backend.spec = backend.spec, spec
        if spec.models != before.models:
            self.set_models(backend, spec.models or tuple(backend.model_cards))
        if spec.engine is not before.engine:
            backend.instance.engine = _engine(spec)
        for listener in self._listeners:
            listener.spec_changed(backend.instance)
        return backend

    def reconnect(self, spec: BackendSpec) -> Upstream:
        """Other connections to the same engine, which keeps its instance. Returns the old ones, to be closed."""
        backend = self._backends[spec.name]
        before, backend.upstream = backend.upstream, self._make_upstream(spec)
        self.update(spec)
        return before

    def restart(self, backend: Backend) -> Instance:
        """The engine behind a backend began a new life: new instance, empty cache, zero counts."""
        if self._backends.get(backend.name) is not backend:  # it has left: nobody would retire the new life
            return backend.instance
        old = backend.instance
        backend.restarts += 1
        self._retire(old)
        if old.in_flight:
            backend.former.append(old)
            old.when_idle(lambda: backend.former.remove(old))
        return self._start_instance(backend)

    def set_load(self, backend: Backend, load: EngineLoad) -> None:
        backend.instance.engine_load = load
        for listener in self._listeners:
            listener.load_changed(backend.instance)

    def set_models(self, backend: Backend, models: tuple[str, ...]) -> None:
        if backend.models != models:
            backend.models = models
            self._index_models()

    def serving(self, model: str) -> tuple[Backend, ...]:
        """All backends that have the model, in whatever state they are."""
        return self._by_model.get(model, ())

    @property
    def models(self) -> frozenset[str]:
        return frozenset(self._by_model)

    def get(self, name: BackendId) -> Backend | None:
        return self._backends.get(name)

    def __iter__(self) -> Iterator[Backend]:
        return iter(tuple(self._backends.values()))

    def __len__(self) -> int:
        return len(self._backends)

    def _enter(self, spec: BackendSpec) -> Backend:
        backend = Backend(spec, self._make_upstream(spec), Health(self._health_policy))
        self._start_instance(backend)
        self._backends[spec.name] = backend
        self._index_models()
        return backend

    def _start_instance(self, backend: Backend) -> Instance:
        instance = Instance(InstanceId(next(self._instance_ids)), backend, self._clock())
        instance.engine = _engine(backend.spec)
        backend.instance = instance
        for listener in self._listeners:
            listener.instance_started(instance)
        return instance

    def _retire(self, instance: Instance) -> None:
        instance.retired = True
        for listener in self._listeners:
            listener.instance_retired(instance)

    def _index_models(self) -> None:
        by_model: dict[str, list[Backend]] = {}
        for backend in self._backends.values():
            for model in backend.models:
                by_model.setdefault(model, []).append(backend)
        self._by_model = {model: tuple(backends) for model, backends in by_model.items()}
        self._models_changed()


def _engine(spec: BackendSpec) -> Engine | None:
    return ENGINES[spec.engine] if spec.engine is not None else None

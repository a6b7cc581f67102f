"""Backends come, rest, change and go while requests run.

Invariants: a request that runs ends on the connections that it began on, whatever becomes of its backend (O07); of a
backend that is gone nothing is kept, neither entries nor tasks nor series (O37, O38); each reason to drain is taken
back by who gave it. All but `remove` and `stop` is one step of the event loop.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from vocabulary import BackendId

if TYPE_CHECKING:
    from collections.abc import Callable

    from structlog.typing import FilteringBoundLogger

    from backends.backend import Backend, BackendSpec, DrainReason
    from backends.prober import Prober
    from backends.registry import Registry
    from backends.transport import Upstream
    from gateway.fleet import FleetState
    from gateway.metrics import Metrics


class _Leaving(NamedTuple):
    task: asyncio.Task[None]
    reason: DrainReason | None
    """Of its drain; None for one whose name another backend has taken over."""


class FleetControl:
    """Every change of the fleet goes through here. Unknown names raise KeyError."""

    def __init__(
        self,
        registry: Registry,
        prober: Prober,
        fleet: FleetState,
        metrics: Metrics,
        clock: Callable[[], float],
        log: FilteringBoundLogger,
    ) -> None:
        self._registry = registry
        self._prober = prober
        self._fleet = fleet
        self._metrics = metrics
        self._clock = clock
        self._log = log
        self._started = False
        self._leaving: dict[Backend, _Leaving] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._emptying: set[Backend] = set()

    # Life.

    def start(self) -> None:
        """Probe what is there, and what comes."""
        self._started = True
        for backend in self._registry:
            self._prober.watch(backend)

    async def stop(self) -> None:
        """No removal goes on. Waits for the requests on backends that have left, so their clients must be gone."""
        self._started = False
        for leaving in self._leaving.values():
            if leaving.reason is not None:  # still in the registry: whoever stops that closes them
                leaving.task.cancel()
        tasks = {*(leaving.task for leaving in self._leaving.values()), *self._closing}
        if tasks:
            await asyncio.wait(tasks)

    @property
    def replaced(self) -> tuple[Backend, ...]:
        """Backends that have left while requests still run on them."""
        return tuple(backend for backend, leaving in self._leaving.items() if leaving.reason is None)

    # The list of backends.

    def add(self, spec: BackendSpec) -> Backend:
        """Raises ValueError where a backend of that name is there. One that is being removed gives up the name: the new
        one inherits neither its requests nor its cache (O37, O50)."""
        old = self._registry.get(spec.name)
        if old is not None and old in self._leaving:
            return self._take_over(old, spec)
        backend = self._registry.add(spec)
        self._log.info("backend_added", backend=spec.name)
        return self._watched(backend)

    def change(self, spec: BackendSpec) -> Backend:
        """The backend of that name is to be so: added, changed in place, or replaced by another engine."""
        old = self._registry.get(spec.name)
        if old is None or old in self._leaving:
            return self.add(spec)
        if old.spec == spec:
            return old
        if old.spec.endpoint == spec.endpoint:
            return self.update(spec)
        return self.replace(spec)

    def update(self, spec: BackendSpec) -> Backend:
        """Other settings of the same engine, over the same connections; cache and counts stay."""
        backend = self._get(spec.name)
        if backend.spec.endpoint != spec.endpoint:
            raise ValueError("another endpoint needs other connections")
        self._log.info("backend_updated", backend=spec.name)
        return self._registry.update(spec)

    def replace(self, spec: BackendSpec) -> Backend:
        """Another endpoint under the same name. At the same address it is the same engine (a new key or certificate):
        its cache stays known, and only new requests get new connections. At another address it is another backend,
        which takes requests once its first probe has passed. Running requests end where they are (O07); other
        reasons to drain are kept.
        """
        old = self._get(spec.name)
        if old in self._leaving:
            return self._take_over(old, spec)
        before = old.spec.endpoint
        if (before.host, before.port) != (spec.endpoint.host, spec.endpoint.port):
            return self._take_over(old, spec, old.drain_reasons)
        self._close(self._registry.reconnect(spec))
        self._prober.drop(old)
        self._log.info("backend_reconnected", backend=spec.name)
        return self._watched(old)

    def remove_later(self, name: str, reason: DrainReason = "config") -> asyncio.Task[None]:
        """Drain, and forget it everywhere once it is empty. The task is owned here; `undrain` with the same reason
        calls it off."""
        backend = self._get(name)
        leaving = self._leaving.get(backend)
        if leaving is None:
            self.drain(name, reason)
            leaving = self._see_off(backend, reason)
        return leaving.task

    async def remove(self, name: str, reason: DrainReason = "config") -> None:
        """As `remove_later`; returns when it is gone, or was called off. Cancelling the wait does not stop it."""
        await asyncio.wait([self.remove_later(name, reason)])

    # Rest.

    def drain(self, name: str, reason: DrainReason = "admin") -> Backend:
        """No new requests; those that run end, and sessions move on their next turn."""
        backend = self._get(name)
        if backend.drain(reason, self._clock()):
            self._log.info("backend_draining", backend=name, reason=reason, in_flight=backend.in_flight)
            if backend not in self._emptying:
                self._emptying.add(backend)
                backend.when_empty(partial(self._emptied, backend))
        return backend

    def undrain(self, name: str, reason: DrainReason = "admin") -> Backend:
        """Takes back that reason alone, and a removal for it. One that began a new life meanwhile is cold."""
        backend = self._get(name)
        leaving = self._leaving.get(backend)
        if leaving is not None and leaving.reason == reason:
            leaving.task.cancel()
            del self._leaving[backend]
        if backend.undrain(reason):
            self._log.info("backend_undrained", backend=name, reason=reason)
            if backend.instance.started_s > backend.draining_since_s:
                self._fleet.ease_in(backend.instance, self._clock())
        return backend

    def flush(self, name: str | None = None) -> tuple[Backend, ...]:
        """The cache of this backend, or of all, is void though the engine lives on (new weights): forget what is said
        to be there. Returns the backends."""
        backends = tuple(self._registry) if name is None else (self._get(name),)
        for backend in backends:
            dropped = self._fleet.flush(backend.instance)
            self._log.info("backend_flushed", backend=backend.name, blocks=dropped)
        return backends

    # Within.

    def _get(self, name: str) -> Backend:
        backend = self._registry.get(BackendId(name))
        if backend is None:
            raise KeyError(name)
        return backend

    def _watched(self, backend: Backend) -> Backend:
        if self._started:
            self._prober.watch(backend)
        return backend

    def _take_over(self, old: Backend, spec: BackendSpec, reasons: tuple[DrainReason, ...] = ()) -> Backend:
        """A new backend gets the name; the old one ends by itself."""
        new = self._registry.replace(spec)
        for reason in reasons:
            new.drain(reason, self._clock())
        self._prober.drop(old)
        leaving = self._leaving.pop(old, None)
        if leaving is not None:
            leaving.task.cancel()
        self._see_off(old, None)
        self._log.info("backend_replaced", backend=spec.name, in_flight=old.in_flight)
        return self._watched(new)

    def _see_off(self, backend: Backend, reason: DrainReason | None) -> _Leaving:
        task = asyncio.create_task(self._leave(backend, reason), name=f"remove {backend.name}")
        leaving = self._leaving[backend] = _Leaving(task, reason)
        task.add_done_callback(partial(self._left, backend))
        return leaving

    async def _leave(self, backend: Backend, reason: DrainReason | None) -> None:
        if reason is not None:
            empty = asyncio.Event()
            backend.when_empty(empty.set)
            await empty.wait()
            self._registry.remove(backend.name)
            self._prober.drop(backend)
            self._metrics.forget_backend(backend.name)
            self._leaving[backend] = self._leaving[backend]._replace(reason=None)
        await backend.upstream.close()
        self._log.info("backend_removed", backend=backend.name)

    def _left(self, backend: Backend, task: asyncio.Task[None]) -> None:
        leaving = self._leaving.get(backend)
        if leaving is not None and leaving.task is task:
            del self._leaving[backend]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.error("backend_removal_failed", backend=backend.name, error=type(error).__name__)

    def _emptied(self, backend: Backend) -> None:
        self._emptying.discard(backend)
        if backend.draining:
            self._log.info("backend_empty", backend=backend.name)

    def _close(self, upstream: Upstream) -> None:
        """Its running calls end first."""
        task = asyncio.create_task(upstream.close(), name="close connections")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

"""The gateway: every object with state is made here, once, and passed to those who need it."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import secrets
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry

from backends.health import State
from backends.prober import Prober
from backends.registry import Registry
from backends.upstream import Pool
from gateway import wiring
from gateway.batch import Batch
from gateway.fleet import FleetState
from gateway.logs import get_logger
from gateway.metrics import NO_BACKEND, UNKNOWN, BackendReading, Metrics, Reading
from gateway.models import Model, Models
from gateway.prepare import Preparer
from gateway.request_ids import RequestIds
from gateway.router import Router
from gateway.sessions import SessionStore
from prefix_index.encoding.bytes_encoder import BytesEncoder
from prefix_index.encoding.ratio import BytesPerToken
from prefix_index.memory import MemoryIndex
from routing import PolicyState

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from backends.backend import Backend, BackendSpec
    from backends.transport import Upstream
    from gateway.config import Config
    from gateway.hot import HotProtocol
    from gateway.metrics import Phase
    from gateway.prepare import Prepared
    from gateway.router import Placement
    from prefix_index.encoding.protocol import Encoder
    from vocabulary.errors import UpstreamError

_CLASS: Final = "interactive"


class Gateway:
    """All state of one gateway process, on the event loop it was built on. `start` and `stop` bracket its tasks."""

    def __init__(self, config: Config, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises ConfigError where a file that the config names cannot be used."""
        self.config = config
        self.clock = clock
        self.log = get_logger("gateway")
        self.draining = False
        """Told to stop: not ready, and connections close after their answer."""
        self.connections: set[HotProtocol] = set()
        self.limits = wiring.request_limits(config)
        self.request_ids = RequestIds(os.urandom(6).hex().encode())
        self.metrics = Metrics(
            CollectorRegistry(), routes=[route.name for route in config.all_routes], config_id=config.id
        )
        self.metrics.read_from(self._read)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._sweep: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._timeouts = wiring.timeouts(config)
        self._secret = hashlib.blake2b(wiring.secret(config) or secrets.token_bytes(32), digest_size=32).digest()
        self.batch = Batch(self._loop)
        self._encoders: list[Encoder] = []
        self._policies = {route.name: wiring.policy(route) for route in config.all_routes}
        self.index = MemoryIndex(config.store.max_entries)
        sessions = config.sessions
        self.sessions = SessionStore(sessions.idle_ttl_s, config.live_window_s, sessions.max_sessions, clock)
        self.registry = Registry(wiring.health_policy(config), self._pool, clock, self._models_changed)
        self.fleet = FleetState(self.index, self.sessions, self.metrics)
        self.registry.listen(self.fleet)
        self._bytes = BytesEncoder(self._secret)
        self._ratios = BytesPerToken()
        self.models = Models(self._configured_models(), self._model, self.registry)
        self.preparer = Preparer(self.models, self.metrics, self._secret, use_lineage=sessions.lineage)
        self.router = Router(
            self.registry,
            self.index,
            self.sessions,
            self.fleet,
            self.metrics,
            self._secret,
            clock,
            decision_headers=config.telemetry.decision_headers,
            on_health=self._health_changed,
        )
        self.prober = Prober(self.registry, wiring.probe_policy(config), clock, self._health_changed)
        for backend in config.backends:
            self.registry.add(wiring.backend_spec(backend, config))

    # Construction.

    def _pool(self, spec: BackendSpec) -> Upstream:
        return Pool(spec.endpoint, self._timeouts, self._loop)

    def _configured_models(self) -> dict[str, Model]:
        table: dict[str, Model] = {}
        for entry in self.config.models:
            model = self._model(entry.name)
            table.update(dict.fromkeys((entry.name, *entry.aliases), model))
        return table

    def _model(self, name: str) -> Model:
        """Also for models that only a backend names: those get the `bytes` encoding."""
        entry = self.config.model(name)
        route = self.config.route(name)
        encoder: Encoder = self._bytes
        if entry is not None and entry.encoding == "tokens":
            encoder = wiring.tokens_encoder(entry, self._secret, partial(self._encoding_differs, name))
            self._encoders.append(encoder)
        return Model(
            name=name,
            route=route.name,
            policy=self._policies[route.name],
            state=PolicyState(rng=random.Random(), config_id=self.config.id),
            encoder=encoder,
            ratios=self._ratios if encoder.name == "bytes" else None,
        )

    def _encoding_differs(self, model: str, reason: str) -> None:
        """From whichever thread noticed."""
        self._loop.call_soon_threadsafe(self._count_mismatch, model, reason)

    def _count_mismatch(self, model: str, reason: str) -> None:
        self.metrics.encode_fallback("mismatch").value += 1
        self.log.warning("encoding_mismatch", model=model, reason=reason)

    # Life.

    async def start(self, first_probe_timeout_s: float = 5.0) -> None:
        """Begin to probe; returns when each backend was probed once, or after the timeout: a fleet that is down is no
        reason not to start (O60)."""
        for backend in self.registry:
            self.prober.watch(backend)
        self._sweep_connections()
        await self.prober.first_round(first_probe_timeout_s)

    def _sweep_connections(self) -> None:
        """Close client connections that wait for a next request for too long."""
        keep_alive_s = self.config.listen.keep_alive_s
        before_s = self.clock() - keep_alive_s
        for connection in list(self.connections):
            connection.close_if_idle(before_s)
        self._sweep = self._loop.call_later(min(1.0, keep_alive_s / 4), self._sweep_connections)

    async def stop(self) -> None:
        """End what still runs; called when no client is connected any more."""
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in list(self.connections):
            connection.transport.abort()
        await self.prober.stop()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for backend in self.registry:
            await backend.upstream.close()
        for encoder in (*self._encoders, self._bytes):
            encoder.close()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task that the gateway owns."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    @property
    def ready(self) -> bool:
        """At least one backend can be reached, and nobody told us to stop."""
        return not self.draining and any(backend.health.reachable for backend in self.registry)

    @property
    def tasks(self) -> int:
        return len(self._tasks)

    # What the hot path reports.

    def count_request(self, prepared: Prepared | None, placement: Placement | None, status: int) -> None:
        backend = placement.metrics.name if placement is not None else NO_BACKEND
        if prepared is None:
            self.metrics.request(UNKNOWN, UNKNOWN, backend, _CLASS, status).value += 1
        else:
            self.metrics.request(prepared.model.route, prepared.model.name, backend, _CLASS, status).value += 1

    def count_cancelled(self, prepared: Prepared | None, phase: Phase) -> None:
        self.metrics.cancelled(prepared.model.route if prepared is not None else UNKNOWN, phase).value += 1

    def log_failure(self, placement: Placement, error: UpstreamError, request_id: bytes) -> None:
        """By the class: the text of an exception may be empty (O75)."""
        self.log.warning(
            "upstream_failed",
            backend=placement.metrics.name,
            error=type(error).__name__,
            request_id=request_id.decode("latin-1"),
        )

    def _read(self) -> Reading:
        index = self.index.stats()
        return Reading(
            backends=[
                BackendReading(
                    name=backend.name,
                    up=backend.health.state is State.UP,
                    in_flight=backend.instance.in_flight,
                    pending_uncached_tokens=backend.instance.pending_uncached_tokens,
                    trust=self.fleet.of(backend.instance).trust,
                )
                for backend in self.registry
            ],
            sessions=self.sessions.stats().sessions,
            index_blocks=index.blocks,
            index_entries=index.entries,
            index_evicted_total=index.evicted_total,
        )

    def _models_changed(self) -> None:
        self.metrics.set_models({*self.registry.models, *(model.name for model in self.config.models)})

    def _health_changed(self, backend: Backend) -> None:
        state = backend.health.state
        log = self.log.info if state is State.UP else self.log.warning
        log("backend_state", backend=backend.name, state=state.value, error=backend.last_error)

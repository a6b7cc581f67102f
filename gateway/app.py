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

from backends.engines.reader import contradiction
from backends.health import State
from backends.prober import Prober
from backends.registry import Registry
from backends.token_client import TokenClient
from backends.upstream import Pool
from gateway import wiring
from gateway.access.access import Access
from gateway.batch import Batch
from gateway.connections import Connections, connection_limits, side_limits
from gateway.eligibility import may_get
from gateway.endpoints import Endpoints
from gateway.engine_tokens import EngineTokens
from gateway.feeds import Feeds
from gateway.fleet import FleetState
from gateway.fleet_sources import FleetSources
from gateway.key_space import KeySpaces
from gateway.lifecycle import FleetControl
from gateway.limits import RequestBuffer
from gateway.logs import get_logger
from gateway.metrics import NO_BACKEND, UNKNOWN, Metrics
from gateway.model_builder import ModelBuilder
from gateway.models import Models
from gateway.plan import first_plan
from gateway.prepare import Preparer
from gateway.readings import BackendReading, Reading
from gateway.request_ids import RequestIds
from gateway.response_ids import ResponseIds
from gateway.router import Router
from gateway.self_check import SelfCheck
from gateway.sessions import SessionStore
from prefix_index.encoding.bytes_encoder import BytesEncoder
from prefix_index.encoding.ratio import BytesPerToken
from prefix_index.memory import MemoryIndex

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from backends.backend import Backend, BackendSpec
    from backends.transport import Upstream
    from backends.upstream import Timeouts
    from gateway.config import Config
    from gateway.metrics import Phase
    from gateway.placement import Placement
    from gateway.prepare import Prepared
    from gateway.reload import Reloader
    from vocabulary.errors import RequestFailed, UpstreamError

_CLASS: Final = "interactive"


class Gateway:
    """All state of one gateway process, on the event loop it was built on. `start` and `stop` bracket its tasks."""

    def __init__(self, config: Config, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises ConfigError where a file that the config names cannot be used."""
        self.config = config
        self.clock = clock
        self.rng = random.Random()
        self.log = get_logger("gateway")
        self.draining = False
        """Told to stop: not ready, and connections close after their answer."""
        self.limits = wiring.request_limits(config)
        self.request_buffer = RequestBuffer(config.listen.max_buffered_bytes)
        self.endpoints = Endpoints(config.listen.paths)
        self.request_ids = RequestIds(os.urandom(6).hex().encode())
        self.metrics = Metrics(
            CollectorRegistry(), routes=[route.name for route in config.all_routes], config_id=config.id
        )
        self.metrics.read_from(self._read)
        self.reloader: Reloader | None = None
        """Set by the process that can read the config anew."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.get_running_loop()
        limits = connection_limits(config)
        self.connections = Connections(limits, clock, self._loop, self.metrics.count_closed)
        self.side_connections = Connections(side_limits(limits), clock, self._loop, self.metrics.count_closed)
        self._timeouts = wiring.timeouts(config)
        self._secret = hashlib.blake2b(wiring.secret(config) or secrets.token_bytes(32), digest_size=32).digest()
        self.batch = Batch(self._loop)
        self.index = MemoryIndex(config.store.max_entries)
        sessions = config.sessions
        self.sessions = SessionStore(sessions.idle_ttl_s, config.live_window_s, sessions.max_sessions, clock)
        self.registry = Registry(wiring.health_policy(config), self._pool, clock, self.models_changed)
        self.fleet = FleetState(self.index, self.sessions, self.metrics)
        self.fleet.set_slow_start(config.health.slow_start_s)
        self.fleet.calibration.log = self.log
        self.registry.listen(self.fleet)
        spaces = KeySpaces(lambda: self.config, self._secret)
        self.feeds = Feeds(self.index, self.fleet, spaces, clock, self._loop, self.log)
        self.registry.listen(self.feeds)
        self.fleet.calibration.of_feed = self.feeds.finding
        self._bytes = BytesEncoder(self._secret)
        self._ratios = BytesPerToken()
        self.token_client = TokenClient()
        builder = self._builder(config, None)
        self.plan = first_plan(config, builder, self.rng)
        self.access = Access(self.plan.access, self._secret, self.metrics.access, self._keys_failed, clock=clock)
        self.models = Models(builder.configured(), builder.build, self.registry)
        self.response_ids = ResponseIds(self._secret)
        self.preparer = Preparer(self.models, self.metrics, self._secret, use_lineage=sessions.lineage)
        self.preparer.ask_usage = config.telemetry.ask_usage
        self.router = Router(
            self.registry,
            self.index,
            self.sessions,
            self.fleet,
            self.metrics,
            clock,
            decision_headers=config.telemetry.decision_headers,
            fail_open=config.health.fail_open,
            on_health=self._health_changed,
        )
        policy = wiring.probe_policy(config)
        self.prober = Prober(self.registry, policy, clock, self._health_changed, self._engine_found)
        self.control = FleetControl(self.registry, self.prober, self.fleet, self.metrics, clock, self.log)
        self.sources = FleetSources(self.control, self.registry, clock, self.rng, self.log)
        self.sources.apply(self.plan.sources)
        self.self_check = SelfCheck(self.registry, self.token_client, clock, self.log)
        self.self_check.apply(builder.subjects())
        for spec in self.plan.specs:
            self.registry.add(spec)

    # Construction.

    def _pool(self, spec: BackendSpec) -> Upstream:
        return Pool(spec.endpoint, self._timeouts, self._loop)

    def _encoding_differs(self, model: str, reason: str) -> None:
        """From whichever thread noticed."""
        self._loop.call_soon_threadsafe(self._count_mismatch, model, reason)

    def _count_mismatch(self, model: str, reason: str) -> None:
        self.metrics.encode_fallback("mismatch").value += 1
        self.log.warning("encoding_mismatch", model=model, reason=reason)

    def _keys_failed(self, error: Exception) -> None:
        self.log.warning("jwks_failed", error=type(error).__name__)

    # What a reload changes.

    def next_builder(self, config: Config) -> ModelBuilder:
        """May run in a thread. Raises ConfigError."""
        return self._builder(config, self.plan.builder)

    def _builder(self, config: Config, before: ModelBuilder | None) -> ModelBuilder:
        return ModelBuilder(
            config,
            self._secret,
            self._bytes,
            self._ratios,
            self._encoding_differs,
            before,
            token_source=partial(EngineTokens, self.registry, self.token_client),
        )

    def retire(self, builder: ModelBuilder, successor: ModelBuilder) -> None:
        """Its encoders end when the requests that are being encoded now have been."""
        running = list(self._tasks)

        async def close_later() -> None:
            try:
                if running:
                    await asyncio.wait(running)
            finally:
                builder.close_but(successor)

        self.spawn(close_later())

    def set_timeouts(self, timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        for backend in self.registry:
            backend.upstream.set_timeouts(timeouts)

    # Life.

    async def start(self, first_probe_timeout_s: float = 5.0) -> None:
        """Begin to probe; returns when each backend was probed once, or after the timeout: a fleet that is down is no
        reason not to start (O60)."""
        self.control.start()
        self.feeds.start()
        self.self_check.start()
        self.connections.start()
        self.side_connections.start()
        await self.access.start()
        until_s = self._loop.time() + first_probe_timeout_s
        self.sources.start()
        await self.sources.first_answers(first_probe_timeout_s)
        await self.prober.first_round(max(0.0, until_s - self._loop.time()))

    async def stop(self) -> None:
        """End what still runs; called when no client is connected any more."""
        self.connections.stop()
        self.side_connections.stop()
        self.feeds.stop()
        await self.sources.stop()
        await self.control.stop()
        await self.self_check.stop()
        await self.access.stop()
        await self.prober.stop()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self.token_client.close()
        for backend in self.registry:
            await backend.upstream.close()
        self.plan.builder.close()
        self._bytes.close()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task that the gateway owns."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    @property
    def ready(self) -> bool:
        """At least one backend may get requests, and nobody told us to stop."""
        return not self.draining and any(may_get(backend, fail_open=self.router.fail_open) for backend in self.registry)

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

    def log_refusal(self, endpoint: str, error: RequestFailed, request_id: bytes) -> None:
        self.log.warning("request_refused", code=error.code, endpoint=endpoint, request_id=request_id.decode("latin-1"))

    def _read(self) -> Reading:
        index, now_s = self.index.stats(), self.clock()
        return Reading(
            backends=[
                BackendReading(
                    name=backend.name,
                    up=backend.health.state is State.UP,
                    draining=backend.draining,
                    in_flight=backend.in_flight,
                    pending_uncached_tokens=backend.instance.pending_uncached_tokens,
                    trust=state.trust,
                    bias=state.record.bias,
                    suspect=suspect.cause if suspect is not None else None,
                )
                for backend in self.registry
                for state in (self.fleet.of(backend.instance),)
                for suspect in (self.fleet.calibration.suspected(state, now_s),)
            ],
            discovery=self.sources.readings(),
            connections=len(self.connections),
            request_bytes_buffered=self.request_buffer.used,
            sessions=self.sessions.stats().sessions,
            reloads=self.reloader.reading() if self.reloader is not None else None,
            parity=self.self_check.readings(),
            index_blocks=index.blocks,
            index_entries=index.entries,
            index_evicted_total=index.evicted_total,
        )

    def models_changed(self) -> None:
        """Other names are served, or configured."""
        self.metrics.set_models({*self.registry.models, *(model.name for model in self.config.models)})
        self.models.forget_unserved()
        self.feeds.review()

    def _engine_found(self, backend: Backend) -> None:
        engine, other = backend.instance.engine, contradiction(backend)
        if engine is not None:
            self.log.info("backend_engine", backend=backend.name, engine=engine.name.value)
        if other is not None:
            self.log.warning("engine_contradicts", backend=backend.name, config=backend.spec.engine, answers=other)

    def _health_changed(self, backend: Backend) -> None:
        state = backend.health.state
        log = self.log.info if state is State.UP else self.log.warning
        log("backend_state", backend=backend.name, state=state.value, error=backend.last_error)
        if state is State.UP:
            self.fleet.ease_in(backend.instance, self.clock())

"""A router over backends that exist in memory only: no socket, no loop, a clock that the test sets."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from backends.backend import Backend, BackendSpec
from backends.health import HealthPolicy
from backends.load import EngineLoad
from backends.registry import Registry
from backends.upstream import Endpoint, Timeouts
from gateway.access.caller import Caller, everyone
from gateway.endpoints import Endpoints
from gateway.fleet import FleetState, InstanceState
from gateway.metrics import Metrics
from gateway.models import Model, Models
from gateway.prepare import Prepared, Preparer
from gateway.router import Router
from gateway.session_id import from_headers
from gateway.sessions import SessionStore
from prefix_index.encoding.bytes_encoder import BytesEncoder
from prefix_index.encoding.ratio import BytesPerToken
from prefix_index.memory import MemoryIndex
from routing import Knobs, PolicyState, build
from vocabulary import BackendId

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from backends.transport import Call, Headers, ResponseSink, UpstreamRequest

SECRET = b"deployment secret"


class NoUpstream:
    """Nothing is ever sent."""

    def send(self, request: UpstreamRequest, sink: ResponseSink) -> Call:
        raise AssertionError("nothing is sent here")

    def set_timeouts(self, timeouts: Timeouts) -> None:
        pass

    def heard_within(self, seconds: float) -> bool:
        return False

    async def close(self) -> None:
        pass


@dataclass
class Fleet:
    """`with Fleet() as fleet:`, then `add` backends and `place` requests."""

    policy: str = "warm"
    lineage: bool = True
    headers: bool = True
    now_s: float = 1000.0
    changed: list[str] = field(default_factory=list)
    """Backends whose health changed, as the router told."""

    def __post_init__(self) -> None:
        self.metrics = Metrics(CollectorRegistry())
        self.index = MemoryIndex(100_000)
        self.sessions = SessionStore(3600.0, 300.0, 10_000, self.clock)
        self.fleet = FleetState(self.index, self.sessions, self.metrics)
        policy = HealthPolicy(eject_after_failures=3, eject_s=10.0)
        self.registry = Registry(policy, lambda spec: NoUpstream(), self.clock, self._models_changed)
        self.registry.listen(self.fleet)
        self.encoder = BytesEncoder(SECRET)
        self.everyone = everyone(SECRET)
        self.ratios = BytesPerToken()
        self.models = Models({}, self._model, self.registry)
        self.endpoints = Endpoints()
        self.preparer = Preparer(self.models, self.metrics, SECRET, use_lineage=self.lineage)
        self.router = Router(
            self.registry,
            self.index,
            self.sessions,
            self.fleet,
            self.metrics,
            self.clock,
            decision_headers=self.headers,
            on_health=lambda backend: self.changed.append(backend.name),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.encoder.close()

    def clock(self) -> float:
        return self.now_s

    def _models_changed(self) -> None:
        self.metrics.set_models(self.registry.models)

    def _model(self, name: str) -> Model:
        state = PolicyState(rng=random.Random(1), config_id="test")
        return Model(name, "default", build(self.policy, Knobs()), state, self.encoder, self.ratios)

    def add(
        self, name: str, models: tuple[str, ...] = ("m",), capacity_tokens: int | None = None, *, up: bool = True
    ) -> Backend:
        endpoint = Endpoint("127.0.0.1", 9)
        backend = self.registry.add(BackendSpec(BackendId(name), endpoint, models, capacity_tokens))
        if up:
            backend.health.probe_passed()
        return backend

    def state(self, backend: Backend) -> InstanceState:
        return self.fleet.of(backend.instance)

    def report(self, backend: Backend, **load: object) -> None:
        """What the engine's metrics say."""
        self.registry.set_load(backend, EngineLoad(**load))  # type: ignore[arg-type]

    def prepare(
        self, body: bytes, headers: Headers | None = None, route: str = "chat", caller: Caller | None = None
    ) -> Prepared:
        path = {"chat": b"/v1/chat/completions"}.get(route, b"/v1/" + route.encode())
        endpoint = self.endpoints.find(b"POST", path)
        assert endpoint is not None
        prepared = self.preparer.prepare(endpoint, body, from_headers(headers or []), caller or self.everyone)
        assert isinstance(prepared, Prepared), "small enough to be encoded at once"
        return prepared

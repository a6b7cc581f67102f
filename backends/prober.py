"""Active probes: one task per backend asks for health and models, and has its engine read in between. Off the request
path, on httpx2.

Invariant: a backend that is watched has exactly one task until it is dropped, whatever its answers and whatever else is
added, replaced or reconfigured (O69).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import socket
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import httpx2

from backends.engines import ENGINES, Page
from backends.engines.reader import EngineReader
from backends.health import State
from backends.local_errors import causes, is_local

if TYPE_CHECKING:
    from collections.abc import Callable

    from backends.backend import Backend
    from backends.registry import Registry

_MAX_ANSWER_BYTES: Final = 16 << 20
_HEALTH: Final = "/health"
_MODELS: Final = "/v1/models"
_NOT_THERE: Final = (404, 405, 501)


@dataclass(frozen=True, slots=True)
class ProbePolicy:
    path: str | None = None
    """None: as the engine has it."""
    interval_s: float = 5.0
    timeout_s: float = 5.0
    """Of each answer as a whole."""
    metrics_interval_s: float = 2.0


class _Watch:
    """One backend's task, and how it is spoken to."""

    __slots__ = ("policy_changed", "probed", "task")

    def __init__(self) -> None:
        self.task: asyncio.Task[None]
        self.probed = asyncio.Event()
        """Set by the first probe, and when there will be none."""
        self.policy_changed = asyncio.Event()


class Prober:
    """`stop` ends all tasks; `watch` and `drop` follow the fleet."""

    def __init__(
        self,
        registry: Registry,
        policy: ProbePolicy,
        clock: Callable[[], float],
        on_change: Callable[[Backend], None],
        on_engine: Callable[[Backend], None] = lambda _: None,
    ) -> None:
        self._registry = registry
        self._policy = policy
        self._clock = clock
        self._on_change = on_change
        self._on_engine = on_engine
        self._watches: dict[Backend, _Watch] = {}
        self._ending: set[asyncio.Task[None]] = set()

    @property
    def watched(self) -> frozenset[Backend]:
        return frozenset(self._watches)

    def watch(self, backend: Backend) -> None:
        """Probe it from now on; nothing changes where that is so already."""
        if backend in self._watches:
            return
        watch = self._watches[backend] = _Watch()
        watch.task = asyncio.create_task(self._run(backend, watch), name=f"probe {backend.name}")

    def drop(self, backend: Backend) -> asyncio.Task[None] | None:
        """No probe begins any more. Returns the task that ends, which `stop` waits for; None if it was not watched."""
        watch = self._watches.pop(backend, None)
        if watch is None:
            return None
        watch.probed.set()
        watch.task.cancel()
        self._ending.add(watch.task)
        watch.task.add_done_callback(self._ending.discard)
        return watch.task

    async def unwatch(self, backend: Backend) -> None:
        """As `drop`; returns when its task has ended."""
        task = self.drop(backend)
        if task is not None:
            await asyncio.wait([task])

    def set_policy(self, policy: ProbePolicy) -> None:
        """The next probe of every backend comes at once, by the new policy."""
        if policy == self._policy:
            return
        self._policy = policy
        for watch in self._watches.values():
            watch.policy_changed.set()

    async def first_round(self, timeout_s: float) -> None:
        """Returns when every backend that is watched now was probed once or dropped, or after the timeout."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                for watch in list(self._watches.values()):
                    await watch.probed.wait()

    async def stop(self) -> None:
        for backend in list(self._watches):
            self.drop(backend)
        if self._ending:
            await asyncio.wait(set(self._ending))

    async def _run(self, backend: Backend, watch: _Watch) -> None:
        endpoint = backend.spec.endpoint
        headers = {"host": endpoint.host_header}
        if endpoint.authorization:
            headers["authorization"] = endpoint.authorization
        scheme = "https" if endpoint.tls else "http"
        verify: Any = endpoint.tls if endpoint.tls else False
        async with httpx2.AsyncClient(
            base_url=f"{scheme}://{endpoint.authority}", headers=headers, verify=verify, trust_env=False
        ) as client:
            reader = EngineReader(
                self._registry, backend, partial(self._page, client, backend), self._on_change, self._on_engine
            )
            while True:
                next_probe_s = self._clock() + self._policy.interval_s
                await self._probe(client, backend, reader)
                watch.probed.set()
                while (wait_s := next_probe_s - self._clock()) > 0:
                    if backend.health.state is not State.DOWN:
                        await reader.read()
                    if await _pause(watch.policy_changed, min(wait_s, self._policy.metrics_interval_s)):
                        break

    async def _probe(self, client: httpx2.AsyncClient, backend: Backend, reader: EngineReader) -> None:
        health = backend.health
        try:
            asked = await self._ask_health(client, backend)
            await self._ask_models(client, backend, is_health=not asked)
        except Exception as error:  # the root of this task: whatever an answer does to us, the next probe comes
            backend.last_error = type(error).__name__
            self._failed(backend, error)
            return
        if health.state in (State.DOWN, State.UNKNOWN):
            await reader.read(returned=health.state is State.DOWN)
        backend.last_error = None
        if health.probe_passed():
            self._on_change(backend)

    def _failed(self, backend: Backend, error: Exception) -> None:
        if is_local(error):
            return  # nothing was asked, so nothing is known of it (O63)
        refused = _refused(error)
        grace_s = self._policy.interval_s * 2
        if not refused and backend.upstream.heard_within(grace_s):
            return  # an engine whose streams flow is busy, not dead (O61)
        if backend.health.probe_failed(self._clock(), grace_s, refused=refused):
            self._on_change(backend)

    async def _ask_health(self, client: httpx2.AsyncClient, backend: Backend) -> bool:
        """False where its model list is its health: nobody said that it has a path of its own, and it has none."""
        engine = backend.spec.engine
        path = self._policy.path or (_HEALTH if engine is None else ENGINES[engine].health_path)
        if path == _MODELS:
            return False
        try:
            await self._get(client, backend, path)
        except httpx2.HTTPStatusError as error:
            if self._policy.path is None and engine is None and error.response.status_code in _NOT_THERE:
                return False
            raise
        return True

    async def _ask_models(self, client: httpx2.AsyncClient, backend: Backend, *, is_health: bool) -> None:
        """Raises ValueError or HTTPError where there is no model list, unless the config names the models."""
        try:
            entries = json.loads(await self._get(client, backend, _MODELS))["data"]
            cards = {str(entry["id"]): dict(entry) for entry in entries}
        except (KeyError, TypeError, ValueError, RecursionError, httpx2.HTTPStatusError) as error:
            if is_health and isinstance(error, httpx2.HTTPStatusError) and error.response.status_code >= 500:
                raise
            if backend.spec.models:
                return
            raise ValueError("no model list") from error
        backend.model_cards = cards
        self._registry.set_models(backend, backend.spec.models or tuple(cards))

    async def _get(self, client: httpx2.AsyncClient, backend: Backend, path: str) -> bytes:
        """The body of a 2xx answer."""
        page = await self._page(client, backend, path)
        if not 200 <= page.status < 300:
            request = httpx2.Request("GET", path)
            raise httpx2.HTTPStatusError("unhealthy", request=request, response=httpx2.Response(page.status))
        return page.body

    async def _page(self, client: httpx2.AsyncClient, backend: Backend, path: str) -> Page:
        """A whole answer within the probe's timeout: one that trickles must not hold the task."""
        timeout_s = self._policy.timeout_s
        name = backend.spec.endpoint.server_hostname
        extensions = {"sni_hostname": name} if name else {}
        async with (
            asyncio.timeout(timeout_s),
            client.stream("GET", path, timeout=timeout_s, extensions=extensions) as response,
        ):
            body = bytearray()
            async for part in response.aiter_bytes():
                body += part
                if len(body) > _MAX_ANSWER_BYTES:
                    raise ValueError("the answer is too large")
            return Page(response.status_code, response.headers, bytes(body))


async def _pause(early: asyncio.Event, seconds: float) -> bool:
    """Returns True when the event cut it short."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await early.wait()
    if not early.is_set():
        return False
    early.clear()
    return True


def _refused(error: Exception) -> bool:
    """The backend's own side said no: nobody listens, or its certificate is not to be trusted. A name that is not
    found, or a network that is away, may be on ours."""
    if not isinstance(error, httpx2.ConnectError):
        return False
    return not any(
        isinstance(cause, socket.gaierror) or (isinstance(cause, OSError) and cause.errno == errno.ENETUNREACH)
        for cause in causes(error)
    )

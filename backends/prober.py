"""Active probes: one task per backend asks for health, models and load. Off the request path, on httpx2.

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
from typing import TYPE_CHECKING, Any, Final

import httpx2

from backends.health import State
from backends.load import EngineLoad, parse_load
from backends.local_errors import is_local

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from backends.backend import Backend
    from backends.registry import Registry

_RESTART_TOLERANCE_S: Final = 1.0  # a start time read twice may differ in its last digits
_MAX_ANSWER_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class ProbePolicy:
    path: str = "/health"
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
        self, registry: Registry, policy: ProbePolicy, clock: Callable[[], float], on_change: Callable[[Backend], None]
    ) -> None:
        self._registry = registry
        self._policy = policy
        self._clock = clock
        self._on_change = on_change
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
            while True:
                next_probe_s = self._clock() + self._policy.interval_s
                await self._probe(client, backend)
                watch.probed.set()
                while (wait_s := next_probe_s - self._clock()) > 0:
                    if backend.health.state is not State.DOWN:
                        await self._scrape(client, backend)
                    if await _pause(watch.policy_changed, min(wait_s, self._policy.metrics_interval_s)):
                        break

    async def _probe(self, client: httpx2.AsyncClient, backend: Backend) -> None:
        health = backend.health
        try:
            await self._get(client, backend, self._policy.path)
            await self._ask_models(client, backend)
        except Exception as error:  # the root of this task: whatever an answer does to us, the next probe comes
            backend.last_error = type(error).__name__
            self._failed(backend, error)
            return
        if health.state in (State.DOWN, State.UNKNOWN):
            returned = health.state is State.DOWN
            await self._scrape(client, backend, returned=returned)
        backend.last_error = None
        if health.probe_passed():
            self._on_change(backend)

    def _failed(self, backend: Backend, error: Exception) -> None:
        if any(is_local(cause) for cause in _causes(error)):
            return  # nothing was asked, so nothing is known of it (O63)
        refused = _refused(error)
        grace_s = self._policy.interval_s * 2
        if not refused and backend.upstream.heard_within(grace_s):
            return  # an engine whose streams flow is busy, not dead (O61)
        if backend.health.probe_failed(self._clock(), grace_s, refused=refused):
            self._on_change(backend)

    async def _ask_models(self, client: httpx2.AsyncClient, backend: Backend) -> None:
        """Raises ValueError or HTTPError where there is no model list, unless the config names the models."""
        try:
            entries = json.loads(await self._get(client, backend, "/v1/models"))["data"]
            cards = {str(entry["id"]): dict(entry) for entry in entries}
        except (KeyError, TypeError, ValueError, RecursionError, httpx2.HTTPStatusError) as error:
            if backend.spec.models:
                return
            raise ValueError("no model list") from error
        backend.model_cards = cards
        self._registry.set_models(backend, backend.spec.models or tuple(cards))

    async def _get(self, client: httpx2.AsyncClient, backend: Backend, path: str) -> bytes:
        """The body of a 2xx answer, whole, within the probe's timeout: one that trickles must not hold the task."""
        timeout_s = self._policy.timeout_s
        name = backend.spec.endpoint.server_hostname
        extensions = {"sni_hostname": name} if name else {}
        async with (
            asyncio.timeout(timeout_s),
            client.stream("GET", path, timeout=timeout_s, extensions=extensions) as response,
        ):
            if not response.is_success:
                raise httpx2.HTTPStatusError("unhealthy", request=response.request, response=response)
            body = bytearray()
            async for part in response.aiter_bytes():
                body += part
                if len(body) > _MAX_ANSWER_BYTES:
                    raise ValueError("the answer is too large")
            return bytes(body)

    async def _scrape(self, client: httpx2.AsyncClient, backend: Backend, *, returned: bool = False) -> None:
        """Engines without metrics are fine. A backend that `returned` from being down counts as restarted, unless its
        metrics say that the process is the same."""
        before = backend.instance.engine_load
        load: EngineLoad | None = None
        if backend.spec.has_metrics:
            with contextlib.suppress(Exception):  # as above: a page that cannot be read costs its figures only
                load = parse_load((await self._get(client, backend, "/metrics")).decode())
        if returned or (before is not None and load is not None and _restarted(before, load)):
            same = before is not None and load is not None and _same_process(before, load)
            if not same:
                self._registry.restart(backend)
                if not returned:  # else the probe tells, once it is up
                    self._on_change(backend)
        if load is not None:
            self._registry.set_load(backend, load)


async def _pause(early: asyncio.Event, seconds: float) -> bool:
    """Returns True when the event cut it short."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await early.wait()
    if not early.is_set():
        return False
    early.clear()
    return True


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and all that led to it; libraries wrap the system's own one several times."""
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        one = todo.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        todo += (one.__cause__, one.__context__)
        if isinstance(one, BaseExceptionGroup):
            todo += one.exceptions


def _refused(error: Exception) -> bool:
    """The backend's own side said no: nobody listens, or its certificate is not to be trusted. A name that is not
    found, or a network that is away, may be on ours."""
    if not isinstance(error, httpx2.ConnectError):
        return False
    return not any(
        isinstance(cause, socket.gaierror) or (isinstance(cause, OSError) and cause.errno == errno.ENETUNREACH)
        for cause in _causes(error)
    )


def _restarted(before: EngineLoad, after: EngineLoad) -> bool:
    if before.start_time_s is None or after.start_time_s is None:
        return False
    return abs(after.start_time_s - before.start_time_s) > _RESTART_TOLERANCE_S


def _same_process(before: EngineLoad, after: EngineLoad) -> bool:
    return before.start_time_s is not None and after.start_time_s is not None and not _restarted(before, after)

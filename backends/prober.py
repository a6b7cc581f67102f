"""Active probes: one task per backend asks for health, models and load. Off the request path, on httpx2."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import httpx2

from backends.health import State
from backends.load import EngineLoad, parse_load

if TYPE_CHECKING:
    from collections.abc import Callable

    from backends.backend import Backend
    from backends.registry import Registry

_RESTART_TOLERANCE_S: Final = 1.0  # a start time read twice may differ in its last digits


@dataclass(frozen=True, slots=True)
class ProbePolicy:
    path: str = "/health"
    interval_s: float = 5.0
    timeout_s: float = 5.0
    metrics_interval_s: float = 2.0


class Prober:
    """`start` and `stop` bracket its tasks; `watch` and `unwatch` follow the fleet."""

    def __init__(
        self, registry: Registry, policy: ProbePolicy, clock: Callable[[], float], on_change: Callable[[Backend], None]
    ) -> None:
        self._registry = registry
        self._policy = policy
        self._clock = clock
        self._on_change = on_change
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._first: dict[str, asyncio.Event] = {}

    def watch(self, backend: Backend) -> None:
        self._first[backend.name] = asyncio.Event()
        self._tasks[backend.name] = asyncio.create_task(self._run(backend), name=f"probe {backend.name}")

    async def unwatch(self, backend: Backend) -> None:
        task = self._tasks.pop(backend.name)
        del self._first[backend.name]
        task.cancel()
        await asyncio.wait([task])

    async def first_round(self, timeout_s: float) -> None:
        """Returns when every backend was probed once, or after the timeout."""
        waits = [asyncio.ensure_future(event.wait()) for event in self._first.values()]
        if not waits:
            return
        _, late = await asyncio.wait(waits, timeout=timeout_s)
        for wait in late:
            wait.cancel()

    async def stop(self) -> None:
        tasks, self._tasks = list(self._tasks.values()), {}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _run(self, backend: Backend) -> None:
        endpoint = backend.spec.endpoint
        headers = {"authorization": endpoint.authorization} if endpoint.authorization else {}
        scheme = "https" if endpoint.tls else "http"
        verify: Any = endpoint.tls if endpoint.tls else False
        async with httpx2.AsyncClient(
            base_url=f"{scheme}://{endpoint.authority}",
            headers=headers,
            timeout=self._policy.timeout_s,
            verify=verify,
            trust_env=False,
        ) as client:
            while True:
                next_probe_s = self._clock() + self._policy.interval_s
                await self._probe(client, backend)
                self._first[backend.name].set()
                while (wait_s := next_probe_s - self._clock()) > 0:
                    if backend.health.state is not State.DOWN:
                        await self._scrape(client, backend)
                    await asyncio.sleep(min(wait_s, self._policy.metrics_interval_s))

    async def _probe(self, client: httpx2.AsyncClient, backend: Backend) -> None:
        health = backend.health
        try:
            response = await client.get(self._policy.path)
            if response.status_code >= 300:
                raise httpx2.HTTPStatusError("unhealthy", request=response.request, response=response)
            await self._ask_models(client, backend)
        except (httpx2.HTTPError, OSError, ValueError) as error:
            backend.last_error = type(error).__name__
            refused = isinstance(error, httpx2.ConnectError)
            grace_s = self._policy.interval_s * 2
            if health.probe_failed(self._clock(), grace_s, refused=refused):
                self._on_change(backend)
            return
        if health.state in (State.DOWN, State.UNKNOWN):
            returned = health.state is State.DOWN
            await self._scrape(client, backend, returned=returned)
        backend.last_error = None
        if health.probe_passed():
            self._on_change(backend)

    async def _ask_models(self, client: httpx2.AsyncClient, backend: Backend) -> None:
        """Raises ValueError or HTTPError where there is no model list, unless the config names the models."""
        try:
            response = await client.get("/v1/models")
            response.raise_for_status()
            cards = {str(entry["id"]): dict(entry) for entry in response.json()["data"]}
        except (KeyError, TypeError, ValueError, httpx2.HTTPStatusError) as error:
            if backend.spec.models:
                return
            raise ValueError("no model list") from error
        backend.model_cards = cards
        self._registry.set_models(backend, backend.spec.models or tuple(cards))

    async def _scrape(self, client: httpx2.AsyncClient, backend: Backend, *, returned: bool = False) -> None:
        """Engines without metrics are fine. A backend that `returned` from being down counts as restarted, unless its
        metrics say that the process is the same."""
        before = backend.instance.engine_load
        load: EngineLoad | None = None
        try:
            if backend.spec.has_metrics:
                response = await client.get("/metrics")
                if response.status_code == 200:
                    load = parse_load(response.text)
        except (httpx2.HTTPError, OSError, ValueError):
            load = None
        if returned or (before is not None and load is not None and _restarted(before, load)):
            same = before is not None and load is not None and _same_process(before, load)
            if not same:
                self._registry.restart(backend)
                if not returned:  # else the probe tells, once it is up
                    self._on_change(backend)
        if load is not None:
            self._registry.set_load(backend, load)


def _restarted(before: EngineLoad, after: EngineLoad) -> bool:
    if before.start_time_s is None or after.start_time_s is None:
        return False
    return abs(after.start_time_s - before.start_time_s) > _RESTART_TOLERANCE_S


def _same_process(before: EngineLoad, after: EngineLoad) -> bool:
    return before.start_time_s is not None and after.start_time_s is not None and not _restarted(before, after)

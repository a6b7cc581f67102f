"""What the sources find becomes backends: added, drained, brought back, changed and removed.

Invariants: a source touches only backends that it brought in itself; only an answer of a source changes its backends,
no error does; a backend that is not ready drains but stays known, so that its cache counts when it comes back.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from backends.discovery.backoff import Backoff
from gateway.readings import SourceReading
from gateway.source_feed import Feed

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable

    from structlog.typing import FilteringBoundLogger

    from backends.backend import Backend, BackendSpec, DrainReason
    from backends.discovery.protocol import Found
    from backends.registry import Registry
    from gateway.source_plan import SourcePlan
    from vocabulary import BackendId

_REASON: Final = "discovery"


class Control(Protocol):
    """What is needed of the one place through which the fleet changes."""

    def add(self, spec: BackendSpec) -> Backend: ...

    def change(self, spec: BackendSpec) -> Backend: ...

    def drain(self, name: str, reason: DrainReason) -> Backend: ...

    def undrain(self, name: str, reason: DrainReason) -> Backend:
        """Also calls off a removal for that reason."""
        ...

    def remove_later(self, name: str, reason: DrainReason) -> asyncio.Task[None]: ...


class _Owned(NamedTuple):
    source: str
    backend: Backend
    """The name may be another's by now: only this object is ours."""


class FleetSources:
    """`start` and `stop` bracket the tasks; `apply` follows the config."""

    def __init__(
        self,
        control: Control,
        registry: Registry,
        clock: Callable[[], float],
        rng: random.Random,
        log: FilteringBoundLogger,
    ) -> None:
        self._control = control
        self._registry = registry
        self._clock = clock
        self._rng = rng
        self._log = log
        self._started = False
        self._feeds: dict[str, Feed] = {}
        self._owned: dict[BackendId, _Owned] = {}
        """What sources brought in, until it is gone from the registry."""
        self._leaving: set[BackendId] = set()
        self._ending: set[asyncio.Task[None]] = set()

    # Life.

    def apply(self, plans: Iterable[SourcePlan]) -> None:
        """Sources whose plan is the same object go on untouched. Changed ones ask anew, and keep what they brought in
        until they have an answer. What others brought in is drained and removed."""
        before, self._feeds = self._feeds, {}
        for plan in plans:
            former = before.pop(plan.name, None)
            if former is not None and former.plan is plan:
                self._feeds[plan.name] = former
                continue
            if former is not None:
                self._end(former)
            feed = self._feeds[plan.name] = Feed(plan, former)
            if self._started:
                self._begin(feed)
        for former in before.values():
            self._end(former)
            for name in self._names(former.plan.name):
                self._see_off(name)
        self._reconcile_all()

    def start(self) -> None:
        self._started = True
        for feed in self._feeds.values():
            self._begin(feed)

    async def first_answers(self, timeout_s: float) -> None:
        """Returns when every source has answered or failed once, or after the timeout."""
        waits = [asyncio.ensure_future(feed.spoke.wait()) for feed in self._feeds.values()]
        if not waits:
            return
        try:
            await asyncio.wait(waits, timeout=timeout_s)
        finally:
            for wait in waits:
                wait.cancel()

    async def stop(self) -> None:
        """What was brought in stays."""
        self._started = False
        for feed in self._feeds.values():
            self._end(feed)
        if self._ending:
            await asyncio.wait(self._ending)

    def _begin(self, feed: Feed) -> None:
        feed.task = asyncio.create_task(self._run(feed), name=f"discovery {feed.plan.name}")

    def _end(self, feed: Feed) -> None:
        task, feed.task = feed.task, None
        if task is not None:
            task.cancel()
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def _run(self, feed: Feed) -> None:
        backoff = Backoff(self._rng, least_s=1.0, most_s=60.0)
        source = feed.plan.make_source()
        while True:
            try:
                await source.run(partial(self._report, feed), partial(self._failed, feed))
            except Exception as error:  # the root of this task: a source that breaks must not end discovery
                self._failed(feed, error)
            await asyncio.sleep(backoff.next_s())

    # What sources tell.

    def _report(self, feed: Feed, found: tuple[Found, ...]) -> None:
        if self._feeds.get(feed.plan.name) is not feed:
            return
        news = feed.heard(found, self._clock())
        if news or feed.refused:
            self._reconcile(feed)
        feed.spoke.set()

    def _failed(self, feed: Feed, error: Exception) -> None:
        if feed.failed(error, self._clock()):
            self._log.warning(
                "discovery_failed", discovery=feed.plan.name, error=type(error).__name__, detail=feed.detail
            )
        feed.spoke.set()

    # From what was found to backends.

    def _reconcile(self, feed: Feed) -> None:
        refused: dict[BackendId, str] = {}
        wanted = self._wanted(feed, refused)
        for name in self._names(feed.plan.name):
            if name not in wanted:
                self._see_off(name)
        ours = frozenset(self._names(feed.plan.name))
        # those of the same answer take their new addresses in the same step
        taken = {_place_of(other.spec) for other in self._registry if other.name not in wanted and not _leaves(other)}
        for name, (found, spec) in wanted.items():
            if not found.takes_traffic:
                self._control.drain(name, _REASON)
            elif name not in ours and self._registry.get(name) is not None:
                refused[name] = "the name is taken"
            elif _place_of(spec) in taken:
                # an engine that is two backends would get twice its share
                refused[name] = "another backend has this address"
                if name in ours:
                    self._see_off(name)
            else:
                self._place(feed.plan.name, spec)
        for name in refused.keys() - feed.refused.keys():
            self._log.warning("discovery_refused", discovery=feed.plan.name, backend=name, reason=refused[name])
        feed.refused = refused

    def _wanted(self, feed: Feed, refused: dict[BackendId, str]) -> dict[BackendId, tuple[Found, BackendSpec]]:
        """As many as may be: those that are here already come first, then by name."""
        plan = feed.plan
        by_name: dict[BackendId, tuple[Found, BackendSpec]] = {}
        for found in feed.found:
            spec = plan.spec(found)
            if spec.name in by_name:
                refused[spec.name] = "two of this name"
            by_name.setdefault(spec.name, (found, spec))
        here = [name for name in self._names(plan.name) if name in by_name and name not in self._leaving]
        known = set(here)
        new = sorted(name for name, (found, _) in by_name.items() if name not in known and found.takes_traffic)
        order = [*here, *new]
        overflow = max(0, len(order) - plan.section.max_backends)
        if overflow > feed.overflow:
            self._log.warning("discovery_overflow", discovery=plan.name, found=len(order), refused=overflow)
        feed.overflow = overflow
        return {name: by_name[name] for name in order[: plan.section.max_backends]}

    def _place(self, source: str, spec: BackendSpec) -> None:
        self._leaving.discard(spec.name)
        if self._registry.get(spec.name) is None:
            backend = self._control.add(spec)
        else:
            self._control.undrain(spec.name, _REASON)
            backend = self._control.change(spec)
        self._owned[spec.name] = _Owned(source, backend)

    def _names(self, source: str) -> list[BackendId]:
        """Its backends in the registry, by name."""
        return sorted(
            name
            for name, owned in self._owned.items()
            if owned.source == source and self._registry.get(name) is owned.backend
        )

    def _see_off(self, name: BackendId) -> None:
        if name not in self._leaving:
            self._leaving.add(name)
            self._control.remove_later(name, _REASON).add_done_callback(partial(self._left, name))

    def _left(self, name: BackendId, task: asyncio.Task[None]) -> None:
        """The removal has ended: the backend is gone, or it was called off."""
        owned = self._owned.get(name)
        if owned is not None and self._registry.get(name) is not owned.backend:
            del self._owned[name]
            self._leaving.discard(name)
            if self._started:
                self._reconcile_all()

    def _reconcile_all(self) -> None:
        """What was in the way of some may be gone, or be there now."""
        for feed in self._feeds.values():
            if feed.answered:
                self._reconcile(feed)

    # For reading.

    def readings(self) -> list[SourceReading]:
        return [SourceReading(name, len(self._names(name)), feed.errors_total) for name, feed in self._feeds.items()]

    def status(self) -> list[dict[str, Any]]:
        """Plain JSON values, for operators."""
        now_s = self._clock()
        return [{**feed.status(now_s), "backends": self._addresses(name)} for name, feed in self._feeds.items()]

    def _addresses(self, source: str) -> dict[str, str]:
        """By backend: the one place that tells which engine a name is."""
        return {name: self._owned[name].backend.spec.endpoint.authority for name in self._names(source)}


def _place_of(spec: BackendSpec) -> tuple[str, int]:
    return spec.endpoint.host, spec.endpoint.port


def _leaves(backend: Backend) -> bool:
    """Also what a reload has taken out: it may come back by discovery."""
    return _REASON in backend.drain_reasons or "config" in backend.drain_reasons

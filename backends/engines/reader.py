"""Reads one backend between its probes: which engine it is, its load, and whether it began a new life.

Invariant: never raises for what an answer holds or does not; a page that cannot be read costs its figures only. An
engine is asked for no page that its kind does not have, once the kind is known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from backends.engines import ENGINES
from backends.engines.detect import METRICS, Detection
from backends.engines.protocol import EngineName

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from backends.backend import Backend
    from backends.engines.protocol import Engine, Page
    from backends.load import EngineLoad
    from backends.registry import Registry

_RESTART_TOLERANCE_S: Final = 1.0  # a start time read twice may differ in its last digits


class EngineReader:
    """`get` answers with a page of any status, or raises."""

    def __init__(
        self,
        registry: Registry,
        backend: Backend,
        get: Callable[[str], Awaitable[Page]],
        on_restart: Callable[[Backend], None],
        on_engine: Callable[[Backend], None],
    ) -> None:
        self._registry = registry
        self._backend = backend
        self._get = get
        self._on_restart = on_restart
        self._on_engine = on_engine
        self._detection = Detection()
        self._page_at = 0
        """Of the engine's load pages, the one that answered last."""

    async def read(self, *, returned: bool = False) -> None:
        """A backend that `returned` from being down counts as restarted, unless its metrics say that the process is the
        same; who asks tells that it is up."""
        backend = self._backend
        if returned:
            self._detection = Detection()
        self._detection.see_models(backend.model_cards.values())
        engine, load = await self._ask()
        before = backend.instance.engine_load
        swapped = engine is not None and _is_other(backend.instance.engine, engine)
        if swapped or _restarted(before, load) or (returned and not _same_process(before, load)):
            self._registry.restart(backend)
            if not returned:
                self._on_restart(backend)
                if not swapped:  # else it has just been detected
                    self._detection = Detection()
        self._tell(engine)
        if load is not None:
            self._registry.set_load(backend, load)

    def _tell(self, engine: Engine | None) -> None:
        backend = self._backend
        seen = self._detection.evidence
        changed = seen != backend.engine_seen or (engine is not None and engine is not backend.instance.engine)
        backend.engine_seen = seen
        if engine is not None:
            backend.instance.engine = engine
        if changed:
            self._on_engine(backend)

    async def _ask(self) -> tuple[Engine | None, EngineLoad | None]:
        fixed = self._backend.spec.engine
        name = fixed or self._detection.engine
        if name is not None:
            return ENGINES[name], await self._load(ENGINES[name])
        while (path := self._detection.question) is not None:
            page = await self._answer(path)
            self._detection.see(path, page)
            name = self._detection.engine
            if name is not None:
                engine = ENGINES[name]
                if path == METRICS and page is not None and path in engine.load_pages:
                    return engine, self._read(engine, path, page)[0]
                return engine, await self._load(engine)
            if self._detection.question == path:  # no answer in time: next time
                break
        return None, None

    async def _load(self, engine: Engine) -> EngineLoad | None:
        pages = engine.load_pages
        for at in range(self._page_at if self._page_at < len(pages) else 0, len(pages)):
            page = await self._answer(pages[at])
            if page is None:  # it is too busy: the next page would not come either
                return None
            load, known = self._read(engine, pages[at], page)
            if known:
                self._page_at = at
                return load
        self._page_at = 0
        return None

    def _read(self, engine: Engine, path: str, page: Page) -> tuple[EngineLoad | None, bool]:
        """The figures, and whether the page was one of this engine."""
        if not 200 <= page.status < 300:
            return None, False
        if path == METRICS:
            self._detection.see_metrics(page.body)
        try:
            return engine.read_load(path, page), True
        except Exception:  # whatever stands there, the probes go on
            return None, False

    async def _answer(self, path: str) -> Page | None:
        try:
            return await self._get(path)
        except Exception:  # as above
            return None


def contradiction(backend: Backend) -> EngineName | None:
    """The engine that its answers name where the config says another one. Any engine is an `openai` too."""
    said, seen = backend.spec.engine, backend.engine_seen
    if said is None or seen is None or seen is said or EngineName.OPENAI in (said, seen):
        return None
    return seen


def _is_other(before: Engine | None, engine: Engine) -> bool:
    """Two names for one process are no restart: a generic one may become known later."""
    return before is not None and before is not engine and before.name is not EngineName.OPENAI


def _restarted(before: EngineLoad | None, after: EngineLoad | None) -> bool:
    if before is None or after is None or before.start_time_s is None or after.start_time_s is None:
        return False
    return abs(after.start_time_s - before.start_time_s) > _RESTART_TOLERANCE_S


def _same_process(before: EngineLoad | None, after: EngineLoad | None) -> bool:
    if before is None or after is None or before.start_time_s is None or after.start_time_s is None:
        return False
    return not _restarted(before, after)

"""Proves, per model and backend, that the gateway's token ids are the engine's: when a backend comes up, has a new
life, or the model's files change.

Field case O30. Invariants: requests never wait for it; a backend is asked for a handful of short prompts per life, and
for no more at a time; one that could not be asked is tried again, ever more rarely.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from backends.token_client import NotAnswered
from gateway.eligibility import may_get
from gateway.engine_tokens import token_body
from gateway.parity import PROBES, Parity, ParityState, compare, overall
from gateway.readings import ParityReading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from structlog.typing import FilteringBoundLogger

    from backends.backend import Backend
    from backends.registry import Registry
    from backends.token_client import TokenClient
    from prefix_index.encoding.protocol import Prompt
    from vocabulary import InstanceId

_LOOK_EVERY_S: Final = 1.0
_ASK_TIMEOUT_S: Final = 10.0
_AT_ONCE: Final = 4
_FIRST_RETRY_S: Final = 5.0
_LAST_RETRY_S: Final = 600.0


class LocalTokens(Protocol):
    @property
    def chats(self) -> bool:
        """It has a template."""
        ...

    def ids(self, prompt: Prompt) -> bytes | None:
        """Packed ids; None where the prompt cannot be encoded. May block."""
        ...


@dataclass(frozen=True, slots=True)
class Subject:
    """A model whose prompts are tokenised here."""

    model: str
    names: tuple[str, ...]
    """All its names, as backends may serve it."""
    tokens: LocalTokens


@dataclass(slots=True)
class _Checked:
    subject: Subject
    parity: Parity
    retry_s: float
    """When an unknown one is asked again."""
    pause_s: float


@dataclass(slots=True)
class _Own:
    """The gateway's ids of the probes, computed once per model."""

    ids: dict[str, bytes | None] = field(default_factory=dict)


class SelfCheck:
    """`start` and `stop` bracket its task. Results are by model and instance: a new life begins without one."""

    def __init__(
        self, registry: Registry, client: TokenClient, clock: Callable[[], float], log: FilteringBoundLogger
    ) -> None:
        self._registry = registry
        self._client = client
        self._clock = clock
        self._log = log
        self._subjects: tuple[Subject, ...] = ()
        self._own: dict[Subject, _Own] = {}
        self._results: dict[tuple[str, InstanceId], _Checked] = {}
        self._look = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def apply(self, subjects: Iterable[Subject]) -> None:
        """From now on these models; what was found of those that are the same stays."""
        self._subjects = tuple(subjects)
        self._own = {subject: self._own.get(subject, _Own()) for subject in self._subjects}
        kept = set(self._subjects)
        self._results = {key: found for key, found in self._results.items() if found.subject in kept}
        self._look.set()

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="self check")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def parity(self, model: str, backend: Backend) -> Parity | None:
        """Of its current life. None: not compared so far, or the model's prompts are not tokenised here."""
        found = self._results.get((model, backend.instance.id))
        return None if found is None else found.parity

    def status(self) -> list[dict[str, Any]]:
        """As plain JSON values."""
        return [{"name": subject.model, "parity": self._status(subject)} for subject in self._subjects]

    def _status(self, subject: Subject) -> list[dict[str, Any]]:
        return [
            {"backend": backend.name, **found.as_json()}
            for backend, _ in self._backends(subject)
            if (found := self.parity(subject.model, backend)) is not None
        ]

    def readings(self) -> list[ParityReading]:
        """For the metrics: backends per state."""
        found = []
        for subject in self._subjects:
            states = [one.parity.state for key, one in self._results.items() if key[0] == subject.model]
            found.append(ParityReading(subject.model, {state.value: states.count(state) for state in ParityState}))
        return found

    async def _run(self) -> None:
        while True:
            try:
                await self._sweep()
            except Exception as error:  # the root of this task: checks that come later must not be missed
                self._log.error("self_check_broken", exc_info=error)
            self._look.clear()
            try:
                async with asyncio.timeout(_LOOK_EVERY_S):
                    await self._look.wait()
            except TimeoutError:
                continue

    async def _sweep(self) -> None:
        await self._client.keep(self._registry)
        living = {backend.instance.id for backend in self._registry}
        self._results = {key: found for key, found in self._results.items() if key[1] in living}
        if not self._subjects:
            return
        room = asyncio.Semaphore(_AT_ONCE)
        async with asyncio.TaskGroup() as group:
            for subject in self._subjects:
                for backend, name in self._backends(subject):
                    if self._is_due(subject, backend):
                        group.create_task(self._check(subject, backend, name, room))

    def _backends(self, subject: Subject) -> list[tuple[Backend, str]]:
        """Those that serve it, with the name by which they do."""
        found: dict[Backend, str] = {}
        for name in subject.names:
            for backend in self._registry.serving(name):
                found.setdefault(backend, name)
        return list(found.items())

    def _is_due(self, subject: Subject, backend: Backend) -> bool:
        if backend.instance.engine is None or not may_get(backend, fail_open=False):
            return False
        known = self._results.get((subject.model, backend.instance.id))
        return known is None or (known.parity.state is ParityState.UNKNOWN and self._clock() >= known.retry_s)

    async def _check(self, subject: Subject, backend: Backend, name: str, room: asyncio.Semaphore) -> None:
        instance = backend.instance
        async with room:
            try:
                parity = overall([await self._probe(subject, backend, name, *probe) for probe in PROBES])
            except Exception:  # whatever an answer does to us
                parity = Parity(ParityState.UNKNOWN)
        if backend.instance is instance and subject in self._own:
            self._file(subject, backend, parity)

    async def _probe(self, subject: Subject, backend: Backend, name: str, probe: str, prompt: Prompt) -> Parity:
        if prompt.messages is not None and not subject.tokens.chats:
            return Parity(ParityState.UNKNOWN)
        own = self._own.get(subject, _Own()).ids
        if probe not in own:
            own[probe] = await asyncio.to_thread(subject.tokens.ids, prompt)
        kind, body = await token_body(prompt)
        engine: bytes | None = None
        try:
            async with asyncio.timeout(_ASK_TIMEOUT_S):
                engine = await self._client.ids(backend, kind, {"model": name, **body})
        except NotAnswered as error:
            if error.status != 400:  # else it refuses this prompt
                return Parity(ParityState.UNKNOWN)
        return compare(probe, own[probe], engine)

    def _file(self, subject: Subject, backend: Backend, parity: Parity) -> None:
        key = subject.model, backend.instance.id
        before = self._results.get(key)
        pause_s = _FIRST_RETRY_S if before is None else min(before.pause_s * 2, _LAST_RETRY_S)
        self._results[key] = _Checked(subject, parity, self._clock() + pause_s, pause_s)
        if before is not None and before.parity == parity:
            return
        log = self._log.warning if parity.state is ParityState.DIFFERENT else self._log.info
        log("token_parity", model=subject.model, backend=backend.name, **parity.as_json())

"""One life of a backend, and the leases that are the only thing to touch its load.

Invariant: `in_flight`, `pending` and the pending sums are exactly the open leases of this instance. A lease belongs to
the instance that it was taken on: a backend that left and came back is another instance, and neither loses nor inherits
counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from backends.backend import Backend
    from backends.engines import Engine
    from backends.load import EngineLoad
    from vocabulary import InstanceId


class Lease:
    """One request's place on an instance, from the choice to the end. Its numbers are what a routing policy reads."""

    __slots__ = (
        "_instance",
        "assumed_first_token_s",
        "open",
        "prefill_s",
        "prompt_tokens",
        "sent_s",
        "uncached_tokens",
    )

    def __init__(
        self, instance: Instance, uncached_tokens: float, prompt_tokens: float, prefill_s: float, sent_s: float
    ) -> None:
        self._instance = instance
        self.open = True
        """It counts; for reading."""
        self.uncached_tokens = uncached_tokens
        self.prompt_tokens = prompt_tokens
        self.prefill_s = prefill_s
        """Predicted prefill time, seconds."""
        self.sent_s = sent_s
        self.assumed_first_token_s: float | None = None
        """For an answer that does not stream, when its prefill is taken to be over: nobody sees its first token."""

    @property
    def instance(self) -> Instance:
        return self._instance

    def first_token(self, now_s: float) -> None:
        """The request's prefill is over: it counts as decoding from here on."""
        if self.open:
            self._instance.settle_pending(self, now_s)

    def end(self, now_s: float) -> None:
        """Give the place back. Any number of calls count once."""
        if self.open:
            self.open = False
            self._instance.release(self, now_s)


class Instance:
    """Load of one life of a backend, as this gateway knows it."""

    __slots__ = (
        "_on_idle",
        "backend",
        "engine",
        "engine_load",
        "id",
        "in_flight",
        "last_first_token_s",
        "pending",
        "pending_prefill_s",
        "pending_uncached_tokens",
        "retired",
        "started_s",
    )

    def __init__(self, instance_id: InstanceId, backend: Backend, started_s: float) -> None:
        self.id = instance_id
        self.backend = backend
        self.started_s = started_s
        self.in_flight = 0
        self.pending: dict[Lease, None] = {}
        """Leases without a first token yet, oldest first."""
        self.pending_prefill_s = 0.0
        self.pending_uncached_tokens = 0.0
        self.last_first_token_s = started_s
        self.engine: Engine | None = None
        """None until the config or its answers tell which it is."""
        self.engine_load: EngineLoad | None = None
        """Last scrape of the engine's own metrics."""
        self.retired = False
        """Another instance has taken the backend over; only running leases are left."""
        self._on_idle: list[Callable[[], None]] = []

    def lease(self, uncached_tokens: float, prompt_tokens: float, prefill_s: float, now_s: float) -> Lease:
        """Reserve a place; called in the same step as the choice, so that the next choice sees it (O47)."""
        lease = Lease(self, uncached_tokens, prompt_tokens, prefill_s, now_s)
        self.in_flight += 1
        self.pending[lease] = None
        self.pending_prefill_s += prefill_s
        self.pending_uncached_tokens += uncached_tokens
        return lease

    def settle_pending(self, lease: Lease, now_s: float) -> None:
        if lease in self.pending:
            self._drop_pending(lease)
            self.last_first_token_s = now_s

    def release(self, lease: Lease, now_s: float) -> None:
        if lease in self.pending:
            self._drop_pending(lease)
        self.in_flight -= 1
        if not self.in_flight and self._on_idle:
            waiting, self._on_idle = self._on_idle, []
            for callback in waiting:
                callback()

    def _drop_pending(self, lease: Lease) -> None:
        del self.pending[lease]
        if self.pending:
            self.pending_prefill_s -= lease.prefill_s
            self.pending_uncached_tokens -= lease.uncached_tokens
        else:  # exactly zero, whatever the order of float additions was
            self.pending_prefill_s = 0.0
            self.pending_uncached_tokens = 0.0

    def takes_cache_salt(self, target: bytes) -> bool:
        """An engine that is not known yet gets the salt: to be refused is better than to share a cache."""
        return self.engine is None or self.engine.takes_cache_salt(target)

    def progress_s(self, now_s: float) -> float:
        """How long the instance can have worked on the head of its pending requests, seconds; 0 if nothing is pending.

        Heads that do not stream count as decoding from here on, once their predicted first token is past.
        """
        while self.pending:
            head = next(iter(self.pending))
            assumed_s = head.assumed_first_token_s
            if assumed_s is None or assumed_s > now_s:
                since_s = now_s - (head.sent_s if head.sent_s > self.last_first_token_s else self.last_first_token_s)
                return since_s if since_s > 0.0 else 0.0
            self._drop_pending(head)
        return 0.0

    def when_idle(self, callback: Callable[[], None]) -> None:
        """Call back once no request runs here, at once if none does."""
        if self.in_flight:
            self._on_idle.append(callback)
        else:
            callback()

"""What the messages of a feed leave to do, in pieces small enough for one slice of the loop."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from prefix_index.events.codec import BadEvent, Removed, Stored, decode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gateway.metrics import BackendMetrics
    from gateway.reported import ReportedCache
    from prefix_index.events.codec import Event

_PIECE_BLOCKS: Final = 64
"""Of one stored event, at a time."""


class EventWork:
    """`on_bad`: a message could not be read, so its effect is not known. `on_other_size`: the engine's block size is
    this one, and not the mirror's."""

    def __init__(
        self,
        cache: ReportedCache,
        block_size: int,
        metrics: BackendMetrics,
        on_bad: Callable[[BadEvent], None],
        on_other_size: Callable[[int], None],
    ) -> None:
        self._cache = cache
        self._block_size = block_size
        self._metrics = metrics
        self._on_bad = on_bad
        self._on_other_size = on_other_size
        self._payloads: deque[bytes] = deque()
        self._events: Iterator[Event] = iter(())

    def add(self, payloads: Iterable[bytes]) -> None:
        self._payloads.extend(payloads)

    def drop(self) -> None:
        self._payloads.clear()
        self._events = iter(())

    def step(self) -> bool:
        """One piece; False: nothing is left."""
        for event in self._events:
            self._apply(event)
            return True
        if not self._payloads:
            return False
        try:
            batch = decode(self._payloads.popleft())
        except BadEvent as error:
            self._metrics.kv_event("malformed").value += 1
            self._on_bad(error)
            return True
        if batch.ignored:
            self._metrics.kv_event("ignored").value += batch.ignored
        self._events = _pieces(batch.events)
        return True

    def _apply(self, event: Event) -> None:
        cache = self._cache
        mirror = cache.mirror
        if mirror is None:
            return
        mirror.apply(event)
        if isinstance(event, Stored):
            self._metrics.kv_event("stored").value += 1
            if event.block_size != self._block_size and mirror.stats.wrong_size_total:
                self._on_other_size(event.block_size)
        elif isinstance(event, Removed):
            self._metrics.kv_event("removed").value += 1
        else:
            self._metrics.kv_event("cleared").value += 1
            cache.forget_predictions()
            cache.complete = True


def _pieces(events: tuple[Event, ...]) -> Iterator[Event]:
    for event in events:
        if isinstance(event, Stored):
            yield from event.pieces(_PIECE_BLOCKS)
        else:
            yield event

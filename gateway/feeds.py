"""The KV-event feeds of the fleet: one per instance whose backend has an event source, for as long as it lives.

Invariant: an instance that is retired has no feed, so that nothing late of a dead engine reaches the index (O35); a
feed's sockets are open exactly between `start` and `stop`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import zmq

from gateway.backend_feed import BackendFeed
from gateway.key_space import KeySpace
from gateway.reported import ReportedCache
from prefix_index.events.mirror import Mirror
from prefix_index.events.zmq_feed import ZmqFeed

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from structlog.typing import FilteringBoundLogger

    from backends.backend import EventSource
    from backends.instance import Instance
    from gateway.diagnosis import Finding
    from gateway.fleet import FleetState
    from gateway.key_space import KeySpaces
    from prefix_index.protocol import PrefixIndex
    from vocabulary import InstanceId

SWEEP_S: Final = 1.0


class Feeds:
    """Hears of instances from the registry, after `FleetState`."""

    def __init__(
        self,
        index: PrefixIndex,
        fleet: FleetState,
        spaces: KeySpaces,
        clock: Callable[[], float],
        loop: asyncio.AbstractEventLoop,
        log: FilteringBoundLogger,
    ) -> None:
        self._index = index
        self._fleet = fleet
        self._spaces = spaces
        self._clock = clock
        self._loop = loop
        self._log = log
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._started = False
        self._feeds: dict[InstanceId, BackendFeed] = {}

    # Life.

    def start(self) -> None:
        self._started = True
        for feed in self._feeds.values():
            self._open(feed)

    def stop(self) -> None:
        """What was told stays in the index."""
        self._started = False
        for feed in self._feeds.values():
            feed.close()
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
            self._sweep_timer = None
        context, self._context = self._context, None
        if context is not None:
            context.destroy(linger=0)

    # What the fleet does.

    def instance_started(self, instance: Instance) -> None:
        source = instance.backend.spec.events
        if source is not None:
            self._begin(instance, source)

    def instance_retired(self, instance: Instance) -> None:
        self._end(instance)

    def load_changed(self, instance: Instance) -> None:
        pass

    def spec_changed(self, instance: Instance) -> None:
        self._renew(instance)

    def review(self) -> None:
        """Models were learned, or the config is another one: feeds whose keys would be other ones start over."""
        for feed in tuple(self._feeds.values()):
            self._renew(feed.instance)

    def status(self, instance: Instance) -> dict[str, Any] | None:
        """None for an instance without an event source."""
        feed = self._feeds.get(instance.id)
        return None if feed is None else feed.status(self._clock())

    def finding(self, instance: Instance) -> Finding | None:
        """What is wrong with its feed, as a cause of predictions that do not come true."""
        feed = self._feeds.get(instance.id)
        return None if feed is None else feed.finding()

    def _renew(self, instance: Instance) -> None:
        source, feed = instance.backend.spec.events, self._feeds.get(instance.id)
        if feed is not None and source == feed.source and self._spaces.of(instance.backend) == feed.space:
            return
        self._end(instance)
        if source is not None:
            self._begin(instance, source)

    def _begin(self, instance: Instance, source: EventSource) -> None:
        state, space = self._fleet.of(instance), self._spaces.of(instance.backend)
        self._index.clear(instance.id)
        cache = ReportedCache(self._index, instance, self._clock())
        if isinstance(space, KeySpace):
            cache.mirror = Mirror(self._index, instance.id, self._spaces.roots(space), block_size=space.block_size)
        self._fleet.believe(state, cache)
        feed = BackendFeed(instance, source, space, state, cache, self._clock, self._log)
        self._feeds[instance.id] = feed
        if self._started:
            self._open(feed)

    def _end(self, instance: Instance) -> None:
        feed = self._feeds.pop(instance.id, None)
        if feed is not None:
            feed.close()
            feed.cache.purge()
            feed.cache.forget_predictions()
            self._fleet.believe(feed.state, None)

    def _open(self, feed: BackendFeed) -> None:
        if self._context is None:
            self._context = zmq.Context()
        if self._sweep_timer is None:
            self._sweep_timer = self._loop.call_later(SWEEP_S, self._sweep)
        if feed.space is None:
            return
        if isinstance(feed.space, str):
            feed.refuse("refused", feed.space)
            return
        source = feed.source
        feed.open(
            ZmqFeed(
                self._context,
                self._loop,
                feed,
                endpoint=source.endpoint,
                replay_endpoint=source.replay_endpoint,
                topic=source.topic,
                bind=source.bind,
            )
        )

    def _sweep(self) -> None:
        self._sweep_timer = self._loop.call_later(SWEEP_S, self._sweep) if self._feeds else None
        self.review()
        for feed in self._feeds.values():
            feed.sweep(self._clock())

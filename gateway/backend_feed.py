"""One instance's KV events on their way into the index, and how far they may be believed.

`exact`: all that the engine ever said of its cache was heard, the sequence is unbroken, and what is sent there turns up
in its events. `blind`: the feed is lost, or silent while requests are served; what it had told no longer counts.
`estimated`: anything between; then predictions count as for an engine without events. Invariant: nothing runs longer
than one small piece of work, whatever an engine sends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import zmq

from gateway.diagnosis import Cause, Finding
from gateway.event_work import EventWork
from gateway.key_space import KeySpace
from prefix_index.events.feed import Feed
from vocabulary import Trust

if TYPE_CHECKING:
    from collections.abc import Callable

    from structlog.typing import FilteringBoundLogger

    from backends.backend import EventSource
    from backends.instance import Instance
    from gateway.fleet import InstanceState
    from gateway.metrics import BackendMetrics
    from gateway.reported import ReportedCache
    from prefix_index.events.codec import BadEvent
    from prefix_index.events.feed import Step
    from prefix_index.events.zmq_feed import ZmqFeed

Trouble = Literal["refused", "block_size", "lost", "silent", "diverged"]
"""`silent`: connected, but nothing is heard of what is served (another topic, or events are off). `diverged`: events
come, but not of the tokens that were sent (another template or tokenizer)."""

LOST_S: Final = 10.0
REPLAY_TIMEOUT_S: Final = 10.0
"""Without a message of it."""
MISSES: Final = 5
"""Prompts in a row that no event told of."""


class BackendFeed:
    """The receiver of one `ZmqFeed`. `space` as a sentence: why there is no key space; None: it is not known yet."""

    def __init__(
        self,
        instance: Instance,
        source: EventSource,
        space: KeySpace | str | None,
        state: InstanceState,
        cache: ReportedCache,
        clock: Callable[[], float],
        log: FilteringBoundLogger,
    ) -> None:
        self.instance = instance
        self.source = source
        self.space = space
        self.state = state
        self.cache = cache
        self.trouble: Trouble | None = None
        self._reason = ""
        self._metrics: BackendMetrics = state.metrics
        self._clock = clock
        self._log = log
        self._socket: ZmqFeed | None = None
        self._feed = Feed(can_replay=source.replay_endpoint is not None)
        size = space.block_size if isinstance(space, KeySpace) else 0
        self._work = EventWork(cache, size, state.metrics, self._bad, self._other_size)
        self._connected = False
        self._heard = False
        """Something that shows where its sequence stands."""
        self._away_s = self._message_s = self._replay_s = clock()
        self._holes_before = 0
        self._misses = 0
        self._missed_s = 0.0

    # Life.

    def open(self, socket: ZmqFeed) -> None:
        self._socket = socket
        self._away_s = self._clock()
        try:
            socket.open()
        except zmq.ZMQError as error:
            self.refuse("refused", f"its endpoint cannot be used: {error.strerror}")

    def close(self) -> None:
        """What was told stays."""
        socket, self._socket = self._socket, None
        if socket is not None:
            socket.close()
        self._work.drop()
        self._connected = self._heard = False

    def refuse(self, trouble: Trouble, reason: str) -> None:
        """For the rest of this instance's life: it stays estimated."""
        self._reason = reason
        self._give_up(trouble)
        self.close()
        self.cache.purge()
        self.cache.mirror = None
        self._trust()

    def status(self, now_s: float) -> dict[str, Any]:
        """`age_s`: since the last message; None where none came."""
        mirror, feed = self.cache.mirror, self._feed
        stats = mirror.stats if mirror is not None else None
        state = ("replaying" if feed.replaying else "live") if self._connected else "connecting"
        return {
            "state": self.trouble or state,
            "reason": self._reason,
            "complete": self.cache.complete and self._heard,
            "last_sequence": feed.last_sequence,
            "gaps": feed.gaps_total,
            "holes": feed.holes_total,
            "blocks": stats.blocks if stats is not None else 0,
            "waiting": stats.waiting if stats is not None else 0,
            "age_s": round(now_s - self._message_s, 1) if feed.last_sequence is not None else None,
        }

    def finding(self) -> Finding | None:
        if self.trouble == "block_size":
            return Finding(Cause.BLOCK_SIZE, self._reason)
        if self.trouble == "diverged":
            return Finding(Cause.TEMPLATE, "its KV events tell of other tokens than were sent to it")
        if self.trouble == "lost":
            return Finding(Cause.FEED_SILENT, "its publisher of KV events cannot be reached")
        if self.trouble != "silent":
            return None
        if self.source.topic:
            return Finding(Cause.WRONG_TOPIC, "no KV event of what is sent to it comes under the topic of the config")
        return Finding(Cause.FEED_SILENT, "no KV event of what is sent to it comes")

    # What the sockets tell.

    def connected(self) -> None:
        self._connected = True
        self._heard = False
        if self.trouble == "lost":
            self._recover()
            self._start_over()
        else:
            self._step(self._feed.connected())

    def disconnected(self) -> None:
        self._connected = False
        self._away_s = self._clock()
        if self._socket is not None:
            self._socket.end_replay()  # asked for again when it is back

    def message(self, sequence: int, payload: bytes) -> None:
        self._message_s = self._clock()
        first, self._heard = not self._heard, True
        if self.trouble == "silent":
            self._recover()
            self._start_over()
        gaps = self._feed.gaps_total
        self._step(self._feed.message(sequence, payload))
        self._metrics.kv_gaps.value += self._feed.gaps_total - gaps
        if first:
            self._trust()

    def replayed(self, sequence: int, payload: bytes) -> None:
        self._replay_s = self._clock()
        self._step(self._feed.replayed(sequence, payload))

    def replay_ended(self) -> None:
        self._heard = True
        self._metrics.kv_replay("filled" if self._feed.holes_total == self._holes_before else "hole").value += 1
        self._step(self._feed.replay_ended())
        self._trust()

    def malformed(self) -> None:
        self._metrics.kv_event("malformed").value += 1

    def work(self) -> bool:
        return self._work.step()

    # Once a second.

    def sweep(self, now_s: float) -> None:
        socket = self._socket
        if socket is None:
            return
        if socket.replaying and now_s - self._replay_s > REPLAY_TIMEOUT_S:
            socket.end_replay()
            self._metrics.kv_replay("failed").value += 1
            self._step(self._feed.replay_failed())
        if not self._connected and self.trouble != "lost" and now_s - self._away_s > LOST_S:
            self._give_up("lost")
        if self._connected:
            self._judge(now_s)
        self._trust()
        if self.state.trust is Trust.EXACT:
            self.cache.rotate(now_s)
            self.state.holder = self.cache.predicted

    def _judge(self, now_s: float) -> None:
        """By prompts that were sent: does the engine tell of them?"""
        told = self.cache.verdict(now_s)
        if told is None:
            return
        if told:
            self._misses = 0
            if self.trouble in ("silent", "diverged"):
                self._recover()
            return
        if not self._misses:
            self._missed_s = self.cache.sampled_s
        self._misses += 1
        if self._misses >= MISSES and self.trouble is None:
            self._give_up("silent" if self._message_s < self._missed_s else "diverged")

    # Steps.

    def _step(self, step: Step) -> None:
        if step.new_life:
            self._log.info("kv_feed_new_life", backend=self.state.backend)
            if self._socket is not None:
                self._socket.end_replay()
        if step.purge:
            self._work.drop()
            self.cache.purge()
            self.cache.complete = step.new_life and self._feed.complete
        self._work.add(step.payloads)
        if step.ask is not None:
            self._ask(step.ask)
        if step.purge or step.ask is not None:
            self._trust()

    def _ask(self, start: int) -> None:
        if self._socket is None:
            return
        self._replay_s = self._clock()
        self._holes_before = self._feed.holes_total
        try:
            self._socket.ask_replay(start)
        except zmq.ZMQError:
            self._metrics.kv_replay("failed").value += 1
            self._step(self._feed.replay_failed())

    def _start_over(self) -> None:
        self._work.drop()
        self.cache.purge()
        self.cache.complete = True
        self._feed = Feed(can_replay=self.source.replay_endpoint is not None)
        self._step(self._feed.connected())

    def _bad(self, error: BadEvent) -> None:
        self._log.warning("kv_event_malformed", backend=self.state.backend, reason=str(error))
        self._work.drop()
        self.cache.purge()
        self._trust()

    def _other_size(self, block_size: int) -> None:
        ours = self.space.block_size if isinstance(self.space, KeySpace) else 0
        self.refuse("block_size", f"its blocks have {block_size} tokens, block_size of its model is {ours}")

    # How far it is believed.

    def _give_up(self, trouble: Trouble) -> None:
        self.trouble = trouble
        self._log.warning("kv_feed_trouble", backend=self.state.backend, trouble=trouble, reason=self._reason)
        if trouble in ("lost", "silent"):
            self._work.drop()
            self.cache.purge()

    def _recover(self) -> None:
        self._log.info("kv_feed_recovered", backend=self.state.backend, trouble=self.trouble)
        self.trouble = None
        self._misses = 0

    def _trust(self) -> None:
        if self.trouble in ("lost", "silent"):
            self.state.trust = Trust.BLIND
        elif self.trouble is None and self._heard and self._connected and self.cache.complete and self._feed.unbroken:
            self.state.trust = Trust.EXACT
        else:
            self.state.trust = Trust.ESTIMATED

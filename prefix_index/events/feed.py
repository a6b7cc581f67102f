"""Whether the messages of one publisher are all there: what to apply, what to ask again, when to start over.

Numbers count up by one from 0 in each life of the engine, a publisher never sends them out of order, and a replay
answers what its buffer still has, in order. Pure: the transport carries out the steps. Invariant: whatever was given
out since the last purge is an unbroken run of messages of one life.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from xxhash import xxh3_64_intdigest

_SEEN: Final = 256
"""So many last messages are told from others with the same number."""
_LATE: Final = 16
"""An unseen number so little below the next is late; further below it is another life's."""


class Step(NamedTuple):
    """In this order: `new_life`, `purge`, `payloads`, `ask`."""

    payloads: tuple[bytes, ...] = ()
    """To be applied, in this order."""
    purge: bool = False
    """First forget what the earlier ones said."""
    ask: int | None = None
    """Start a replay from this number; one that runs is given up."""
    new_life: bool = False
    """The engine was started anew: a replay that runs answers nothing of use any more."""


_NOTHING: Final = Step()


class Feed:
    """One publisher. Throw it away with its instance: what comes late then has nowhere to go.

    `max_pending`: live messages kept while a replay runs; what is beyond shows as a gap afterwards.
    """

    def __init__(self, *, can_replay: bool, max_pending: int = 4096) -> None:
        self._can_replay = can_replay
        self._max_pending = max_pending
        self._next = 0
        self._seen: dict[int, int] = {}
        self._pending: dict[int, bytes] = {}
        self._replaying = self._checking = self._progress = False
        self.gaps_total = 0
        self.holes_total = 0
        """Gaps that could not be filled."""
        self.lives_total = 0
        """New lives seen."""
        self.late_total = 0
        """Messages dropped for their old number."""
        self.complete = True
        """No hole in this life: all that the engine ever said of its cache was heard."""

    @property
    def last_sequence(self) -> int | None:
        return self._next - 1 if self._next else None

    @property
    def replaying(self) -> bool:
        return self._replaying

    @property
    def unbroken(self) -> bool:
        """Nothing is known to be missing now. Holes in the past leave the mirror right but not whole."""
        return not self._replaying

    def connected(self) -> Step:
        """The transport is there, perhaps again: what was sent before that was not heard, and no number tells.

        A replay then starts at the last message that was heard, if any, to see whether it is still the same life.
        """
        if not self._can_replay:
            return _NOTHING
        self._checking = self._next > 0
        self._pending = {}  # they may be another life's, and the replay has them if they are not
        return self._ask(max(self._next - 1, 0))

    def message(self, sequence: int, payload: bytes) -> Step:
        """A live one."""
        if sequence < self._next:
            return self._old(sequence, payload)
        if self._replaying:
            return self._wait(sequence, payload)
        if sequence == self._next:
            return Step((self._take(sequence, payload),))
        self.gaps_total += 1
        if self._can_replay:
            self._pending[sequence] = payload
            return self._ask(self._next)
        return Step((self._skip_to(sequence, payload),), purge=True)

    def replayed(self, sequence: int, payload: bytes) -> Step:
        """One answer of the replay that was asked for last."""
        if not self._replaying:
            return _NOTHING
        if sequence < self._next:
            self._checking = False
            known = self._seen.get(sequence)
            return _NOTHING if known in (None, xxh3_64_intdigest(payload)) else self._begin_life()
        if self._checking:
            return self._begin_life()
        self._progress = True
        if sequence == self._next:
            return Step((self._take(sequence, payload),))
        return Step((self._skip_to(sequence, payload),), purge=True)

    def replay_ended(self) -> Step:
        """Its end mark came."""
        if not self._replaying:
            return _NOTHING
        if self._checking:
            return self._begin_life()
        return self._settle()

    def replay_failed(self) -> Step:
        """No answer in time, or no way to ask: what is missing stays missing."""
        if not self._replaying:
            return _NOTHING
        self._checking = self._progress = False
        return self._settle()

    def _ask(self, start: int) -> Step:
        self._replaying, self._progress = True, False
        return Step(ask=start)

    def _wait(self, sequence: int, payload: bytes) -> Step:
        pending = self._pending
        if pending and (sequence == 0 or pending.get(sequence, payload) != payload):
            return self._start_over(sequence, payload)
        if len(pending) < self._max_pending:
            pending[sequence] = payload
        return _NOTHING

    def _old(self, sequence: int, payload: bytes) -> Step:
        known = self._seen.get(sequence)
        if known is None:
            new_life = sequence == 0 or sequence < self._next - _LATE
        else:
            new_life = known != xxh3_64_intdigest(payload)
        if not new_life:
            self.late_total += 1
            return _NOTHING
        return self._start_over(sequence, payload)

    def _start_over(self, sequence: int, payload: bytes) -> Step:
        self._reset()
        return self.message(sequence, payload)._replace(purge=True, new_life=True)

    def _begin_life(self) -> Step:
        """Seen in a replay: the number heard last means another message now, or none."""
        pending = self._pending
        self._reset()
        self._pending = pending
        return self._ask(0)._replace(purge=True, new_life=True)

    def _reset(self) -> None:
        self._next = 0
        self._seen = {}
        self._pending = {}
        self._replaying = self._checking = self._progress = False
        self.complete = True
        self.lives_total += 1

    def _settle(self) -> Step:
        """After a replay: the live ones that waited, as far as they follow."""
        self._replaying = False
        waiting, self._pending = self._pending, {}
        payloads: list[bytes] = []
        purge = False
        for sequence in sorted(waiting):
            payload = waiting[sequence]
            if sequence < self._next:
                continue
            if sequence > self._next:
                if self._progress:  # else a replay that fills nothing would be asked for over and over
                    self._pending = {number: waiting[number] for number in waiting if number >= sequence}
                    return self._ask(self._next)._replace(payloads=tuple(payloads), purge=purge)
                payloads.clear()
                purge = True
                payloads.append(self._skip_to(sequence, payload))
            else:
                payloads.append(self._take(sequence, payload))
        return Step(tuple(payloads), purge)

    def _take(self, sequence: int, payload: bytes) -> bytes:
        seen = self._seen
        seen[sequence] = xxh3_64_intdigest(payload)
        if len(seen) > _SEEN:
            del seen[next(iter(seen))]
        self._next = sequence + 1
        return payload

    def _skip_to(self, sequence: int, payload: bytes) -> bytes:
        self.holes_total += 1
        self.complete = False
        return self._take(sequence, payload)

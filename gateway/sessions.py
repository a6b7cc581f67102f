"""Sessions in memory: which instance served each one last, how long its context is, and where its prompt ended.

Invariants: at most `max_sessions` records, none older than the idle TTL; an instance's live tokens are exactly the
sum over the sessions it served last within the live window; every call is O(1) amortised, but for the scan of a
prompt without a known tip.

**Lineage.** Requests without an id are told apart by what they extend.

1. By identity: the encoder names each prompt by a digest, and names the longest earlier prompt that it found as a head
   of this one. That prompt's session goes on. An equal prompt goes on with nothing: many samples of one prompt are many
   sessions, which may spread; a resend finds its cache by the prefix.
2. By tip, the chained key of the last full block of a session's last prompt, where the encoder names nothing (its
   memory is bounded, and text prompts have no messages): a prompt that holds a tip extends it, the longest one wins.
   A first prompt leaves a tip only if it has no name: what follows its last full block is not in the key, so users
   with one long head and short questions would seem to extend one another.

Moving on takes the old name and tip away, so a prompt that branches off earlier (a sub-agent, an edited message) is a
new session. What two sessions share is the latest one's. A prompt without a full block has no lineage.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

from vocabulary import SessionKey

if TYPE_CHECKING:
    from collections.abc import Callable

    from vocabulary import BlockKeys, InstanceId, TenantId


@dataclass(frozen=True, slots=True)
class SessionStats:
    sessions: int
    live: int
    """Those with a turn within the live window."""
    names: int
    """Prompts and tips that can be continued: at most two per session."""
    instances: int
    """Those that sessions call home."""
    evicted_total: int
    """Dropped for room."""
    expired_total: int
    """Dropped after the idle TTL."""


class _Home:
    """One instance as sessions see it. Forgotten, it keeps its object, and late arithmetic lands there."""

    __slots__ = ("forgotten", "instance", "live_tokens", "sessions")

    def __init__(self, instance: InstanceId) -> None:
        self.instance = instance
        self.live_tokens = 0
        self.sessions = 0
        self.forgotten = False


class _Session:
    __slots__ = ("home", "last_used_s", "lineage", "live", "prompt_id", "tip", "tokens")

    def __init__(self, home: _Home) -> None:
        self.home = home
        self.tokens = 0
        self.last_used_s = 0.0
        self.live = False
        self.lineage: _Lineage | None = None
        self.prompt_id = 0
        self.tip: int | None = None


class _Lineage:
    """What one tenant's sessions can be continued from."""

    __slots__ = ("by_prompt", "by_tip", "tenant")

    def __init__(self, tenant: TenantId) -> None:
        self.tenant = tenant
        self.by_prompt: dict[int, SessionKey] = {}
        self.by_tip: dict[int, SessionKey] = {}


class SessionStore:
    """Synchronous and owned by one event loop."""

    def __init__(self, idle_ttl_s: float, live_window_s: float, max_sessions: int, clock: Callable[[], float]) -> None:
        """`clock` is monotonic, in seconds. A live window longer than the TTL ends with the TTL."""
        if max_sessions < 1:
            raise ValueError("max_sessions must be at least 1")
        self._idle_ttl_s = idle_ttl_s
        self._live_window_s = min(live_window_s, idle_ttl_s)
        self._max_sessions = max_sessions
        self._clock = clock
        # Both in order of last use. All of `_idle` is older than all of `_live`, so each expires from its front.
        self._live: OrderedDict[SessionKey, _Session] = OrderedDict()
        self._idle: OrderedDict[SessionKey, _Session] = OrderedDict()
        self._homes: dict[InstanceId, _Home] = {}
        self._lineages: dict[TenantId, _Lineage] = {}
        self._next_expiry_s = clock()
        self._started = 0
        self._evicted = 0
        self._expired = 0

    def set_limits(self, idle_ttl_s: float, live_window_s: float, max_sessions: int) -> None:
        """What is over them leaves with the next turns."""
        self._idle_ttl_s = idle_ttl_s
        self._live_window_s = min(live_window_s, idle_ttl_s)
        self._max_sessions = max_sessions
        self._next_expiry_s = self._clock()

    def home(self, session: SessionKey) -> InstanceId | None:
        """The instance that served the session's last turn; None for an unknown session or a forgotten instance."""
        self._expire()
        record = self._live.get(session) or self._idle.get(session)
        return None if record is None or record.home.forgotten else record.home.instance

    def find_by_lineage(
        self, tenant: TenantId, keys: BlockKeys, resumed_blocks: int = 0, prompt_id: int = 0, resumed_id: int = 0
    ) -> SessionKey | None:
        """The tenant's session that a prompt continues, or None.

        `prompt_id` names exactly this prompt, `resumed_id` the longest earlier one that is a head of it; 0: not known.
        `resumed_blocks` is a hint where an earlier prompt ended, tried before all other places.
        """
        self._expire()
        lineage = self._lineages.get(tenant)
        if lineage is None or not keys:
            return None
        by_prompt = lineage.by_prompt
        if resumed_id == prompt_id != 0:
            return None
        if resumed_id and (session := by_prompt.get(resumed_id)) is not None:
            return session
        by_tip = lineage.by_tip
        if not by_tip:
            return None
        blocks = memoryview(keys).cast("Q")
        count = len(blocks)
        if 0 < resumed_blocks <= count and (session := by_tip.get(blocks[resumed_blocks - 1])) is not None:
            return session
        if by_tip.keys().isdisjoint(blocks):  # at C speed: most prompts that get here are new
            return None
        return next(by_tip[blocks[i]] for i in range(count - 1, -1, -1) if blocks[i] in by_tip)

    def unused(self, session: SessionKey) -> SessionKey:
        """The key for a new session: the one given, or another where a session that has gone on since has it."""
        if session not in self._live and session not in self._idle:
            return session
        self._started += 1
        return SessionKey(blake2b(session + self._started.to_bytes(8, "little"), digest_size=len(session)).digest())

    def record(
        self,
        session: SessionKey,
        instance: InstanceId,
        context_tokens: float,
        tenant: TenantId | None = None,
        keys: BlockKeys | None = None,
        prompt_id: int = 0,
    ) -> None:
        """A turn of the session goes, or went, to `instance`; its context is now so long.

        With `tenant` and `keys` its lineage moves on to that prompt: for sessions without an id, when the request is
        sent. Without them the lineage stays.
        """
        self._expire()
        home = self._homes.get(instance)
        if home is None:
            home = self._homes[instance] = _Home(instance)
        live = self._live
        record = live.get(session)
        if record is not None:
            record.home.live_tokens -= record.tokens
            live.move_to_end(session)
        else:
            record = self._idle.pop(session, None)
            if record is None:
                record = _Session(home)
                home.sessions += 1
            record.live = True
            live[session] = record
        if record.home is not home:
            home.sessions += 1
            self._leave(record.home)
            record.home = home
        record.tokens = tokens = round(context_tokens)
        record.last_used_s = self._clock()
        home.live_tokens += tokens
        if tenant is not None and keys:
            self._move_on(session, record, tenant, int(memoryview(keys).cast("Q")[-1]), prompt_id)
        while len(live) + len(self._idle) > self._max_sessions:
            self._evict_oldest()

    def live_tokens(self, instance: InstanceId, excluding: SessionKey | None = None) -> int:
        """Sum of the last context lengths of the live sessions on an instance, but for one session."""
        self._expire()
        home = self._homes.get(instance)
        if home is None:
            return 0
        own = self._live.get(excluding) if excluding is not None else None
        return home.live_tokens - own.tokens if own is not None and own.home is home else home.live_tokens

    def outlook(self, session: SessionKey | None) -> tuple[InstanceId | None, dict[InstanceId, int]]:
        """For one decision: the session's home, and the `live_tokens` of all others on every instance that has any."""
        self._expire()
        sums = {instance: home.live_tokens for instance, home in self._homes.items()}
        if session is None:
            return None, sums
        own = self._live.get(session)
        if own is None:
            own = self._idle.get(session)
            return None if own is None or own.home.forgotten else own.home.instance, sums
        if own.home.forgotten:
            return None, sums
        sums[own.home.instance] -= own.tokens
        return own.home.instance, sums

    def forget_instance(self, instance: InstanceId) -> None:
        """The instance is gone: its sessions have no home and no live tokens, but keep their lineage."""
        home = self._homes.pop(instance, None)
        if home is not None:
            home.forgotten = True

    def stats(self) -> SessionStats:
        self._expire()
        return SessionStats(
            sessions=len(self._live) + len(self._idle),
            live=len(self._live),
            names=sum(len(each.by_prompt) + len(each.by_tip) for each in self._lineages.values()),
            instances=len(self._homes),
            evicted_total=self._evicted,
            expired_total=self._expired,
        )

    def _expire(self) -> None:
        """Live sessions past the window become idle, idle ones past the TTL go."""
        now = self._clock()
        if now < self._next_expiry_s:
            return
        live, idle = self._live, self._idle
        window_start = now - self._live_window_s
        while live:
            session, record = next(iter(live.items()))
            if record.last_used_s > window_start:
                break
            del live[session]
            self._retire(record)
            idle[session] = record
        ttl_start = now - self._idle_ttl_s
        while idle:
            session, record = next(iter(idle.items()))
            if record.last_used_s > ttl_start:
                break
            self._drop(idle, session)
            self._expired += 1
        # the oldest of either kind is next; a session that is used in the meantime only makes this early
        oldest_live = next(iter(live.values())).last_used_s if live else now
        oldest_idle = next(iter(idle.values())).last_used_s if idle else now
        self._next_expiry_s = min(oldest_live + self._live_window_s, oldest_idle + self._idle_ttl_s)

    def _evict_oldest(self) -> None:
        source = self._idle or self._live
        session, record = next(iter(source.items()))
        if record.live:
            self._retire(record)
        self._drop(source, session)
        self._evicted += 1

    def _retire(self, record: _Session) -> None:
        record.live = False
        record.home.live_tokens -= record.tokens

    def _drop(self, source: OrderedDict[SessionKey, _Session], session: SessionKey) -> None:
        record = source.pop(session)
        self._leave(record.home)
        self._forget_lineage(session, record)

    def _leave(self, home: _Home) -> None:
        home.sessions -= 1
        if home.sessions == 0 and not home.forgotten:
            del self._homes[home.instance]

    def _move_on(self, session: SessionKey, record: _Session, tenant: TenantId, tip: int, prompt_id: int) -> None:
        """A second prompt holds what nobody else has sent, so from then on its tip is the session's own."""
        own_tip = not prompt_id or (
            record.lineage is not None and (record.tip is not None or record.prompt_id != prompt_id)
        )
        self._forget_lineage(session, record)
        lineage = self._lineages.get(tenant)
        if lineage is None:
            lineage = self._lineages[tenant] = _Lineage(tenant)
        record.lineage, record.prompt_id = lineage, prompt_id
        if prompt_id:
            lineage.by_prompt[prompt_id] = session
        if own_tip:
            record.tip = tip
            lineage.by_tip[tip] = session

    def _forget_lineage(self, session: SessionKey, record: _Session) -> None:
        """Takes away only what is still this session's: the latest that came to share a name owns it."""
        lineage = record.lineage
        if lineage is None:
            return
        if lineage.by_prompt.get(record.prompt_id) == session:
            del lineage.by_prompt[record.prompt_id]
        if record.tip is not None and lineage.by_tip.get(record.tip) == session:
            del lineage.by_tip[record.tip]
        record.lineage, record.prompt_id, record.tip = None, 0, None
        if not lineage.by_prompt and not lineage.by_tip:
            self._lineages.pop(lineage.tenant, None)

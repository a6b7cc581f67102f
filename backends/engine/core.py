"""The engine core: requests in, steps out. It has no clock and does no I/O, so real time and virtual time drive the
same class.

A step is planned, priced and completed in one call; what it produced is to be shown `duration_s` after its start. A
step costs O(sequences it serves) plus O(blocks that it fills).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from backends.engine.cache import BlockCache, BlocksRemoved, CacheCleared
from backends.engine.scheduler import Limits, Policy, Scheduler
from backends.engine.sequence import BlocksStored, Request, Seq
from backends.engine.setups import step_s

if TYPE_CHECKING:
    from backends.engine.setups import Setup

CacheEvent = BlocksStored | BlocksRemoved | CacheCleared


class StepResult(NamedTuple):
    """One step. `served`: the sequences that got a token, in scheduling order; those with `finished` are gone from
    the core.
    """

    duration_s: float
    served: list[Seq]
    events: list[CacheEvent]


class EngineCore:
    """One engine. `kv_tokens` overrides the set-up's cache size; `record_events` off saves the cost of events nobody
    reads.
    """

    def __init__(
        self,
        setup: Setup,
        *,
        block_size: int = 16,
        max_num_batched_tokens: int = 8192,
        max_num_seqs: int = 256,
        long_prefill_token_threshold: int = 0,
        policy: Policy = "fcfs",
        kv_tokens: int | None = None,
        record_events: bool = True,
    ) -> None:
        self.setup = setup
        self.limits = Limits(block_size, max_num_batched_tokens, max_num_seqs, long_prefill_token_threshold, policy)
        self.cache = BlockCache((kv_tokens or setup.kv_tokens) // block_size, record=record_events)
        self._scheduler = Scheduler(self.cache, self.limits)
        self._seqs: dict[str, Seq] = {}
        self._arrivals = 0
        self._events: list[CacheEvent] = []
        self._record = record_events
        self.prompt_tokens_total = 0
        self.generated_tokens_total = 0

    @property
    def capacity_tokens(self) -> int:
        return self.cache.capacity * self.limits.block_size

    @property
    def running(self) -> int:
        return len(self._scheduler.running)

    @property
    def waiting(self) -> int:
        return len(self._scheduler.waiting)

    @property
    def has_work(self) -> bool:
        return bool(self._seqs)

    @property
    def kv_usage(self) -> float:
        """Share of the blocks that running sequences hold, 0 to 1."""
        return 1 - self.cache.free / self.cache.capacity

    @property
    def prefix_queries_total(self) -> int:
        """Tokens that were looked up."""
        return self._scheduler.queried_tokens_total

    @property
    def prefix_hits_total(self) -> int:
        """Tokens that were found."""
        return self._scheduler.hit_tokens_total

    @property
    def preemptions_total(self) -> int:
        return self._scheduler.preemptions_total

    def add(self, request: Request) -> Seq:
        """Queue a request. ValueError if its id is known, or if it could never fit."""
        if request.request_id in self._seqs:
            raise ValueError("the request id is in use")
        if request.prompt_tokens < 1 or request.max_tokens < 1:
            raise ValueError("a request needs at least one prompt token and one token to generate")
        if request.prompt_tokens + request.max_tokens > self.capacity_tokens:
            raise ValueError("prompt and output do not fit into the KV cache")
        self._arrivals += 1
        priority = request.priority if self.limits.policy == "priority" else 0
        seq = Seq(request, (priority, self._arrivals), request.prompt_tokens, len(request.block_hashes))
        self._seqs[request.request_id] = seq
        self._scheduler.waiting.push(seq)
        return seq

    def abort(self, request_id: str) -> bool:
        """Drop a request wherever it is; what it computed stays cached. False if it is unknown or finished."""
        seq = self._seqs.pop(request_id, None)
        if seq is None:
            return False
        if seq.waiting:
            self._scheduler.waiting.discard(seq)
        else:
            self._scheduler.running.remove(seq)
            self._scheduler.release(seq)
        seq.finished = True
        return True

    def reset_cache(self) -> bool:
        """Forget the cache, unless requests hold blocks. The event comes with the next step, as in vLLM."""
        if not self.cache.clear():
            return False
        if self._record:
            self._events.append(CacheCleared())
        return True

    def step(self) -> StepResult:
        """Run one step. Without work it takes no time."""
        chunks = self._scheduler.plan()
        while not chunks:  # a plan may only preempt; the next one has more room
            if not self._seqs:
                return StepResult(0.0, [], [])
            chunks = self._scheduler.plan()
        if (removed := self.cache.take_removed()) is not None:
            self._events.append(removed)
        duration_s = self._price(chunks)
        served = self._complete(chunks)
        events, self._events = self._events, []
        return StepResult(duration_s, served, events)

    def _price(self, chunks: list[tuple[Seq, int]]) -> float:
        prefills: list[tuple[int, int]] = []
        kv_tokens = 0
        for seq, tokens in chunks:
            if tokens == 1 and seq.generated and seq.total - seq.computed == 1:
                kv_tokens += seq.total
            else:
                prefills.append((tokens, seq.computed))
        return step_s(self.setup, prefills, len(chunks) - len(prefills), kv_tokens)

    def _complete(self, chunks: list[tuple[Seq, int]]) -> list[Seq]:
        served: list[Seq] = []
        block_size, finished = self.limits.block_size, False
        for seq, tokens in chunks:
            seq.computed += tokens
            if seq.committed < seq.matchable and seq.computed // block_size > seq.committed:
                self._commit(seq, seq.computed // block_size)
            if seq.computed < seq.total:
                continue
            if not seq.generated:
                self.prompt_tokens_total += seq.request.prompt_tokens
            seq.generated += 1
            seq.total += 1
            served.append(seq)
            if seq.generated == seq.request.max_tokens:
                seq.finished = finished = True
        self.generated_tokens_total += len(served)
        if finished:
            self._retire(served)
        return served

    def _commit(self, seq: Seq, full: int) -> None:
        hashes, cache = seq.request.block_hashes, self.cache
        full = min(full, seq.matchable)
        new = sum(cache.commit(hashes[i]) for i in range(seq.committed, full))
        seq.committed = full
        if new and self._record:  # copies of what is cached come first: children are never cached without their parents
            self._events.append(BlocksStored(seq.request, full - new, new))

    def _retire(self, served: list[Seq]) -> None:
        for seq in served:
            if seq.finished:
                del self._seqs[seq.request.request_id]
                self._scheduler.release(seq)
        running = self._scheduler.running
        running[:] = [seq for seq in running if not seq.finished]

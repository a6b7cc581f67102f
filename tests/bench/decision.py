"""Micro-benchmark: one decision of the default policy, alone and with what it needs from the prefix index.

Invariant: the fleet is busy (every backend has pending prefills, live sessions and a part of the prompt), so no term of
the cost is skipped for being zero. Figures are CPU time, the median over batches.
"""

import random
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from prefix_index.memory import MemoryIndex
from prefix_index.protocol import Holder
from routing import DEFAULT_POLICY, Candidate, Decision, Facts, Knobs, Pending, PolicyState, build, decide
from vocabulary import KEY_BYTES, BackendId, BlockKeys, InstanceId

PROMPT_BLOCKS = 2048
TOKENS_PER_BLOCK = 16.0
_PENDING = 4
_BATCHES = 25
_BATCH_S = 0.01


def run() -> list[dict[str, Any]]:
    """Rows: deciding among 4 and 64 ready candidates; matching 2,048 blocks on 64 holders, building and deciding."""
    rows: list[dict[str, Any]] = []
    for backends in (4, 64):
        rng = random.Random(backends)
        fleet = [_load(rng) for _ in range(backends)]
        candidates = [_candidate(n, load, 40) for n, load in enumerate(fleet)]
        rows.append(_row(f"decision_{backends}_backends", _cpu_us(_decider(partial(list, candidates)))))
    rng = random.Random(0)
    fleet = [_load(rng) for _ in range(64)]
    index, keys = _index(rng, len(fleet))

    def matched() -> list[Candidate]:
        held = index.match(keys)
        return [_candidate(n, load, held.get(Holder(InstanceId(n)), 0)) for n, load in enumerate(fleet)]

    rows.append(_row(f"decision_64_backends_{PROMPT_BLOCKS}_blocks", _cpu_us(_decider(matched))))
    return rows


def _decider(candidates: Callable[[], list[Candidate]]) -> Callable[[], Decision]:
    policy = build(DEFAULT_POLICY, Knobs())
    state = PolicyState(rng=random.Random(1))
    facts = Facts(PROMPT_BLOCKS * TOKENS_PER_BLOCK, home=InstanceId(3))

    def once() -> Decision:
        state.sequence += 1
        return decide(facts, candidates(), policy, state)

    return once


def _load(rng: random.Random) -> tuple[list[Pending], float]:
    pending = [Pending(rng.uniform(100, 20_000), 30_000.0, rng.uniform(0.01, 0.5), 0.0) for _ in range(_PENDING)]
    return pending, rng.uniform(200_000, 500_000)


def _candidate(number: int, load: tuple[list[Pending], float], held_blocks: int) -> Candidate:
    pending, live_tokens = load
    return Candidate(
        InstanceId(number),
        BackendId(f"gpu-{number}"),
        cached_tokens=held_blocks * TOKENS_PER_BLOCK,
        in_flight=len(pending) + 8,
        pending=pending,
        pending_prefill_s=sum(p.prefill_s for p in pending),
        pending_uncached_tokens=sum(p.uncached_tokens for p in pending),
        progress_s=0.02,
        live_tokens=live_tokens,
        capacity_tokens=450_000,
    )


def _index(rng: random.Random, holders: int) -> tuple[MemoryIndex, BlockKeys]:
    """Every holder has some head of the prompt, no two the same, beside prompts of its own."""
    index = MemoryIndex(max_entries=2_000_000)
    keys = rng.randbytes(PROMPT_BLOCKS * KEY_BYTES)
    for number in range(holders):
        holder = Holder(InstanceId(number))
        for _ in range(4):
            index.store(holder, BlockKeys(rng.randbytes(512 * KEY_BYTES)))
        index.store(holder, BlockKeys(keys[: rng.randrange(1, PROMPT_BLOCKS) * KEY_BYTES]))
    return index, BlockKeys(keys)


def _cpu_us(work: Callable[[], object]) -> float:
    """Median CPU time of one call, in microseconds, after a warm-up that also sizes the batches."""
    start_s = time.process_time()
    calls = 0
    while time.process_time() - start_s < _BATCH_S:
        work()
        calls += 1
    batches: list[float] = []
    for _ in range(_BATCHES):
        start_s = time.process_time()
        for _ in range(calls):
            work()
        batches.append((time.process_time() - start_s) / calls)
    return statistics.median(batches) * 1e6


def _row(name: str, value_us: float) -> dict[str, Any]:
    return {"name": name, "value": round(value_us, 3), "unit": "us", "peer": None, "ratio": None}

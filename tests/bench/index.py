"""Micro-benchmarks of the memory index: time per call and bytes per block.

Memory is measured in a process of its own per shape (resident set after, minus before), with the keys of the load
made and dropped outside: what counts is what stays.
"""

from __future__ import annotations

import gc
import json
import random
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

from prefix_index.memory import MemoryIndex
from prefix_index.protocol import Holder
from vocabulary import KEY_BYTES, BlockKeys, InstanceId

if TYPE_CHECKING:
    from collections.abc import Callable

_ROUNDS = 7
_SHAPES = {
    "sessions_500_blocks": (2_000, 500, 10, 1),
    "sessions_500_blocks_4_holders": (2_000, 500, 10, 4),
    "prompts_16_blocks": (62_500, 16, 1, 1),
    "prompts_4_blocks": (250_000, 4, 1, 1),
    "prompts_1_block": (1_000_000, 1, 1, 1),
}
"""Name: sessions, blocks of each, turns in which it grows, holders that have it."""


def _row(name: str, value: float, unit: str, budget: float | None = None) -> dict[str, object]:
    return {
        "name": name,
        "value": round(value, 3),
        "unit": unit,
        "peer": "budget" if budget else None,
        "ratio": round(value / budget, 3) if budget else None,
    }


def _us(call: Callable[[], object], times: int) -> float:
    """Median over rounds of the mean time of one call, in microseconds."""
    rounds = []
    for _ in range(_ROUNDS):
        begin = perf_counter()
        for _ in range(times):
            call()
        rounds.append((perf_counter() - begin) / times * 1e6)
    return median(rounds)


def _keys(rng: random.Random, blocks: int) -> BlockKeys:
    return BlockKeys(rng.randbytes(blocks * KEY_BYTES))


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def bytes_per_block(shape: str) -> float:
    """Grow the index to a million blocks; resident bytes per distinct block. Run it in a fresh process."""
    sessions, blocks, turns, holders = _SHAPES[shape]
    index = MemoryIndex(10_000_000)
    rng = random.Random(1)
    seeds = [rng.getrandbits(64) for _ in range(sessions)]
    gc.collect()
    before = _resident_bytes()
    for turn in range(1, turns + 1):
        for number, seed in enumerate(seeds):
            keys = _keys(random.Random(seed), blocks)[: blocks * turn // turns * KEY_BYTES]
            for copy in range(holders):
                index.store(Holder(InstanceId((number + copy) % 64)), BlockKeys(keys))
    gc.collect()
    return (_resident_bytes() - before) / index.stats().blocks


def _memory_rows() -> list[dict[str, object]]:
    rows = []
    for shape, (_, _, _, holders) in _SHAPES.items():
        code = f"from tests.bench.index import bytes_per_block; print(bytes_per_block({shape!r}))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        rows.append(_row(f"index_bytes_per_block_{shape}", json.loads(done.stdout), "B", 150 + 60 * (holders - 1)))
    return rows


def _match_rows() -> list[dict[str, object]]:
    """2,048 blocks, 64 holders: the usual tree (all have the head, two the rest), and the worst (each ends
    elsewhere)."""
    rng = random.Random(2)
    keys = _keys(rng, 2_048)
    usual, worst = MemoryIndex(10_000_000), MemoryIndex(10_000_000)
    for number in range(64):
        holder = Holder(InstanceId(number))
        usual.store(holder, keys if number < 2 else BlockKeys(keys[: 128 * KEY_BYTES] + _keys(rng, 64)))
        worst.store(holder, BlockKeys(keys[: (32 + number * 31) * KEY_BYTES] + _keys(rng, 64)))
    worst.store(Holder(InstanceId(0)), keys)
    return [
        _row("index_match_2048_blocks_64_holders", _us(lambda: usual.match(keys), 500), "us", 200),
        _row("index_match_2048_blocks_64_holders_64_branches", _us(lambda: worst.match(keys), 500), "us", 200),
    ]


def _turn_row(name: str, sessions: int, blocks: int, cap: int, budget: float) -> dict[str, object]:
    """match + store of prompts that each add 20 blocks to a session already `blocks` long."""
    index = MemoryIndex(cap)
    rng = random.Random(3)
    system = _keys(rng, 60)
    holders = [Holder(InstanceId(number)) for number in range(64)]
    runs = [BlockKeys(system + _keys(rng, blocks - 60)) for _ in range(sessions)]
    for number, keys in enumerate(runs):
        index.store(holders[number % 64], keys)
    rounds = []
    for _ in range(_ROUNDS):
        runs = [BlockKeys(keys + _keys(rng, 20)) for keys in runs]
        begin = perf_counter()
        for number, keys in enumerate(runs):
            index.match(keys)
            index.store(holders[number % 64], keys)
        rounds.append((perf_counter() - begin) / sessions * 1e6)
    return _row(name, median(rounds), "us", budget)


def _unique_row() -> dict[str, object]:
    """Unique prompts of 16 blocks into a full index: every store also evicts."""
    index = MemoryIndex(100_000)
    rng = random.Random(4)
    prompts = iter([_keys(rng, 16) for _ in range(7_000 + _ROUNDS * 2_000)])
    holders = [Holder(InstanceId(number)) for number in range(64)]
    for number in range(7_000):
        index.store(holders[number % 64], next(prompts))
    return _row(
        "index_store_unique_at_cap", _us(lambda: index.store(holders[rng.randrange(64)], next(prompts)), 2_000), "us"
    )


def run() -> list[dict[str, object]]:
    """Rows `{"name", "value", "unit", "peer", "ratio"}`; where the design has a budget, ratio is value over it."""
    return [
        *_match_rows(),
        _turn_row("index_turn_940_blocks", 1_000, 940, 10_000_000, 15),
        _turn_row("index_turn_6250_blocks", 200, 6_250, 10_000_000, 15),
        _turn_row("index_turn_940_blocks_at_cap", 1_000, 940, 900_000, 15),
        _unique_row(),
        *_memory_rows(),
    ]

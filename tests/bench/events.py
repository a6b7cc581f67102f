"""Micro-benchmarks of KV-cache events: CPU per block from the bytes of a message to the index, and bytes per handle.

Memory is measured as in `index.py`, in a process of its own per shape: index, handles and all. CPU time of this thread
counts, not the clock on the wall: another process on the machine is not our cost.
"""

from __future__ import annotations

import gc
import json
import random
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import thread_time
from typing import TYPE_CHECKING, Any

import msgspec

from prefix_index.events.codec import decode
from prefix_index.events.mirror import Mirror
from prefix_index.keys import root_state
from prefix_index.memory import MemoryIndex
from vocabulary import InstanceId

if TYPE_CHECKING:
    from prefix_index.encoding.protocol import Namespace

_ROUNDS = 5
_BLOCK = 16
_BUDGET_BYTES = 150 + 120
_SHAPES = {"prompts_500_blocks": 500, "prompts_16_blocks": 16, "prompts_4_blocks": 4}


def _row(name: str, value: float, unit: str, budget: float | None = None) -> dict[str, object]:
    return {
        "name": name,
        "value": round(value, 3),
        "unit": unit,
        "peer": "budget" if budget else None,
        "ratio": round(value / budget, 3) if budget else None,
    }


class _Engine:
    """Messages as vLLM 0.32.0 writes them, and a mirror that hears them."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self.index = MemoryIndex(10_000_000)
        self.mirror = Mirror(self.index, InstanceId(1), _root, block_size=_BLOCK)

    def handles(self, count: int) -> list[int]:
        return [self._rng.getrandbits(64) for _ in range(count)]

    def stored(self, handles: list[int], parent: int | None) -> dict[str, Any]:
        return {
            "type": "BlockStored",
            "block_hashes": handles,
            "parent_block_hash": parent,
            "token_ids": [self._rng.randrange(150_000) for _ in range(_BLOCK * len(handles))],
            "block_size": _BLOCK,
            "medium": "GPU",
            "extra_keys": [None] * len(handles),
            "group_idx": 0,
            "kv_cache_spec_kind": "full_attention",
        }

    def hear(self, payload: bytes) -> None:
        for event in decode(payload).events:
            self.mirror.apply(event)


def _root(namespace: Namespace) -> bytes:
    return root_state(b"bench", namespace, _BLOCK).digest


def _removed(handle: int) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": [handle], "medium": "GPU", "group_idx": 0}


def _message(*events: dict[str, Any]) -> bytes:
    return msgspec.msgpack.encode([0.0, list(events), 0])


def _us_per_block(engine: _Engine, rounds: list[list[bytes]], blocks: int) -> float:
    """Median over rounds of messages that each round bring so many block events."""
    spent = []
    for messages in rounds:
        begin = thread_time()
        for message in messages:
            engine.hear(message)
        spent.append((thread_time() - begin) / blocks * 1e6)
    return median(spent)


def _stored_row(name: str, length: int, per_event: int) -> dict[str, object]:
    """200 sessions of `length` blocks grow by `per_event` blocks at a time, one event in each message."""
    engine = _Engine(1)
    tails = []
    for _ in range(200):
        handles = engine.handles(length)
        engine.hear(_message(engine.stored(handles, None)))
        tails.append(handles[-1])
    rounds = []
    for _ in range(_ROUNDS):
        messages = []
        for number, tail in enumerate(tails):
            handles = engine.handles(per_event)
            messages.append(_message(engine.stored(handles, tail)))
            tails[number] = handles[-1]
        rounds.append(messages)
    return _row(name, _us_per_block(engine, rounds, 200 * per_event), "us")


def _churn_row() -> dict[str, object]:
    """A full cache: a new prompt of 20 blocks behind a shared one of 40, 20 removals of one block each before it."""
    engine = _Engine(2)
    shared = engine.handles(40)
    engine.hear(_message(engine.stored(shared, None)))
    held = [engine.handles(20) for _ in range(200)]
    for handles in held:
        engine.hear(_message(engine.stored(handles, shared[-1])))
    rounds = []
    for _ in range(_ROUNDS):
        messages = []
        for _ in range(200):
            gone, new = held.pop(0), engine.handles(20)
            messages.append(_message(*map(_removed, reversed(gone)), engine.stored(new, shared[-1])))
            held.append(new)
        rounds.append(messages)
    return _row("events_churn_cpu_per_block", _us_per_block(engine, rounds, 200 * 40), "us")


def bytes_per_block(shape: str) -> float:
    """Half a million blocks, told in events of 16: resident bytes of index and handles. Run it in a fresh process."""
    blocks, engine = _SHAPES[shape], _Engine(3)
    gc.collect()
    before = _resident_bytes()
    for _ in range(500_000 // blocks):
        handles = engine.handles(blocks)
        for at in range(0, blocks, 16):
            engine.hear(_message(engine.stored(handles[at : at + 16], handles[at - 1] if at else None)))
    gc.collect()
    return (_resident_bytes() - before) / engine.index.stats().blocks


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def _memory_rows() -> list[dict[str, object]]:
    rows = []
    for shape in _SHAPES:
        code = f"from tests.bench.events import bytes_per_block; print(bytes_per_block({shape!r}))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        rows.append(_row(f"events_bytes_per_block_{shape}", json.loads(done.stdout), "B", _BUDGET_BYTES))
    return rows


def run() -> list[dict[str, object]]:
    """Rows `{"name", "value", "unit", "peer", "ratio"}`; where the design has a budget, ratio is value over it."""
    return [
        _stored_row("events_stored_1_block_cpu_per_block", 64, 1),
        _stored_row("events_stored_1_block_behind_6000_cpu_per_block", 6_000, 1),
        _stored_row("events_stored_16_blocks_cpu_per_block", 64, 16),
        _stored_row("events_stored_512_blocks_cpu_per_block", 64, 512),
        _churn_row(),
        *_memory_rows(),
    ]

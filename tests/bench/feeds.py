"""Requests while an engine tells of 20,000 blocks a second, half of them stored and half removed.

The gateway, the publisher and the upstream have processes of their own; the client is here. Idle and busy times take
turns, so that a machine that slows down slows both.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections import deque
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from typing import Any, Final

import msgspec
import zmq
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from tests.bench.contenders import Helper, free_port, our_config
from tests.bench.streams import gateway_process

BLOCKS_PER_S: Final = 20_000
_BLOCK: Final = 16
_PER_MESSAGE: Final = 8
"""Stored, and as many removed once the cache is full."""
_CACHE_BLOCKS: Final = 40_000
_RUN: Final = 64
"""Messages that extend one prompt."""
_ROUNDS: Final = 4
_REQUESTS: Final = 400
_PAUSE_S: Final = 0.003


def publish(port: int) -> None:
    """Until standard input ends: a line `1` begins, `0` pauses. Runs in a process of its own."""
    socket = zmq.Context().socket(zmq.PUB)
    socket.bind(f"tcp://127.0.0.1:{port}")
    poller, messages = zmq.Poller(), _messages()
    poller.register(sys.stdin.fileno(), zmq.POLLIN)
    busy, due_s, sequence = False, time.monotonic(), 0
    while True:
        if poller.poll(0 if busy else 1000):
            line = sys.stdin.readline()
            if not line:
                return
            busy, due_s = line.strip() == "1", time.monotonic()
        if busy:
            payload, blocks = next(messages)
            socket.send_multipart((b"", sequence.to_bytes(8, "big"), payload))
            sequence += 1
            due_s += blocks / BLOCKS_PER_S
            if (wait_s := due_s - time.monotonic()) > 0:
                time.sleep(wait_s)


def _messages() -> Any:
    """(payload, blocks told of) without end."""
    held: deque[list[int]] = deque()
    number = 1
    while True:
        parent = None
        for _ in range(_RUN):
            hashes = list(range(number, number + _PER_MESSAGE))
            number += _PER_MESSAGE
            ids = [(number * 31 + i) % 100_000 for i in range(_PER_MESSAGE * _BLOCK)]
            events: list[dict[str, Any]] = [
                {
                    "type": "BlockStored",
                    "block_hashes": hashes,
                    "parent_block_hash": parent,
                    "token_ids": ids,
                    "block_size": _BLOCK,
                    "medium": "GPU",
                }
            ]
            parent = hashes[-1]
            held.append(hashes)
            if len(held) * _PER_MESSAGE > _CACHE_BLOCKS:
                events.append({"type": "BlockRemoved", "block_hashes": held.popleft(), "medium": "GPU"})
            yield msgspec.msgpack.encode([0.0, events, 0]), len(events) * _PER_MESSAGE


def run() -> list[dict[str, Any]]:
    """The 99th percentile of a request's time, idle and busy, and what the events add; the budget is 2 ms."""
    events_port, port, admin_port = free_port(), free_port(), free_port()
    mock = Helper("tests.bench.mock")
    code = f"from tests.bench.feeds import publish; publish({events_port})"
    publisher = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, text=True)
    try:
        with tempfile.TemporaryDirectory(prefix="feeds-") as folder:
            config = our_config(port, admin_port, mock.read()[:1])
            tokenizer = Path(folder) / "tokenizer.json"
            Tokenizer(WordLevel({"a": 0}, unk_token="a")).save(str(tokenizer))
            config["models"] = [{"name": "m", "encoding": "tokens", "tokenizer": str(tokenizer)}]
            config["backends"][0] |= {"models": ["m"], "kv_events": {"endpoint": f"tcp://127.0.0.1:{events_port}"}}
            with gateway_process(config, port):
                return _measure(port, admin_port, publisher)
    finally:
        assert publisher.stdin is not None
        publisher.stdin.close()
        publisher.wait(10)
        mock.close()


def _measure(port: int, admin_port: int, publisher: subprocess.Popen[str]) -> list[dict[str, Any]]:
    _tell(publisher, busy=True)
    time.sleep(4)  # to fill the cache
    idle, busy, took_s, told = [], [], 0.0, 0.0
    for _ in range(_ROUNDS):
        _tell(publisher, busy=False)
        idle.append(_p99_ms(port))
        _tell(publisher, busy=True)
        before, begun_s = _events(admin_port), time.monotonic()
        busy.append(_p99_ms(port))
        told += _events(admin_port) - before
        took_s += time.monotonic() - begun_s
    added = median(b - i for b, i in zip(busy, idle, strict=True))
    return [
        _row("feed_blocks_per_second", told * _PER_MESSAGE / took_s, "1/s"),
        _row("feed_request_p99_idle", median(idle), "ms"),
        _row("feed_request_p99_busy", median(busy), "ms"),
        _row("feed_added_p99", added, "ms", 2.0),
    ]


def _tell(publisher: subprocess.Popen[str], *, busy: bool) -> None:
    assert publisher.stdin is not None
    publisher.stdin.write(f"{int(busy)}\n")
    publisher.stdin.flush()
    time.sleep(0.2)


def _p99_ms(port: int) -> float:
    connection = HTTPConnection("127.0.0.1", port)
    times = []
    for number in range(_REQUESTS):
        body = json.dumps({"model": "m", "prompt": [number] * 64, "max_tokens": 1})
        begun_s = time.perf_counter()
        connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
        response = connection.getresponse()
        response.read()
        if response.status != 200:
            raise RuntimeError(f"status {response.status}")
        times.append((time.perf_counter() - begun_s) * 1e3)
        time.sleep(_PAUSE_S)
    connection.close()
    return sorted(times)[int(len(times) * 0.99)]


def _events(admin_port: int) -> float:
    connection = HTTPConnection("127.0.0.1", admin_port)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    kinds = [line for line in lines if line.startswith("warmroute_kv_events_total{")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in kinds if 'kind="stored"' in line or 'kind="removed"' in line)


def _row(name: str, value: float, unit: str, budget: float | None = None) -> dict[str, Any]:
    return {
        "name": name,
        "value": round(value, 3),
        "unit": unit,
        "peer": "budget" if budget else None,
        "ratio": round(value / budget, 3) if budget else None,
    }

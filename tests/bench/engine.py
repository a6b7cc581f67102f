"""What the simulated engine itself costs: 8 engines in one process, 32 streams each, `llama-3.1-8b` at speed 1.

The streams are read and thrown away by a process of their own, as they come. CPU is that of the engines' process only.
"""

from __future__ import annotations

import json
import selectors
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from typing import IO, Any, Final

from backends.engine.command import EngineOptions, SimulatedEngine
from backends.engine.setups import step_s

ENGINES: Final = 8
STREAMS_PER_ENGINE: Final = 32
WARM_UP_S: Final = 2.0
MEASURED_S: Final = 5.0
BUDGET_CORES: Final = 1.0
_PROMPT_TOKENS: Final = 16
_MAX_TOKENS: Final = 100_000


def run() -> list[dict[str, Any]]:
    """Cores used, chunks per second, CPU per chunk, and the pace: 1 is that of the modelled hardware."""
    with ExitStack() as stack:
        fleet = _start("serve_fleet", stack)
        ports = _line(fleet.stdout)["ports"]
        reader = _start("read_streams", stack, json.dumps(ports))
        _line(reader.stdout)  # every stream has begun
        time.sleep(WARM_UP_S)
        cpu, before, begun = _cpu_s(fleet.pid), _ask(reader), time.perf_counter()
        time.sleep(MEASURED_S)
        cpu, after, took = _cpu_s(fleet.pid) - cpu, _ask(reader), time.perf_counter() - begun
    chunks = after - before
    if not chunks:
        raise RuntimeError("no chunks arrived")
    return [
        _row("engine_cores_8x32_streams", cpu / took, "cores"),
        _row("engine_chunks_per_s", chunks / took, "chunks/s"),
        _row("engine_cpu_per_chunk", cpu / chunks * 1e6, "us"),
        _row("engine_pace", chunks / took / _expected_per_s((before + after) / 2), "x"),
    ]


def _expected_per_s(chunks_so_far: float) -> float:
    """Chunks per second of the cost model when the streams have had that many in all."""
    context = _PROMPT_TOKENS + chunks_so_far / (ENGINES * STREAMS_PER_ENGINE)
    setup = EngineOptions().hardware
    step = step_s(setup, [], STREAMS_PER_ENGINE, round(context * STREAMS_PER_ENGINE))
    return ENGINES * STREAMS_PER_ENGINE / step


def serve_fleet() -> None:
    """Subprocess: the engines, until standard input ends."""
    import asyncio
    from contextlib import AsyncExitStack

    import uvloop

    async def fleet() -> None:
        async with AsyncExitStack() as stack:
            engines = [await stack.enter_async_context(SimulatedEngine(EngineOptions())) for _ in range(ENGINES)]
            print(json.dumps({"ports": [engine.port for engine in engines]}), flush=True)
            await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)

    uvloop.run(fleet())


def read_streams(ports_json: str) -> None:
    """Subprocess: opens all streams, reads as bytes come, answers each line of standard input with the chunk count."""
    selector = selectors.DefaultSelector()
    for engine, port in enumerate(json.loads(ports_json)):
        for stream in range(STREAMS_PER_ENGINE):
            sock = socket.create_connection(("127.0.0.1", port))
            sock.sendall(_request(f"{engine}-{stream} "))
            sock.recv(4096)
            selector.register(sock, selectors.EVENT_READ, sock.recv)
    selector.register(sys.stdin, selectors.EVENT_READ, None)
    print(json.dumps({"streams": len(selector.get_map()) - 1}), flush=True)
    chunks = 0
    while True:
        for key, _ in selector.select():
            if key.data is not None:
                data = key.data(65_536)
                if not data:
                    raise RuntimeError("a stream ended")
                chunks += data.count(b"\n\n")
            elif sys.stdin.readline():
                print(json.dumps({"chunks": chunks}), flush=True)
            else:
                return


def _request(tag: str) -> bytes:
    content = (tag * _PROMPT_TOKENS)[: 4 * _PROMPT_TOKENS - len("user..")]
    messages = [{"role": "user", "content": content}]
    body = json.dumps({"model": "demo", "messages": messages, "stream": True, "max_tokens": _MAX_TOKENS}).encode()
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: engine\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%b" % (len(body), body)
    )


def _start(function: str, stack: ExitStack, *arguments: str) -> subprocess.Popen[str]:
    code = f"import sys; from tests.bench.engine import {function}; {function}(*sys.argv[1:])"
    process = stack.enter_context(
        subprocess.Popen(
            [sys.executable, "-c", code, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
    )
    stack.callback(process.kill)
    return process


def _ask(reader: subprocess.Popen[str]) -> int:
    assert reader.stdin is not None
    reader.stdin.write("\n")
    reader.stdin.flush()
    return int(_line(reader.stdout)["chunks"])


def _line(stream: IO[str] | None) -> dict[str, Any]:
    assert stream is not None
    line = stream.readline()
    if not line:
        raise RuntimeError("a benchmark process died")
    value: dict[str, Any] = json.loads(line)
    return value


def _cpu_s(pid: int) -> float:
    """User and system time of all threads of a process: its CPU clock (Linux: the id is made of the pid)."""
    return time.clock_gettime(~pid << 3 | 2)


def _row(name: str, value: float, unit: str) -> dict[str, Any]:
    return {"name": name, "value": round(value, 3), "unit": unit, "peer": None, "ratio": None}

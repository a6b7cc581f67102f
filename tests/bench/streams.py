"""A thousand streams of one chunk a second each, for half a minute: memory, CPU and errors of a gateway at rest.

The gateway has a process of its own, whose figures these are; upstream and clients share this one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import uvloop

from tests.bench.contenders import free_port, our_config, stop, wait_until_up
from tests.bench.cpu import cpu_s, process_tree, resident_mib
from tests.support.streams import StreamClient, StreamUpstream, paced

if TYPE_CHECKING:
    from collections.abc import Iterator

STREAMS: Final = 1000
GAP_S: Final = 1.0
EARLY_S: Final = 10.0
LATE_S: Final = 30.0
_MAX_OPEN_FILES: Final = 8192
_SLACK_S: Final = 30.0


def run() -> list[dict[str, Any]]:
    """Resident memory after 10 and 30 seconds, streams that were not whole, CPU in between. Raises ContenderError."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(_MAX_OPEN_FILES, hard), hard))
    return uvloop.run(_run())


async def _run() -> list[dict[str, Any]]:
    async with StreamUpstream() as upstream:
        port = free_port()
        config = our_config(port, free_port(), [upstream.port])
        loop = asyncio.get_running_loop()
        with contextlib.ExitStack() as stack:
            # the upstream, which the gateway probes at its start, needs this loop meanwhile
            pid = await loop.run_in_executor(None, stack.enter_context, gateway_process(config, port))
            try:
                return await _measure(port, process_tree(pid))
            finally:
                await loop.run_in_executor(None, stack.close)


@contextlib.contextmanager
def gateway_process(config: dict[str, Any], port: int) -> Iterator[int]:
    """Its process id, once it is ready."""
    with tempfile.TemporaryDirectory(prefix="streams-") as folder:
        path, log = Path(folder) / "warmroute.yaml", Path(folder) / "gateway.log"
        path.write_text(json.dumps(config))  # JSON is YAML
        command = [str(Path(sys.executable).with_name("warmroute")), "serve", "--config", str(path)]
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
            try:
                wait_until_up(process, f"http://127.0.0.1:{port}/readyz", log)
                yield process.pid
            finally:
                stop(process)


async def _measure(port: int, pids: list[int]) -> list[dict[str, Any]]:
    events = int(LATE_S / GAP_S) + 3
    clients: list[StreamClient] = []
    answers = []
    for number in range(STREAMS):
        client = await StreamClient.connect("127.0.0.1", port)
        clients.append(client)
        answers.append(client.send(paced(f"stream {number}", events=events, gap_s=GAP_S, size=20)))
        await asyncio.sleep(GAP_S / STREAMS)  # phases spread over the interval
    await asyncio.sleep(EARLY_S)
    early_mib, cpu_before_s, chunks, begun_s = resident_mib(pids), cpu_s(pids), _events(clients), time.monotonic()
    await asyncio.sleep(LATE_S - EARLY_S)
    late_mib, used_s = resident_mib(pids), cpu_s(pids) - cpu_before_s
    chunks, took_s = _events(clients) - chunks, time.monotonic() - begun_s
    await asyncio.wait(answers, timeout=_SLACK_S)
    errors = sum(not client.whole or client.events != events for client in clients)
    for client in clients:
        await client.close()
    return [
        _row("streams_1000_resident_10s", early_mib, "MiB"),
        _row("streams_1000_resident_30s", late_mib, "MiB"),
        _row("streams_1000_errors", errors, "1"),
        _row("streams_1000_cores", used_s / took_s, "cores"),
        _row("streams_1000_cpu_per_chunk", used_s / max(1, chunks) * 1e6, "us"),
    ]


def _events(clients: list[StreamClient]) -> int:
    return sum(client.events for client in clients)


def _row(name: str, value: float, unit: str) -> dict[str, Any]:
    return {"name": name, "value": round(value, 3), "unit": unit, "peer": None, "ratio": None}

"""`python -m tests.bench`: this gateway beside its peers, and its parts alone; prints tables, writes a JSON file.

Invariant: contenders take turns within every round and get the same requests in it; the order of turns rotates.
Exits with 1 if any contender failed a single request: a figure with errors in it is no figure.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.contenders import OURS, PEERS, Contender, Helper, free_port, our_config, peer_command, running
from tests.bench.cpu import resident_mib
from tests.bench.mock import CHUNKS, GAP_S
from tests.bench.report import Measured, Row, micro_table, peer_rows, peer_table

MICRO = ("decision", "encoding", "index", "events", "engine", "streams", "feeds")
BUILD = Path("build")
_WARM_UP_SEED = 7_000_000
_DIRECT = "direct"


@dataclass(frozen=True, slots=True)
class Workload:
    """One kind of traffic: its size per connection in a full and a quick run, and the figure it gives."""

    name: str
    figure: str
    size: int
    quick_size: int
    per: str = "requests"


WORKLOADS = (
    Workload("request_1k", "cpu_per_request_1k", 150, 100),
    Workload("request_60k", "cpu_per_request_60k", 3, 2),
    Workload("request_60k_cold", "cpu_per_request_60k_cold", 12, 12),
    Workload("chunk", "cpu_per_chunk", 2, 1, per="events"),
    Workload("added_latency", "added_latency", 400, 200),
)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--peers", metavar="PYTHON", help="Python of an environment that has the two routers")
    parser.add_argument("--rounds", type=int, help="rounds of every workload (default 12, quick 3)")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds, no micro-benchmarks")
    parser.add_argument("--only", metavar="NAME", help="figures whose name contains NAME, to build/bench-only.json")
    parser.add_argument("--gateway", default=str(Path(sys.executable).with_name("warmroute")), help="our command")
    parser.add_argument("--overlay", type=Path, metavar="FILE", help="JSON sections that replace those of our config")
    return parser.parse_args()


@contextlib.contextmanager
def fleet(args: argparse.Namespace) -> Iterator[tuple[list[int], list[Contender]]]:
    """The mock and every contender, all running: mock ports and contenders, ours first."""
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        mock = Helper("tests.bench.mock")
        stack.callback(mock.close)
        ports: list[int] = mock.read()
        port = free_port()
        config = our_config(port, free_port(), ports)
        if args.overlay:
            config |= json.loads(args.overlay.read_text())
        config_file = scratch / "warmroute.yaml"
        config_file.write_text(json.dumps(config))  # JSON is YAML
        commands = [(OURS, [args.gateway, "serve", "--config", str(config_file)], port)]
        for name in PEERS if args.peers else ():
            peer_port = free_port()
            commands.append((name, peer_command(args.peers, name, peer_port, ports), peer_port))
        yield ports, [stack.enter_context(running(n, c, p, scratch / f"{n}.log")) for n, c, p in commands]


class Bench:
    """Runs the workloads in rounds and keeps every round's figures."""

    def __init__(self, load: Helper, contenders: list[Contender], mock_port: int) -> None:
        self.load = load
        self.contenders = contenders
        self.direct = Contender(_DIRECT, mock_port, [])
        self.values: dict[tuple[str, str, str], list[float]] = {}
        self.stream_s: dict[str, list[float]] = {}
        self.errors: list[str] = []

    def warm_up(self, workloads: list[Workload]) -> None:
        """A short run of everything; nothing is kept but errors."""
        for work in workloads:
            size = 1 if work.name in ("chunk", "request_60k") else max(1, work.quick_size // 3)
            for contender in (self.direct, *self.contenders):
                self._run(work, contender, _WARM_UP_SEED, size)

    def round(self, number: int, workloads: list[Workload], quick: bool) -> None:
        """One round of every workload, contenders in turn."""
        shift = number % len(self.contenders)
        turns = self.contenders[shift:] + self.contenders[:shift]
        for index, work in enumerate(workloads):
            seed = number * 1_000_000 + index * 100_000
            size = work.quick_size if quick else work.size
            if work.name == "added_latency":
                self._latency_turns(work, turns, seed, size)
                continue
            for contender in turns:
                result = self._run(work, contender, seed, size)
                cost_us = result["cpu_s"] / max(1, result[work.per]) * 1e6
                self._keep(work.figure, "us", contender, cost_us)
                if work.name == "chunk":
                    self.stream_s.setdefault(contender.name, []).append(statistics.median(result["latencies_s"]))

    def measured(self) -> list[Measured]:
        """All figures, ours first within each."""
        order = [c.name for c in self.contenders]
        keys = sorted(self.values, key=lambda key: order.index(key[2]))
        names = dict.fromkeys(key[0] for key in self.values)
        return [Measured(*key, tuple(self.values[key])) for name in names for key in keys if key[0] == name]

    def _latency_turns(self, work: Workload, turns: list[Contender], seed: int, size: int) -> None:
        for contender in turns:
            direct = self._run(work, self.direct, seed, size)["latencies_s"]
            through = self._run(work, contender, seed, size)["latencies_s"]
            for percent in (50, 99):
                added_ms = (_percentile(through, percent) - _percentile(direct, percent)) * 1e3
                self._keep(f"{work.figure}_p{percent}", "ms", contender, added_ms)

    def _run(self, work: Workload, contender: Contender, seed: int, size: int) -> dict[str, Any]:
        command = {"workload": work.name, "seed": seed, "size": size}
        result: dict[str, Any] = self.load.ask({**command, "port": contender.port, "pids": contender.pids})
        if result["errors"]:
            self.errors.append(f"{work.name} {contender.name}: {result['errors']} errors, {result['first_errors']}")
        return result

    def _keep(self, name: str, unit: str, contender: Contender, value: float) -> None:
        self.values.setdefault((name, unit, contender.name), []).append(value)


def _percentile(ordered: list[float], percent: int) -> float:
    return statistics.quantiles(ordered, n=100, method="inclusive")[percent - 1] if len(ordered) > 1 else float("nan")


def micro(name: str) -> list[Row]:
    """The rows of one micro-benchmark, from a process of its own so that heaps do not disturb one another."""
    code = f"import json; from tests.bench.{name} import run; print(json.dumps(run()))"
    output = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True).stdout
    rows: list[Row] = json.loads(output.splitlines()[-1])
    return rows


def beside_peers(args: argparse.Namespace, workloads: list[Workload]) -> tuple[list[Row], list[str]]:
    """All rounds; prints the table. Rows, and errors in words."""
    rounds = args.rounds or (3 if args.quick else 12)
    with contextlib.ExitStack() as stack:
        ports, contenders = stack.enter_context(fleet(args))
        load = Helper("tests.bench.load")
        stack.callback(load.close)
        bench = Bench(load, contenders, ports[0])
        bench.warm_up(workloads)
        for number in range(rounds):
            bench.round(number, workloads, args.quick)
            print(f"round {number + 1}/{rounds}, load average {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
        memory_mib = {contender.name: resident_mib(contender.pids) for contender in contenders}
    measured = bench.measured()
    print(peer_table(measured, OURS))
    for name, medians_s in bench.stream_s.items():
        print(f"one stream, which lasts {CHUNKS * GAP_S:.1f} s, takes {statistics.median(medians_s):.2f} s in {name}")
    for name, used_mib in memory_mib.items():
        print(f"{used_mib:.0f} MiB resident at the end in {name}")
    return peer_rows(measured, OURS), bench.errors


def main() -> int:
    """Run what was asked for; 0 if no request failed."""
    args = arguments()
    wanted = args.only or ""
    workloads = [w for w in WORKLOADS if wanted in w.figure or wanted in w.name]
    rows: list[Row] = []
    errors: list[str] = []
    if workloads:
        rows, errors = beside_peers(args, workloads)
    for name in () if args.quick and not wanted else MICRO:
        if wanted in name:
            print(f"\n{name}")
            found = micro(name)
            print(micro_table(found), flush=True)
            rows += found
    BUILD.mkdir(exist_ok=True)
    path = BUILD / ("bench-only.json" if wanted else "bench.json")
    path.write_text(json.dumps(rows, indent=1) + "\n")
    print(f"\n{len(rows)} rows in {path}")
    for error in errors:
        print(f"FAILED {error}", file=sys.stderr)
    return 1 if errors or not rows else 0


if __name__ == "__main__":
    sys.exit(main())

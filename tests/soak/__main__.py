"""`make soak`: a gateway under mixed traffic and steady trouble, for ten minutes. Exit code 0 when it passed.

The gateway and five simulated engines are processes of their own; the clients share this one. Figures of memory count
from the end of the warm-up, when what is bounded by size is full.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import click
import uvloop

from tests.soak.processes import Engine, Gateway
from tests.soak.tally import Tally
from tests.soak.traffic import Client, Plan
from tests.soak.trouble import Trouble

ENGINES: Final = 5
SAMPLE_S: Final = 2.0
REST_S: Final = 8.0


@click.command()
@click.option("--minutes", type=float, default=10.0, show_default=True)
@click.option("--warm-up-minutes", type=float, default=3.0, show_default=True)
@click.option("--clients", type=int, default=24, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
def main(minutes: float, warm_up_minutes: float, clients: int, seed: int) -> None:
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        passed = uvloop.run(soak(Path(folder), minutes, warm_up_minutes, clients, seed))
    sys.exit(0 if passed else 1)


def config(engines: list[Engine], keys: tuple[str, ...], token: str) -> dict[str, Any]:
    return {
        "listen": {"drain_delay_s": 0, "grace_s": 10},
        "admin": {"token_file": token},
        "tenants": [{"name": f"team-{i}", "api_keys_file": key} for i, key in enumerate(keys)],
        "store": {"max_entries": 20_000},
        "sessions": {"max_sessions": 1_000},
        "limits": {"keepalive_idle_s": 2},
        "health": {"interval_s": 1, "timeout_s": 3, "metrics_interval_s": 1, "slow_start_s": 3},
        "telemetry": {"log_level": "warning"},
        "backends": [{"name": engine.name, "url": engine.url} for engine in engines],
    }


async def soak(folder: Path, minutes: float, warm_up_minutes: float, clients: int, seed: int) -> bool:
    keys = tuple(secrets.token_hex(16) for _ in range(2))
    files = [folder / f"key-{i}" for i in range(len(keys))]
    for file, key in zip(files, keys, strict=True):
        file.write_text(key)
    token = secrets.token_hex(16)
    (folder / "token").write_text(token)
    engines = [Engine(f"gpu-{i}", folder) for i in range(ENGINES)]
    settings = config(engines, tuple(map(str, files)), str(folder / "token"))
    gateway = Gateway(folder, settings, token)
    tally = Tally()
    async with contextlib.AsyncExitStack() as stack:
        for engine in engines:
            stack.push_async_callback(engine.end)
            await engine.start()
        stack.push_async_callback(gateway.end)
        await gateway.start()
        await gateway.status()  # from here on one connection of our own is open
        await asyncio.sleep(3)
        files_before = gateway.open_files
        trouble = Trouble(gateway, engines, settings["backends"], seed)
        plan = Plan(gateway.port, keys, {engine.name: engine for engine in engines}, tally, asyncio.Event())
        await _run(plan, gateway, trouble, clients, minutes, warm_up_minutes)
        await asyncio.sleep(REST_S)
        await _count_leaks(gateway, tally, files_before)
        code = await gateway.end()
        tally.leaks["exit code"] = float(code or 0)
        _keep(gateway.log)
    print("trouble:")
    for name, count in sorted(trouble.counts.items()):
        print(f"  {count:8d}  {name}")
    print("\n".join(tally.lines()), flush=True)
    return tally.passed


async def _run(
    plan: Plan, gateway: Gateway, trouble: Trouble, clients: int, minutes: float, warm_up_minutes: float
) -> None:
    began_s = time.monotonic()
    stop_trouble = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for number in range(clients):
            group.create_task(Client(plan, number).run())
        troubling = group.create_task(trouble.run(stop_trouble))
        while (minute := (time.monotonic() - began_s) / 60) < minutes:
            if minute >= warm_up_minutes:
                plan.tally.rss.append((minute, gateway.rss_mb))
            await asyncio.sleep(SAMPLE_S)
            if int(minute * 60 / SAMPLE_S) % 15 == 0:
                tally = plan.tally
                print(
                    f"{minute:5.1f} min: {tally.requests} requests, {tally.unexpected} unexpected errors,"
                    f" RSS {gateway.rss_mb:.0f} MB, {gateway.open_files} files",
                    flush=True,
                )
        stop_trouble.set()
        await troubling
        plan.stop.set()


async def _count_leaks(gateway: Gateway, tally: Tally, files_before: int) -> None:
    status = await gateway.status()
    tally.leaks = {
        "requests on backends": sum(backend["in_flight"] for backend in status["backends"]),
        "pending requests": sum(backend["pending"] for backend in status["backends"]),
        "client connections": status["connections"],
        "bytes of requests": await gateway.metric("warmroute_request_bytes_buffered"),
        "requests of tenants": await gateway.metric("warmroute_tenant_inflight"),
        "open files": max(0, gateway.open_files - files_before),
        "faults of our own in the log": gateway.log.read_text().count('"request_failed"'),
    }


def _keep(log: Path) -> None:
    target = Path("build/soak.log")
    target.parent.mkdir(exist_ok=True)
    target.write_bytes(log.read_bytes())


if __name__ == "__main__":
    main()

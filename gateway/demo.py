"""`warmroute demo`: a simulated fleet and the gateway in front of it, in one process. No GPU, no Redis."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import TYPE_CHECKING

from backends.engine.command import EngineOptions, SimulatedEngine
from gateway.config import default_config
from gateway.serve import Process
from vocabulary.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.config import Config
    from gateway.serve import Addresses


async def demo(
    *,
    backends: int,
    setup: str,
    speed: float,
    port: int,
    admin_port: int,
    policy: str,
    kv_tokens: int | None,
    on_ready: Callable[[Addresses, list[str]], None],
) -> None:
    """Run until SIGTERM or SIGINT. Raises ConfigError where a port cannot be taken or the engines cannot be so."""
    try:
        options = EngineOptions(setup=setup, speed=speed, kv_tokens=kv_tokens)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    async with contextlib.AsyncExitStack() as stack:
        urls = [(await stack.enter_async_context(SimulatedEngine(options))).url for _ in range(backends)]
        process = Process(_config(urls, setup=setup, port=port, admin_port=admin_port, policy=policy))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, process.stop)
        await process.run(lambda addresses: on_ready(addresses, urls))


def _config(urls: list[str], *, setup: str, port: int, admin_port: int, policy: str) -> Config:
    return default_config(
        listen={"port": port, "drain_delay_s": 0, "grace_s": 5},
        admin={"port": admin_port},
        backends=[{"name": f"gpu-{i}", "url": url, "setup": setup} for i, url in enumerate(urls, start=1)],
        routes=[{"name": "default", "policy": policy}],
        telemetry={"log_level": "warning", "log_format": "console"},
    )

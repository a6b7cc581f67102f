"""One gateway process: its listeners, and the way from a signal to exit 0.

SIGTERM or SIGINT: not ready at once, still serving for `listen.drain_delay_s`; then no new connections, running
requests get `listen.grace_s` to end. A second signal skips what is left of the delay. SIGHUP reads the config anew,
as a change of its files does.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import resource
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gateway.admin import admin_app, metrics_app
from gateway.app import Gateway
from gateway.hot import hot_protocol, side_protocol
from gateway.listeners import Server, bind, server_context, url_of
from gateway.reload import Reloader
from gateway.watch import FileWatch
from gateway.web import traffic_app

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from gateway.config import Config
    from gateway.logs import LogControl

_WATCH_INTERVAL_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the gateway listens, with the ports that were really taken."""

    traffic: str
    admin: str
    metrics: str | None = None


class Process:
    """A gateway with its listeners. `run` returns after `stop` was called and everything has ended."""

    def __init__(
        self,
        config: Config,
        read: Callable[[], Config] | None = None,
        logs: LogControl | None = None,
        watch_interval_s: float = _WATCH_INTERVAL_S,
    ) -> None:
        """`read` gives the config anew for a reload (None: it is what it is). Raises ConfigError where an address or a
        certificate cannot be used."""
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._watch_interval_s = watch_interval_s
        listen, admin = config.listen, config.admin
        contexts = [
            None if tls is None else server_context(tls, f"{name}.tls")
            for name, tls in (("listen", listen.tls), ("admin", admin.tls))
        ]
        with contextlib.ExitStack() as undo:
            traffic_socket = _bound(undo, listen.host, listen.port, "listen.port")
            admin_socket = _bound(undo, admin.host, admin.port, "admin.port")
            metrics_socket = None
            if admin.metrics_bind is not None:
                host, _, port = admin.metrics_bind.rpartition(":")
                metrics_socket = _bound(undo, host, int(port), "admin.metrics_bind")
            self._watch = None if read is None else FileWatch(config.files)
            self.gateway = gateway = Gateway(config)
            undo.pop_all()
        self.reloader = Reloader(gateway, read or (lambda: config), logs)
        gateway.reloader = self.reloader
        self._traffic = Server(traffic_app(gateway), traffic_socket, listen, hot_protocol(gateway), contexts[0])
        self._admin = Server(admin_app(gateway), admin_socket, listen, side_protocol(gateway), contexts[1])
        self._metrics: Server | None = None
        if metrics_socket is not None:
            self._metrics = Server(metrics_app(gateway), metrics_socket, listen, side_protocol(gateway), None)
        self.reloader.renews("listen", self._traffic)
        self.reloader.renews("admin", self._admin)
        self.addresses = Addresses(
            url_of(traffic_socket, listen.tls),
            url_of(admin_socket, admin.tls),
            None if metrics_socket is None else url_of(metrics_socket, None),
        )

    def stop(self) -> None:
        """Begin to end; called again, skip the drain delay."""
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    def reload(self) -> None:
        """As SIGHUP does."""
        self.gateway.spawn(self._reload())

    async def _reload(self) -> None:
        await self.reloader.reload("signal")

    async def _files_changed(self) -> None:
        await self.reloader.reload("file")

    async def run(self, on_ready: Callable[[Addresses], None] | None = None) -> None:
        gateway = self.gateway
        traffic, side = self._traffic, [server for server in (self._admin, self._metrics) if server is not None]
        async with asyncio.TaskGroup() as group:
            watching: asyncio.Task[None] | None = None
            try:
                for server in side:
                    group.create_task(server.run_until_exit())
                starting = group.create_task(gateway.start())
                stopping = group.create_task(self._stop.wait())
                await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
                starting.cancel()  # of no effect on what has started; told to stop, nobody waits for the first probes
                serving = group.create_task(traffic.run_until_exit())
                await traffic.listening.wait()
                if self._watch is not None:
                    looking = self._watch.run(self.reloader.files, self._files_changed, self._watch_interval_s)
                    watching = group.create_task(looking)
                gateway.log.info("listening", traffic=self.addresses.traffic, admin=self.addresses.admin)
                if on_ready is not None:
                    on_ready(self.addresses)
                await stopping
                gateway.draining = True
                listen = gateway.config.listen  # of the latest reload
                traffic.config.timeout_graceful_shutdown = int(max(1, listen.grace_s))
                gateway.log.info("draining", delay_s=listen.drain_delay_s)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._hurry.wait(), listen.drain_delay_s)
                traffic.exit()
                await serving
            finally:
                if watching is not None:
                    watching.cancel()
                traffic.exit()
                for server in side:
                    server.exit()
                await gateway.stop()
        gateway.log.info("stopped")


def _bound(undo: contextlib.ExitStack, host: str, port: int, knob: str) -> socket.socket:
    listener = bind(host, port, knob)
    undo.callback(listener.close)
    return listener


def _take_open_files() -> None:
    """A stream takes two sockets: the 1,024 that shells start a process with are soon used up."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # a system that allows less than it says
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _settle_heap() -> None:
    """What start-up made stays: the collector need not walk it again. What requests make is freed by counting, so it
    may look rarely."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


async def serve(
    config: Config,
    read: Callable[[], Config] | None = None,
    logs: LogControl | None = None,
    on_ready: Callable[[Addresses], None] | None = None,
) -> None:
    """Run until SIGTERM or SIGINT. Raises ConfigError where an address or a file cannot be used."""
    _take_open_files()
    process = Process(config, read, logs)
    _settle_heap()
    loop = asyncio.get_running_loop()
    handlers = {signal.SIGTERM: process.stop, signal.SIGINT: process.stop, signal.SIGHUP: process.reload}
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    try:
        await process.run(on_ready)
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)

"""One gateway process: two listeners, and the way from a signal to exit 0.

SIGTERM or SIGINT: not ready at once, still serving for `listen.drain_delay_s`; then no new connections, running
requests get
`listen.grace_s` to end. A second signal skips what is left of the delay.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import resource
import signal
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import uvicorn

from gateway.admin import admin_app
from gateway.app import Gateway
from gateway.hot import hot_protocol
from gateway.web import traffic_app
from vocabulary.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from starlette.types import ASGIApp

    from gateway.config import Config

_BACKLOG: Final = 2048


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the gateway listens, with the ports that were really taken."""

    traffic: str
    admin: str


class _Server(uvicorn.Server):
    """Signals are the process's business, not one listener's."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def _bind(host: str, port: int, knob: str) -> socket.socket:
    """Raises ConfigError that names the knob."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigError(f"{knob}: cannot listen on {host}:{port} ({error.strerror})") from error
    return listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _server(app: ASGIApp, config: Config, http: type[asyncio.Protocol] | str) -> _Server:
    return _Server(
        uvicorn.Config(
            app,
            http=http,
            loop="none",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=_BACKLOG,
            timeout_keep_alive=int(max(1, config.listen.keep_alive_s)),
            timeout_graceful_shutdown=int(max(1, config.listen.grace_s)),
        )
    )


class Process:
    """A gateway with its listeners. `run` returns after `stop` was called and everything has ended."""

    def __init__(self, config: Config) -> None:
        """Raises ConfigError where an address cannot be taken."""
        self._config = config
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self.gateway = Gateway(config)
        listen, admin = config.listen, config.admin
        self._traffic_socket = _bind(listen.host, listen.port, "listen.port")
        try:
            self._admin_socket = _bind(admin.host, admin.port, "admin.port")
        except ConfigError:
            self._traffic_socket.close()
            raise
        self.addresses = Addresses(_url(self._traffic_socket), _url(self._admin_socket))

    def stop(self) -> None:
        """Begin to end; called again, skip the drain delay."""
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    async def run(self, on_ready: Callable[[Addresses], None] | None = None) -> None:
        gateway, config = self.gateway, self._config
        traffic = _server(traffic_app(gateway), config, hot_protocol(gateway))
        admin = _server(admin_app(gateway), config, "httptools")
        async with asyncio.TaskGroup() as group:
            try:
                group.create_task(admin.serve(sockets=[self._admin_socket]))
                starting = group.create_task(gateway.start())
                stopping = group.create_task(self._stop.wait())
                await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
                starting.cancel()  # of no effect on what has started; told to stop, nobody waits for the first probes
                serving = group.create_task(traffic.serve(sockets=[self._traffic_socket]))
                await traffic.listening.wait()
                gateway.log.info("listening", traffic=self.addresses.traffic, admin=self.addresses.admin)
                if on_ready is not None:
                    on_ready(self.addresses)
                await stopping
                gateway.draining = True
                gateway.log.info("draining", delay_s=config.listen.drain_delay_s)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._hurry.wait(), config.listen.drain_delay_s)
                traffic.should_exit = True
                await serving
            finally:
                traffic.should_exit = admin.should_exit = True
                await gateway.stop()
        gateway.log.info("stopped")


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


async def serve(config: Config, on_ready: Callable[[Addresses], None] | None = None) -> None:
    """Run until SIGTERM or SIGINT. Raises ConfigError where an address or a file cannot be used."""
    _take_open_files()
    process = Process(config)
    _settle_heap()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, process.stop)
    try:
        await process.run(on_ready)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)

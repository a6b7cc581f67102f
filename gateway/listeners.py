"""Listening sockets, served by uvicorn, with certificates that can be renewed while connections are open.

Invariant: the listening socket is never closed and opened anew, so no client meets a closed port while certificates
change; connections that are open keep the certificate that they began with.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from typing import TYPE_CHECKING, Final

import uvicorn

from backends.tls import no_password
from vocabulary.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Generator

    from starlette.types import ASGIApp

    from gateway.config import Listen
    from gateway.config.access import Tls

_BACKLOG: Final = 2048
_SHUTDOWN_POLL_S: Final = 0.01


def bind(host: str, port: int, knob: str) -> socket.socket:
    """Raises ConfigError that names the knob."""
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigError(f"{knob}: cannot listen on {host}:{port} ({error.strerror})") from error
    return listener


def url_of(listener: socket.socket, tls: Tls | None) -> str:
    host, port = listener.getsockname()[:2]
    scheme = "http" if tls is None else "https"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def server_context(tls: Tls, knob: str) -> ssl.SSLContext:
    """Raises ConfigError that names the knob where the files do not fit together."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(tls.cert_file, tls.key_file, password=no_password)
        if tls.client_ca_file is not None:
            context.load_verify_locations(tls.client_ca_file)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ValueError) as error:
        raise ConfigError(f"{knob}: the certificate files cannot be used ({type(error).__name__})") from error
    return context


class Server(uvicorn.Server):
    """One listener. Signals are the process's business, not one listener's."""

    def __init__(
        self,
        app: ASGIApp,
        listener: socket.socket,
        listen: Listen,
        http: type[asyncio.Protocol],
        context: ssl.SSLContext | None,
    ) -> None:
        super().__init__(
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
                timeout_keep_alive=int(max(1, listen.keep_alive_s)),
                timeout_graceful_shutdown=int(max(1, listen.grace_s)),
            )
        )
        self.listening = asyncio.Event()
        self._exiting = asyncio.Event()
        self.servers: list[asyncio.Server] = []
        self.listener = listener
        self._context = context
        self._handshake_timeout_s = listen.header_timeout_s

    async def run_until_exit(self) -> None:
        await self.serve(sockets=[self.listener])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """uvicorn's, but for how it listens."""
        await self.lifespan.startup()
        self.servers = [await self._serve_on(self._context)]
        self.started = True
        self.listening.set()

    def exit(self) -> None:
        """Listen no more; `run_until_exit` returns when the last request has been answered, or after the grace."""
        self.should_exit = True
        self._exiting.set()

    async def main_loop(self) -> None:
        """uvicorn's tick, which dates responses, but woken at once to exit instead of looking ten times a second."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._exiting.wait(), 1.0)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """uvicorn's, without its waits of a tenth of a second each."""
        for server in self.servers:
            server.close()
        self.listener.close()
        state = self.server_state
        for connection in list(state.connections):
            connection.shutdown()
        try:
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                while state.connections or state.tasks:  # noqa: ASYNC110 - sets of uvicorn, which tell nobody
                    await asyncio.sleep(_SHUTDOWN_POLL_S)
        except TimeoutError:
            for task in list(state.tasks):
                task.cancel()

    async def renew(self, context: ssl.SSLContext) -> None:
        """New connections are shaken hands with by `context`."""
        self._context = context
        if not self.started or self.should_exit:
            return
        fresh = await self._serve_on(context)
        stale, self.servers = self.servers, [fresh]
        for server in stale:
            server.close()

    async def _serve_on(self, context: ssl.SSLContext | None) -> asyncio.Server:
        # a duplicate: closing one server must leave the socket open for the next
        return await asyncio.get_running_loop().create_server(
            self._protocol,
            sock=self.listener.dup(),
            ssl=context,
            backlog=_BACKLOG,
            ssl_handshake_timeout=self._handshake_timeout_s if context is not None else None,
        )

    def _protocol(self) -> asyncio.Protocol:
        return self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

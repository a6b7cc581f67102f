"""A process at its limit of open files, and handshakes that do not end: nobody else's problem, and over when it is."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import ssl
import time
from typing import TYPE_CHECKING

import trustme

from tests.support.gateway import chat, running_gateway
from tests.support.scrape import counted
from tests.support.upstream import ScriptedUpstream, Served, answer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextlib.contextmanager
def no_open_file_left() -> Iterator[None]:
    """Nothing in this process, the gateway included, can open a file or a socket."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    filler = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(int(name) for name in os.listdir("/proc/self/fd")) + 1, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                filler.append(os.dup(0))
        yield
    finally:
        for number in filler:
            os.close(number)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_o63_no_file_to_reach_a_backend_is_not_the_backends_fault() -> None:
    """Two backends: neither is blamed, and the second is not asked either, which would fail for the same reason."""

    async def closing(served: Served) -> None:
        await served.respond({}, headers=b"connection: close\r\n")
        served.writer.close()

    async with (
        ScriptedUpstream(closing) as one,
        ScriptedUpstream(closing) as other,
        running_gateway([one.url, other.url], health={"eject_after_failures": 1, "fail_threshold": 1}) as gw,
        gw.client() as client,
    ):
        await (await client.ask(chat())).read()
        await gw.until(lambda _: one.connections + other.connections == 2)  # those of the probes
        with no_open_file_left():
            for _ in range(5):
                response = await client.ask(chat())
                assert response.status == 503
                assert response.header("retry-after") == "1"
                assert (await response.error())["code"] == "out_of_file_descriptors"
            await asyncio.sleep(0.5)  # probes fail the same way
            assert all(backend.health.state.value == "up" for backend in gw.gateway.registry)
        assert counted(gw.gateway, "warmroute_upstream_errors_total", kind="local") == 5
        assert counted(gw.gateway, "warmroute_retries_total") == 0
        assert (await client.ask(chat())).status == 200
        gw.assert_at_rest()


async def test_no_file_for_a_new_connection_closes_that_one_only() -> None:
    """No busy loop, streams go on, and connections are taken again once there is room."""
    release = asyncio.Event()

    async def script(served: Served) -> None:
        if served.number == 1:
            await release.wait()
        await answer(served)

    async with ScriptedUpstream(script) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        await (await client.ask(chat())).read()
        await client.send(chat(stream=True))
        await upstream.until(lambda u: len(u.requests) == 2)
        late = [socket.socket() for _ in range(8)]
        for one in late:
            one.setblocking(False)
        loop = asyncio.get_running_loop()
        with no_open_file_left():
            for one in late:
                await loop.sock_connect(one, (gw.host, gw.port))
            for one in late:
                with contextlib.suppress(ConnectionError):
                    assert await asyncio.wait_for(loop.sock_recv(one, 100), 5) == b""
            begun_s = time.process_time()
            await asyncio.sleep(0.5)
            assert time.process_time() - begun_s < 0.4, "it does not spin"
            release.set()
            response = await client.receive()
            await response.read()
            assert response.complete
        for one in late:
            one.close()
        async with gw.client() as again:
            assert (await again.ask(chat())).status == 200


async def test_connections_are_bounded_by_the_files_that_there_are() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    try:
        async with (
            ScriptedUpstream() as upstream,
            running_gateway([upstream.url], limits={"max_idle_connections": 10}) as gw,
        ):
            most = gw.gateway.connections.limits.max_connections
            assert 100 < most < 256
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# TLS.


async def test_handshakes_that_do_not_end_and_connections_too_many_under_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(tmp_path / "both.pem")
    trusted = ssl.create_default_context()
    authority.configure_trust(trusted)
    tls = {"cert_file": str(tmp_path / "both.pem"), "key_file": str(tmp_path / "both.pem")}
    async with (
        ScriptedUpstream() as upstream,
        running_gateway([upstream.url], listen={"tls": tls, "max_connections": 1, "header_timeout_s": 0.4}) as gw,
    ):
        silent_reader, silent = await asyncio.open_connection(gw.host, gw.port)
        half_reader, half = await asyncio.open_connection(gw.host, gw.port)
        half.write(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
        reader, writer = await asyncio.open_connection(gw.host, gw.port, ssl=trusted, server_hostname="localhost")
        other_reader, other = await asyncio.open_connection(gw.host, gw.port, ssl=trusted, server_hostname="localhost")
        async with asyncio.timeout(10):
            assert (await other_reader.read()).startswith(b"HTTP/1.1 503 ")
            for ended in (silent_reader, half_reader):
                with contextlib.suppress(ConnectionError):
                    assert await ended.read() == b""
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b"", "a handshake, but no request"
        for one in (silent, half, writer, other):
            one.close()
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                await one.wait_closed()
        assert counted(gw.gateway, "warmroute_connections_closed_total", reason="too_many_connections") == 1
        assert counted(gw.gateway, "warmroute_connections_closed_total", reason="header_timeout") == 1
        await gw.until(lambda g: not g.connections)

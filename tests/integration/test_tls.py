"""https to clients and to backends: certificates, their renewal, and proof of identity on both sides."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
import trustme

from tests.support.gateway import RawClient, RunningGateway, chat, running_gateway
from tests.support.upstream import ScriptedUpstream, Served, token
from vocabulary.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


class Files:
    """A CA, and a certificate of it in files that can be written anew."""

    def __init__(self, folder: Path, name: str) -> None:
        self.ca = trustme.CA()
        self.cert_file, self.key_file, self.ca_file = (folder / f"{name}.{end}" for end in ("pem", "key", "ca.pem"))
        self.ca.cert_pem.write_to_path(self.ca_file)
        self.issue()

    def issue(self) -> None:
        issued = self.ca.issue_cert("127.0.0.1", "localhost")
        issued.private_key_pem.write_to_path(self.key_file)
        issued.cert_chain_pems[0].write_to_path(self.cert_file)

    @property
    def section(self) -> dict[str, str]:
        return {"cert_file": str(self.cert_file), "key_file": str(self.key_file)}

    def client(self, shows: Files | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.ca_file))
        if shows is not None:
            context.load_cert_chain(shows.cert_file, shows.key_file)
        return context


@contextlib.asynccontextmanager
async def secure(url: str, context: ssl.SSLContext) -> AsyncIterator[tuple[RawClient, str]]:
    """A client and the serial number of the certificate that it was shown."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port, ssl=context, limit=1 << 26)
    shown: Any = writer.get_extra_info("peercert")
    client = RawClient(reader, writer)
    try:
        yield client, str(shown["serialNumber"])
    finally:
        await client.close()


async def serial(gateway: RunningGateway, context: ssl.SSLContext, url: str = "") -> str:
    async with secure(url or gateway.url, context) as (client, shown):
        response = await client.ask(b"", path="/livez", method="GET", headers={"host": "localhost"})
        assert response.status == 200
        return shown


async def test_https_on_both_listeners_and_new_certificates_without_a_cut_stream(tmp_path: Path) -> None:
    files, release = Files(tmp_path, "server"), asyncio.Event()

    async def script(served: Served) -> None:
        await served.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n" + token())
        await release.wait()
        await served.write(token("b"))
        served.writer.close()

    async with (
        ScriptedUpstream(script) as upstream,
        running_gateway([upstream.url], listen={"tls": files.section}, admin={"tls": files.section}) as gateway,
    ):
        assert gateway.url.startswith("https://")
        assert gateway.admin_url.startswith("https://")
        trusted = files.client()
        async with secure(gateway.url, trusted) as (client, before):
            response = await client.ask(chat(stream=True))
            assert response.status == 200
            files.issue()
            assert (await gateway.reload()).applied
            after = await serial(gateway, trusted)
            assert after != before
            assert await serial(gateway, trusted, gateway.admin_url) == after
            release.set()
            assert await response.read() == token() + token("b"), "the stream went on over it"
            assert (await client.ask(b"", path="/livez", method="GET")).status == 200, "and so does its connection"


async def test_certificates_that_do_not_fit_are_refused_and_the_old_ones_stay(tmp_path: Path) -> None:
    files, other = Files(tmp_path, "server"), Files(tmp_path, "other")
    async with (
        ScriptedUpstream() as upstream,
        running_gateway([upstream.url], listen={"tls": files.section}) as gateway,
    ):
        before = await serial(gateway, files.client())
        key = files.key_file.read_bytes()
        files.key_file.write_bytes(other.key_file.read_bytes())
        outcome = await gateway.reload()
        assert not outcome.applied
        assert "listen.tls" in outcome.problems[0]
        assert await serial(gateway, files.client()) == before
        files.key_file.write_bytes(key)
        assert (await gateway.reload()).applied


async def test_clients_must_prove_who_they_are(tmp_path: Path) -> None:
    server, clients, strangers = (Files(tmp_path, name) for name in ("server", "clients", "strangers"))
    tls = {**server.section, "client_ca_file": str(clients.ca_file)}
    async with ScriptedUpstream() as upstream, running_gateway([upstream.url], listen={"tls": tls}) as gateway:
        assert await serial(gateway, server.client(shows=clients))
        for shown in (None, strangers):
            with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
                await serial(gateway, server.client(shows=shown))
        await gateway.reload(listen={"tls": {**server.section, "client_ca_file": str(strangers.ca_file)}})
        assert await serial(gateway, server.client(shows=strangers)), "another CA is taken in as well"
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            await serial(gateway, server.client(shows=clients))


async def test_a_gateway_with_broken_certificates_does_not_start(tmp_path: Path) -> None:
    files, other = Files(tmp_path, "server"), Files(tmp_path, "other")
    tls = {"cert_file": str(files.cert_file), "key_file": str(other.key_file)}
    with pytest.raises(ConfigError, match=r"listen\.tls"):
        async with running_gateway(["http://127.0.0.1:1"], listen={"tls": tls}):
            pass


async def test_the_gateway_proves_itself_to_backends_and_renews_that_too(tmp_path: Path) -> None:
    server, own, strangers = (Files(tmp_path, name) for name in ("server", "own", "strangers"))
    shown: list[str] = []

    async def script(served: Served) -> None:
        certificate: Any = served.writer.get_extra_info("peercert")
        shown.append(str(certificate["serialNumber"]))
        await served.respond({})

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(own.ca_file))
    context.load_cert_chain(server.cert_file, server.key_file)
    context.verify_mode = ssl.CERT_REQUIRED
    async with ScriptedUpstream(script, tls=context) as upstream:
        entry = {"name": "a", "url": upstream.url, "ca_file": str(server.ca_file), **own.section}
        async with running_gateway([entry]) as gateway:
            async with gateway.client() as client:
                assert (await client.ask(chat())).status == 200
            instance = next(iter(gateway.gateway.registry)).instance
            own.issue()
            assert (await gateway.reload()).applied
            await gateway.until(lambda g: g.ready)
            async with gateway.client() as client:
                assert (await client.ask(chat())).status == 200
            assert len(set(shown)) == 2
            assert next(iter(gateway.gateway.registry)).instance is instance, "the same engine, with its cache"
            own_section = {"cert_file": str(strangers.cert_file), "key_file": str(strangers.key_file)}
            assert (await gateway.reload([{**entry, **own_section}])).applied
            async with gateway.client() as client:
                assert (await client.ask(chat())).status in (502, 503)

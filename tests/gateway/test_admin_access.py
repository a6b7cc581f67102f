"""Who may use the admin port when it has a token or other names, and what the metrics address serves."""

from __future__ import annotations

import asyncio

import pytest

from gateway.config import ConfigErrors, loads
from tests.support.gateway import RunningGateway, chat, running_gateway
from tests.support.process import client_of, command
from tests.support.upstream import ScriptedUpstream

TOKEN = "an-admin-token-of-some-length"
PATHS = (
    ("GET", "/admin/v1/status"),
    ("GET", "/metrics"),
    ("POST", "/admin/v1/explain"),
    ("POST", "/admin/v1/reload"),
    ("POST", "/admin/v1/flush"),
    ("POST", "/admin/v1/backends/a/drain"),
    ("GET", "/no/such/path"),
)


async def status_of(gateway: RunningGateway, method: str, path: str, **headers: str) -> int:
    async with client_of(gateway.admin_url) as client:
        body = chat() if method == "POST" else b""
        sent = {"host": "localhost", **headers}
        return (await client.ask(body, path=path, method=method, headers=sent)).status


async def test_o74_nothing_is_told_or_done_without_the_token() -> None:
    async with ScriptedUpstream() as upstream, running_gateway([upstream.url], admin={"token": TOKEN}) as gateway:
        for method, path in PATHS:
            assert await status_of(gateway, method, path) == 401
            for wrong in (
                TOKEN,
                f"Basic {TOKEN}",
                f"Bearer {TOKEN}x",
                f"Bearer {TOKEN[:-1]}",
                "Bearer ",
                f"bearer {TOKEN}",
            ):
                assert await status_of(gateway, method, path, authorization=wrong) == 401, (path, wrong)
            allowed = await status_of(gateway, method, path, authorization=f"Bearer {TOKEN}")
            assert allowed == (404 if path == "/no/such/path" else 200), path
        assert await status_of(gateway, "GET", "/livez") == 200, "probes carry no token"
        assert await status_of(gateway, "GET", "/readyz") == 503, "its one backend has been drained above"


async def test_a_token_that_is_replaced() -> None:
    async with ScriptedUpstream() as upstream, running_gateway([upstream.url], admin={"token": TOKEN}) as gateway:
        assert (await gateway.reload(admin={"token": "another-token-entirely"})).applied
        assert await status_of(gateway, "GET", "/metrics", authorization=f"Bearer {TOKEN}") == 401
        assert await status_of(gateway, "GET", "/metrics", authorization="Bearer another-token-entirely") == 200


async def test_further_names_are_those_of_the_config() -> None:
    admin = {"token": TOKEN, "hosts": ["gateway.internal"]}
    async with ScriptedUpstream() as upstream, running_gateway([upstream.url], admin=admin) as gateway:
        bearer = f"Bearer {TOKEN}"
        assert await status_of(gateway, "GET", "/metrics", authorization=bearer, host="gateway.internal:8001") == 200
        for host in ("gateway.internal.example.com", "internal", "x.gateway.internal"):
            assert await status_of(gateway, "GET", "/metrics", authorization=bearer, host=host) == 421


def test_off_loopback_needs_a_token() -> None:
    backends = "backends: [{name: a, url: http://127.0.0.1:1}]\n"
    with pytest.raises(ConfigErrors) as caught:
        loads(backends + "admin:\n  host: 0.0.0.0\n")
    (problem,) = caught.value.problems
    assert (problem.line, problem.column, problem.path) == (3, 9, "admin.host")
    assert "token" in problem.message + problem.hint
    assert loads(backends + "admin:\n  host: 0.0.0.0\n  token: ${T}\n", environ={"T": TOKEN}).admin.credential


async def test_the_metrics_address_serves_metrics_and_nothing_else() -> None:
    admin = {"token": TOKEN, "metrics_bind": "127.0.0.1:0"}
    async with ScriptedUpstream() as upstream, running_gateway([upstream.url], admin=admin) as gateway:
        metrics_url = gateway.process.addresses.metrics
        assert metrics_url is not None
        async with client_of(metrics_url) as client:
            for path, status in (("/metrics", 200), ("/admin/v1/status", 404), ("/livez", 404), ("/", 404)):
                response = await client.ask(b"", path=path, method="GET", headers={"host": "any.name"})
                assert response.status == status, path
                data = await response.read()
                assert (b"warmroute_backend_up" in data) is (path == "/metrics")
            assert (await client.ask(b"{}", path="/metrics", method="POST")).status == 405


async def test_the_command_line_shows_the_token_and_tells_when_it_is_wrong() -> None:
    async with ScriptedUpstream() as upstream, running_gateway([upstream.url], admin={"token": TOKEN}) as gateway:
        for given, code in ((TOKEN, 0), ("wrong-token-of-some-length", 1)):
            env = {"WARMROUTE_ADMIN_TOKEN": given}
            async with command("reload", "--admin", gateway.admin_url, env=env) as process:
                assert await process.ended() == code
                told = "\n".join(process.out + process.lines)
            assert ("applied" in told) if code == 0 else ("admin token" in told)
            assert given not in told


async def test_a_reload_from_the_command_line_shows_every_problem() -> None:
    async with ScriptedUpstream() as upstream, running_gateway([upstream.url]) as gateway:
        outcome = asyncio.create_task(gateway.reload(limits={"max_attempts": 0, "connect_timeout_s": -1}))
        assert not (await outcome).applied
        async with command("reload", "--admin", gateway.admin_url) as process:
            assert await process.ended() == 2
            assert len([line for line in process.lines if "limits." in line]) == 2


async def test_a_gateway_whose_clients_fill_it_can_still_be_asked() -> None:
    async with (
        ScriptedUpstream() as upstream,
        running_gateway([upstream.url], listen={"max_connections": 1}) as gateway,
        gateway.client() as first,
    ):
        assert (await first.ask(chat())).status == 200
        async with gateway.client() as second:
            assert (await second.receive()).status == 503
        assert await status_of(gateway, "GET", "/admin/v1/status") == 200


async def test_slow_and_oversized_callers_are_cut_off_here_too() -> None:
    listen = {"header_timeout_s": 0.2, "max_header_kb": 1}
    admin = {"metrics_bind": "127.0.0.1:0"}
    async with ScriptedUpstream() as upstream, running_gateway([upstream.url], listen=listen, admin=admin) as gateway:
        metrics_url = gateway.process.addresses.metrics
        assert metrics_url is not None
        for url in (gateway.admin_url, metrics_url):
            async with client_of(url) as client:
                client.writer.write(b"GET /metrics HTTP/1.1\r\nhost: local")
                assert (await client.receive()).status == 408
            async with client_of(url) as client:
                response = await client.ask(
                    b"", path="/metrics", method="GET", headers={"host": "localhost", "x": "y" * 2000}
                )
                assert response.status == 431


async def test_the_admin_port_is_no_way_to_the_backends() -> None:
    async with ScriptedUpstream() as upstream, running_gateway([upstream.url]) as gateway:
        for path in ("/v1/chat/completions", "/v1/messages", "/v1/models"):
            assert await status_of(gateway, "POST", path) == 404
        assert not upstream.requests

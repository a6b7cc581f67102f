"""The admin port: who may ask, and what is answered."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.gateway import RawClient, RunningGateway, chat, running_gateway
from tests.support.process import client_of
from tests.support.upstream import ScriptedUpstream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

STATUS, EXPLAIN = "/admin/v1/status", "/admin/v1/explain"
LOCAL = {"host": "localhost"}


@contextlib.asynccontextmanager
async def admin(**sections: Any) -> AsyncIterator[tuple[RunningGateway, RawClient, ScriptedUpstream]]:
    async with (
        ScriptedUpstream() as upstream,
        running_gateway([upstream.url], **sections) as gw,
        client_of(gw.admin_url) as client,
    ):
        yield gw, client, upstream


async def test_only_loopback_names_are_answered() -> None:
    async with admin() as (gw, client, _):
        port = gw.admin_url.rsplit(":", 1)[1]
        for host in (
            "localhost",
            "LOCALHOST",
            "127.0.0.1",
            f"127.0.0.1:{port}",
            f"localhost:{port}",
            "[::1]",
            "[::1]:1",
        ):
            for path in (STATUS, "/metrics", "/livez"):
                response = await client.ask(b"", path=path, method="GET", headers={"host": host})
                assert response.status == 200, host
                await response.read()
        for host in (
            "example.com",
            "localhost.example.com",
            "127.0.0.1.example.com",
            "127.0.0.2",
            "",
            "[::1",
            "user@example.com",
            "example.com@localhost.x",
            "0x7f.1",
        ):
            for path in (STATUS, "/metrics", "/none"):
                response = await client.ask(b"", path=path, method="GET", headers={"host": host})
                assert response.status == 421, host
                assert (await response.error())["code"] == "wrong_host"


async def test_other_origins_are_refused() -> None:
    async with admin() as (gw, client, _):
        own = gw.admin_url.removeprefix("http://")
        for origin in (
            "http://example.com",
            "null",
            "",
            "http://localhost:1",
            f"http://{own}.example.com",
            "http://[",
            "http://[::1",
            "//",
            "\xff",
        ):
            for method, path in (("GET", STATUS), ("POST", EXPLAIN)):
                headers = {"host": own, "origin": origin}
                response = await client.ask(
                    chat() if method == "POST" else b"", path=path, method=method, headers=headers
                )
                assert response.status == 403, origin
                assert (await response.error())["code"] == "wrong_origin"
        response = await client.ask(b"", path=STATUS, method="GET", headers={"host": own, "origin": gw.admin_url})
        assert response.status == 200


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
async def test_a_post_that_a_plain_form_could_send_is_refused(content_type: str) -> None:
    async with admin() as (_, client, _upstream):
        headers = {**LOCAL, "content-type": content_type}
        response = await client.ask(chat(), path=EXPLAIN, headers=headers)
        assert response.status == 415
        assert (await response.error())["code"] == "unsupported_content_type"
        wire = b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}" % EXPLAIN.encode()
        client.writer.write(wire)
        response = await client.receive()
        assert response.status == 415, "an absent one too"


async def test_errors_of_explain_are_those_of_the_request() -> None:
    async with admin(listen={"max_body_mb": 0.01}) as (gw, client, upstream):
        cases: list[tuple[Any, str, int, str]] = [
            (b"{", EXPLAIN, 400, "invalid_json"),
            (b"[]", EXPLAIN, 400, "invalid_body"),
            (chat(model="none"), EXPLAIN, 404, "model_not_found"),
            ({**chat(), "model": 5}, EXPLAIN, 400, "invalid_body"),
            (chat("x" * 20_000), EXPLAIN, 413, "body_too_large"),
            (chat(), EXPLAIN + "?path=/v1/none", 400, "bad_path"),
        ]
        for body, path, status, code in cases:
            response = await client.ask(body, path=path, headers=LOCAL)
            assert response.status == status
            assert (await response.error())["code"] == code
        response = await client.ask(
            {"model": "m", "prompt": "x"}, path=EXPLAIN + "?path=/v1/completions", headers=LOCAL
        )
        assert response.status == 200
        assert not upstream.requests, "nothing is sent"
        gw.assert_at_rest()


async def test_a_large_prompt_is_explained_too() -> None:
    async with admin() as (gw, client, _):
        response = await client.ask(chat("x" * 1_000_000), path=EXPLAIN, headers=LOCAL)
        assert response.status == 200
        assert (await response.json())["matched"] is True
        gw.assert_at_rest()


async def test_other_methods_and_paths_are_json_errors() -> None:
    async with admin() as (_, client, _upstream):
        for method, path, status in (
            ("POST", STATUS, 405),
            ("GET", EXPLAIN, 405),
            ("DELETE", "/metrics", 405),
            ("GET", "/admin/v1/none", 404),
            ("POST", "/v1/chat/completions", 404),
        ):
            response = await client.ask(b"{}", path=path, method=method, headers=LOCAL)
            assert response.status == status, path
            assert response.header("content-type") == "application/json"
            if status == 405:
                assert response.header("allow")
            assert (await response.error())["code"] == ("not_found" if status == 404 else "method_not_allowed")


async def test_metrics_are_valid_and_count() -> None:
    async with admin() as (gw, client, _):
        async with gw.client() as user:
            for stream in (False, True):
                await (await user.ask(chat(stream=stream))).read()
        response = await client.ask(b"", path="/metrics", method="GET", headers=LOCAL)
        assert response.header("content-type") == "text/plain; version=0.0.4; charset=utf-8"
        families = {f.name: f for f in text_string_to_metric_families((await response.read()).decode())}
        samples = {(s.name, *sorted(s.labels.items())): s.value for f in families.values() for s in f.samples}
        labels = {"route": "default", "model": "m", "backend": "a", "class": "interactive", "status": "200"}
        assert samples[("warmroute_requests_total", *sorted(labels.items()))] == 2
        assert samples[("warmroute_backend_up", ("backend", "a"))] == 1
        assert samples[("warmroute_inflight", ("backend", "a"))] == 0
        assert samples[("warmroute_index_trust", ("backend", "a"), ("state", "estimated"))] == 1
        assert samples[("warmroute_ttft_seconds_count", ("backend", "a"), ("model", "m"))] == 1


async def test_readiness_is_told_on_both_ports() -> None:
    async with admin() as (gw, client, upstream):
        async with gw.client() as traffic:
            for one in (client, traffic):
                assert (await (await one.ask(b"", path="/readyz", method="GET", headers=LOCAL)).json()) == {
                    "status": "ready"
                }
            gw.gateway.draining = True
            for one in (client, traffic):
                response = await one.ask(b"", path="/readyz", method="GET", headers=LOCAL)
                assert response.status == 503
                assert (await response.json()) == {"status": "not ready", "reason": "draining"}
            gw.gateway.draining = False
        await upstream.shut()
        await gw.until(lambda g: not g.ready)
        response = await client.ask(b"", path="/readyz", method="GET", headers=LOCAL)
        assert (response.status, response.header("retry-after")) == (503, "1")
        assert (await response.json())["reason"] == "no backend can be reached"
        assert (await client.ask(b"", path="/livez", method="GET", headers=LOCAL)).status == 200

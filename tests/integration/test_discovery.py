"""A gateway whose fleet is found: by file, by DNS and in Kubernetes, on real sockets."""

from __future__ import annotations

import asyncio
import json
import ssl
from functools import partial
from typing import TYPE_CHECKING, Any

import trustme

from backends.discovery.dns import DnsSource
from gateway.config import default_config
from gateway.plan import apply, next_plan
from gateway.status import status
from tests.support.api_server import ApiServer, endpoint_slice, pod
from tests.support.gateway import FAST, RunningGateway, chat, running_gateway
from tests.support.name_server import NameServer
from tests.support.upstream import SSE_HEAD, ScriptedUpstream, Served, chunk, token

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def names(gw: RunningGateway) -> list[str]:
    return sorted(backend.name for backend in gw.gateway.registry)


def file_section(path: Path, name: str = "pool", **fields: Any) -> dict[str, Any]:
    return {"name": name, "kind": "file", "path": str(path), "refresh_s": 0.05, **fields}


def write(path: Path, **upstreams: ScriptedUpstream) -> None:
    path.write_text(json.dumps([{"name": name, "url": upstream.url} for name, upstream in upstreams.items()]))


async def ask(gw: RunningGateway) -> str:
    async with gw.client() as client:
        response = await client.ask(chat())
        await response.read()
        assert response.status == 200
        return str(response.header("x-warmroute-backend"))


class HeldStream:
    """The script of an upstream: one token, then nothing until released."""

    def __init__(self) -> None:
        self.release = asyncio.Event()

    async def __call__(self, served: Served) -> None:
        if not served.json.get("stream"):
            await served.respond({"object": "chat.completion", "choices": []})
            return
        await served.write(SSE_HEAD)
        await served.write(chunk(token("a")))
        await self.release.wait()
        await served.write(chunk(token("b")) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")


async def test_a_fleet_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "backends.yaml"
    held = HeldStream()
    async with ScriptedUpstream(held) as a, ScriptedUpstream() as b:
        write(path, a=a)
        async with running_gateway([], discovery=[file_section(path)]) as gw, gw.client() as client:
            assert gw.gateway.ready, "the first answers are there when it is"
            await client.send(chat("x" * 500, stream=True))
            response = await client.receive()
            assert response.header("x-warmroute-backend") == "pool-a"
            write(path, b=b)
            await gw.until(lambda g: len(g.registry) == 2 and g.ready)
            assert await ask(gw) == "pool-b"
            path.write_text("- {name: b, url: ")
            await gw.until(lambda g: status(g)["discovery"][0]["last_error"] == "InvalidList")
            assert await ask(gw) == "pool-b"
            held.release.set()
            assert (await response.read()).endswith(b"data: [DONE]\n\n")
            assert response.complete, "what ran has finished"
            await gw.until(lambda g: len(g.registry) == 1)
            metrics = gw.gateway.metrics.render().decode()
            assert 'warmroute_discovery_backends{source="pool"} 1.0' in metrics
            assert 'backend="pool-a"' not in metrics, "O38"
            (shown,) = status(gw.gateway)["discovery"]
            assert (shown["kind"], shown["found"], list(shown["backends"])) == ("file", 1, ["pool-b"])
            assert list(shown) == [
                "name",
                "kind",
                "found",
                "ready",
                "refused",
                "overflow",
                "answer_age_s",
                "last_error",
                "detail",
                "errors_total",
                "backends",
            ], "a change that operators will notice"
            assert shown["detail"] == "backends.yaml:1: not valid YAML or JSON"
            gw.assert_at_rest()


async def test_a_fleet_from_dns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("vllm.test").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    async with NameServer() as server, ScriptedUpstream(tls=context) as upstream:
        monkeypatch.setattr("gateway.source_plan.DnsSource", partial(DnsSource, make_resolver=server.resolver))
        server.set("vllm.test", "A", "127.0.0.1", ttl_s=0)
        section = {
            "name": "pool",
            "kind": "dns",
            "host": "vllm.test",
            "port": upstream.port,
            "scheme": "https",
            "ca_file": str(tmp_path / "ca.pem"),
        }
        async with running_gateway([], discovery=[section]) as gw:
            assert gw.gateway.ready, "probed by its address, with a certificate for its name"
            name = await ask(gw)
            assert name.startswith("pool-")
            assert "127" not in name
            assert upstream.requests[0].header("host") == f"vllm.test:{upstream.port}"
            server.silent = True
            await gw.until(lambda g: status(g)["discovery"][0]["errors_total"] >= 1)
            assert await ask(gw) == name, "a name server that is away takes nobody away"
            assert "warmroute_discovery_errors_total" in gw.gateway.metrics.render().decode()


async def test_a_rolling_update_in_kubernetes(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    held = HeldStream()
    async with ApiServer() as server, ScriptedUpstream(held) as old, ScriptedUpstream() as new:
        context = {"cluster": "c", "user": "u", "namespace": "inference"}
        config = {
            "clusters": [{"name": "c", "cluster": {"server": server.url}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "x", "context": context}],
            "current-context": "x",
        }
        kubeconfig.write_text(json.dumps(config))
        section = {
            "name": "k8s",
            "kind": "kubernetes",
            "service": "vllm",
            "kubeconfig": str(kubeconfig),
            "port": "http",
        }
        server.put(endpoint_slice("s-1", pod("old-0", "127.0.0.1"), ports={"http": old.port}))
        async with running_gateway([], discovery=[section]) as gw, gw.client() as client:
            await client.send(chat("x" * 500, stream=True))
            response = await client.receive()
            assert response.header("x-warmroute-backend") == "k8s-old-0"
            await server.until(lambda s: s.watchers == 1)
            server.put(endpoint_slice("s-2", pod("new-0", "127.0.0.1", ready=False), ports={"http": new.port}))
            server.put(endpoint_slice("s-2", pod("new-0", "127.0.0.1", ready=True), ports={"http": new.port}))
            await gw.until(lambda g: sum(b.health.reachable for b in g.registry) == 2)
            leaves = pod("old-0", "127.0.0.1", ready=False, serving=True, terminating=True)
            server.put(endpoint_slice("s-1", leaves, ports={"http": old.port}))
            await gw.until(lambda g: any(backend.draining for backend in g.registry))
            assert {await ask(gw) for _ in range(5)} == {"k8s-new-0"}
            server.delete("s-1")
            server.cut_watches()
            held.release.set()
            assert (await response.read()).endswith(b"data: [DONE]\n\n")
            await gw.until(lambda g: len(g.registry) == 1)
            assert names(gw) == ["k8s-new-0"]
            assert len(old.requests) == 1
            gw.assert_at_rest()


async def test_o60_a_source_that_is_away_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "backends.yaml"
    async with (
        ScriptedUpstream() as static,
        ScriptedUpstream() as late,
        running_gateway({"static": static.url}, discovery=[file_section(path)]) as gw,
    ):
        assert await ask(gw) == "static"
        (shown,) = status(gw.gateway)["discovery"]
        assert (shown["last_error"], shown["answer_age_s"]) == ("FileNotFoundError", None)
        write(path, late=late)
        await gw.until(lambda g: len(g.registry) == 2)
        assert names(gw) == ["pool-late", "static"]


async def test_a_reload_of_sources(tmp_path: Path) -> None:
    one, two = tmp_path / "one.yaml", tmp_path / "two.yaml"

    def config(*sections: dict[str, Any]) -> Any:
        return default_config(backends=[], discovery=list(sections), **FAST)

    async with ScriptedUpstream() as a, ScriptedUpstream() as b:
        write(one, a=a)
        write(two, b=b)
        sections = file_section(one, "one"), file_section(two, "two")
        async with running_gateway([], discovery=list(sections)) as gw:
            assert names(gw) == ["one-a", "two-b"]
            kept = {backend.name: backend.instance for backend in gw.gateway.registry}
            asked = asyncio.all_tasks()
            for _ in range(3):
                apply(gw.gateway, await next_plan(gw.gateway, config(*sections)))
            assert {task for task in asyncio.all_tasks() if "discovery" in task.get_name()} <= asked
            changed = file_section(one, "one", models=["m", "other"])
            apply(gw.gateway, await next_plan(gw.gateway, config(changed, sections[1])))
            assert names(gw) == ["one-a", "two-b"]
            await gw.until(lambda g: bool(g.registry.serving("other")))
            assert {backend.name: backend.instance for backend in gw.gateway.registry} == kept
            apply(gw.gateway, await next_plan(gw.gateway, config(changed)))
            await gw.until(lambda g: len(g.registry) == 1)
            assert await ask(gw) == "one-a"


async def test_stopped_while_a_source_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    async with NameServer() as server, ScriptedUpstream() as static:
        server.silent = True
        slow = server.resolver()
        slow.timeout = slow.lifetime = 60
        source = partial(DnsSource, make_resolver=lambda: slow)
        monkeypatch.setattr("gateway.source_plan.DnsSource", source)
        section = {"name": "pool", "kind": "dns", "host": "vllm.test", "port": 8000}
        monkeypatch.setattr("gateway.fleet_sources.FleetSources.first_answers", _not_waiting)
        async with running_gateway([static.url], discovery=[section]) as gw:
            await gw.until(lambda g: bool(server.questions))
            assert await ask(gw) == "a"


async def _not_waiting(sources: object, timeout_s: float) -> None:
    """As after the timeout."""
    await asyncio.sleep(0)

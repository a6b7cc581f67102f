"""The Kubernetes source against a scripted API server on real sockets, with the real client library."""

from __future__ import annotations

import importlib.util
import json
import random
import ssl
from typing import TYPE_CHECKING, Any

import pytest
import trustme

from backends.discovery.cluster import Cluster
from backends.discovery.kubernetes import SERVICE_LABEL, KubernetesSource
from tests.support.api_server import ApiServer, endpoint_slice, pod
from tests.support.discovery import Ticker, Watched, running
from vocabulary.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

SLICES = "/apis/discovery.k8s.io/v1/namespaces/inference/endpointslices"


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Path:
    return tmp_path / "kubeconfig.yaml"


def write_kubeconfig(path: Path, server: ApiServer, token: str = "first") -> None:
    config = {
        "clusters": [{"name": "c", "cluster": {"server": server.url}}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "inference"}}],
        "current-context": "x",
    }
    path.write_text(json.dumps(config))


def source(kubeconfig: Path, server: ApiServer, ticker: Ticker | None = None, **settings: Any) -> KubernetesSource:
    write_kubeconfig(kubeconfig, server)
    cluster = Cluster({}, kubeconfig=kubeconfig)
    sleep = (ticker or Ticker(free_below_s=60)).sleep
    return KubernetesSource(cluster, f"{SERVICE_LABEL}=vllm", None, "http", random.Random(1), sleep=sleep, **settings)


def states(watched: Watched) -> dict[str, str]:
    return {
        found.name: "takes" if found.takes_traffic else "leaves" if found.terminating else "not ready"
        for found in watched.last
    }


async def test_a_list_and_what_changes_after_it(kubeconfig: Path) -> None:
    async with ApiServer(token="first") as server:
        server.put(endpoint_slice("vllm-1", pod("a", "10.0.0.1"), pod("b", "10.0.0.2", ready=False)))
        async with running(source(kubeconfig, server)) as seen:
            await seen.until(lambda s: bool(s.reports))
            assert states(seen) == {"a": "takes", "b": "not ready"}
            await server.until(lambda s: s.watchers == 1)
            server.put(endpoint_slice("vllm-1", pod("a", "10.0.0.1", ready=True), pod("b", "10.0.0.2", ready=True)))
            await seen.until(lambda s: states(s) == {"a": "takes", "b": "takes"})
            server.put(endpoint_slice("vllm-2", pod("c", "10.0.0.3")))
            await seen.until(lambda s: len(s.last) == 3)
            leaves = pod("a", "10.0.0.1", ready=False, serving=True, terminating=True)
            server.put(endpoint_slice("vllm-1", leaves, pod("b", "10.0.0.2", ready=True)))
            await seen.until(lambda s: states(s) == {"a": "leaves", "b": "takes", "c": "takes"})
            server.delete("vllm-1")
            await seen.until(lambda s: states(s) == {"c": "takes"})
            assert not seen.errors
        first, watch = server.asked
        assert first.path == watch.path == SLICES
        assert first.query["labelSelector"] == watch.query["labelSelector"] == "kubernetes.io/service-name=vllm"
        assert first.authorization == "Bearer first"
        assert (watch.query["resourceVersion"], watch.query["allowWatchBookmarks"]) == ("101", "True")


async def test_long_lists_come_in_pages(kubeconfig: Path) -> None:
    async with ApiServer(page=2) as server:
        for i in range(5):
            server.put(endpoint_slice(f"vllm-{i}", pod(f"p{i}", f"10.0.0.{i}")))
        async with running(source(kubeconfig, server)) as seen:
            await seen.until(lambda s: bool(s.reports))
            assert len(seen.reports[0]) == 5, "no report of half a list"
            assert server.lists == 3


async def test_a_watch_that_ends_goes_on_where_it_was(kubeconfig: Path) -> None:
    async with ApiServer() as server:
        server.put(endpoint_slice("vllm-1", pod("a", "10.0.0.1")))
        async with running(source(kubeconfig, server)) as seen:
            await server.until(lambda s: s.watchers == 1)
            server.bookmark()
            server.end_watches()
            await server.until(lambda s: s.watchers == 1)
            assert server.asked[-1].query["resourceVersion"] == "102", "the bookmark's"
            server.put(endpoint_slice("vllm-1", pod("a", "10.0.0.1"), pod("b", "10.0.0.2")))
            await seen.until(lambda s: len(s.last) == 2)
            assert server.lists == 1
            assert not seen.errors


async def test_a_cut_stream_loses_nothing(kubeconfig: Path) -> None:
    async with ApiServer() as server:
        server.put(endpoint_slice("vllm-1", pod("a", "10.0.0.1")))
        ticker = Ticker()
        async with running(source(kubeconfig, server, ticker)) as seen:
            await server.until(lambda s: s.watchers == 1)
            server.cut_watches()
            await ticker.asleep()
            assert len(seen.errors) == 1
            server.put(endpoint_slice("vllm-2", pod("b", "10.0.0.2")))
            server.delete("vllm-1")
            assert len(seen.reports) == 1
            ticker.end()
            await seen.until(lambda s: states(s) == {"b": "takes"})
            assert server.lists == 1


@pytest.mark.parametrize("how", ["event", "status"])
async def test_an_expired_version_costs_a_new_list(kubeconfig: Path, how: str) -> None:
    async with ApiServer() as server:
        server.put(endpoint_slice("vllm-1", pod("a", "10.0.0.1")))
        ticker = Ticker()
        async with running(source(kubeconfig, server, ticker)) as seen:
            await server.until(lambda s: s.watchers == 1)
            server.cut_watches()
            await ticker.asleep()
            server.put(endpoint_slice("vllm-2", pod("b", "10.0.0.2")))
            server.delete("vllm-1")
            if how == "event":
                server.forget_history()
            else:
                server.statuses.append(410)
            await ticker.tick()
            assert len(seen.reports) == 1, "the fleet stays meanwhile"
            ticker.end()
            await seen.until(lambda s: states(s) == {"b": "takes"})
            assert server.lists == 2
            assert len(seen.errors) == 1, "the cut; an expired version is no failure"


async def test_a_token_that_was_rotated(kubeconfig: Path) -> None:
    async with ApiServer(token="first") as server:
        server.put(endpoint_slice("vllm-1", pod("a", "10.0.0.1")))
        ticker = Ticker()
        async with running(source(kubeconfig, server, ticker)) as seen:
            await server.until(lambda s: s.watchers == 1)
            server.token = "second"
            server.cut_watches()
            await ticker.tick()
            assert seen.kinds[-1] == "ApiError"
            assert "401" in str(seen.errors[-1])
            assert "first" not in str(seen.errors[-1])
            assert seen.hosts == ["10.0.0.1"]
            write_kubeconfig(kubeconfig, server, "second")
            server.put(endpoint_slice("vllm-1", pod("a", "10.0.0.1"), pod("b", "10.0.0.2")))
            ticker.end()
            await seen.until(lambda s: len(s.last) == 2)


async def test_an_api_server_that_is_away_empties_nothing(kubeconfig: Path) -> None:
    async with ApiServer() as server:
        server.put(endpoint_slice("vllm-1", pod("a", "10.0.0.1")))
        ticker = Ticker()
        async with running(source(kubeconfig, server, ticker)) as seen:
            await server.until(lambda s: s.watchers == 1)
            await server.shut()
            waits = [await ticker.asleep(), *[await ticker.tick() for _ in range(5)]]
            assert waits[0] <= 0.5 < waits[4] <= 30
            assert len(seen.errors) == 6
            assert len(seen.reports) == 1
            server.slices.clear()
            await server.listen()
            server.statuses += [503, 500]
            await ticker.tick()
            await ticker.tick()
            assert len(seen.reports) == 1


async def test_answers_that_are_no_slices(kubeconfig: Path) -> None:
    async with ApiServer() as server:
        server.put(endpoint_slice("vllm-1", pod("a", "10.0.0.1")))
        ticker = Ticker()
        async with running(source(kubeconfig, server, ticker)) as seen:
            for line in (b"{not json", b"[]", b'{"type": "ADDED"}', b'{"type": "MODIFIED", "object": {"metadata": 3}}'):
                await server.until(lambda s: s.watchers == 1)
                server.send(line)
                await ticker.asleep()
                server.cut_watches()
                await server.until(lambda s: s.watchers == 0)
                ticker.end()
            await server.until(lambda s: s.watchers == 1)
            assert len(seen.errors) == 4
            assert server.lists == 5
            assert all(report == seen.reports[0] for report in seen.reports)


async def test_as_a_pod_has_it(tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    (tmp_path / "token").write_text("pod-token\n")
    (tmp_path / "namespace").write_text("inference\n")
    authority.cert_pem.write_to_path(str(tmp_path / "ca.crt"))
    async with ApiServer(tls=context, token="pod-token") as server:
        server.put(endpoint_slice("vllm-1", pod("a", "10.0.0.1")))
        environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(server.port)}
        cluster = Cluster(environ, service_account=tmp_path)
        one = KubernetesSource(cluster, "app=vllm", None, "http", random.Random(1), sleep=Ticker().sleep)
        async with running(one) as seen:
            await seen.until(lambda s: bool(s.reports or s.errors))
            assert not seen.errors
            assert seen.hosts == ["10.0.0.1"]
            await server.until(lambda s: s.watchers == 1)
        assert server.asked[0].path == SLICES
        assert server.asked[0].query["labelSelector"] == "app=vllm"


async def test_outside_a_cluster(tmp_path: Path) -> None:
    ticker = Ticker()
    one = KubernetesSource(
        Cluster({}, service_account=tmp_path), "app=vllm", None, "http", random.Random(1), sleep=ticker.sleep
    )
    async with running(one) as seen:
        await ticker.asleep()
        assert seen.kinds == ["NoCredentials"]
        assert not seen.reports


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"warmroute\[kubernetes\]"):
        Cluster({})


async def test_refused_and_unusable_endpoints_are_told(kubeconfig: Path) -> None:
    async with ApiServer() as server:
        server.put(endpoint_slice("vllm-1", pod("a", "169.254.169.254"), pod("b", "10.0.0.2")))
        async with running(source(kubeconfig, server)) as seen:
            await server.until(lambda s: s.watchers == 1)
            assert states(seen) == {"b": "takes"}
            assert seen.kinds == ["AddressRefused"]
            assert "169" not in str(seen.errors[0])
            server.put(endpoint_slice("vllm-1", pod("b", "10.0.0.2"), ports={"http": 80, "metrics": 9090}))
            await seen.until(lambda s: len(s.errors) == 2)
            assert seen.kinds[-1] == "UnusableEndpoints"
            assert len(seen.reports) == 1, "which is no reason to send the last backend away"


async def test_cancelled_in_the_middle_of_an_answer(kubeconfig: Path) -> None:
    async with ApiServer() as server:
        server.put(endpoint_slice("vllm-1", pod("a", "10.0.0.1")))
        async with running(source(kubeconfig, server)):
            await server.until(lambda s: s.watchers == 1)
            server.send(b'{"type": "MODI')
        await server.until(lambda s: s.watchers == 0)

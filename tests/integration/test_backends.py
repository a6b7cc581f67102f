"""Health and lifecycle of backends, seen through a whole gateway on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import TYPE_CHECKING, Any

import pytest
import trustme

from backends.health import State
from tests.field.test_cancellation import metric
from tests.support.gateway import RunningGateway, chat, running_gateway
from tests.support.upstream import SSE_HEAD, ScriptedUpstream, Served, answer, chunk, token

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from backends.backend import Backend

NEVER = {"interval_s": 600, "metrics_interval_s": 600}
"""Probed once at the start and then no more: what the gateway believes is what its requests tell it."""


def backend(gw: RunningGateway, name: str = "a") -> Backend:
    return next(b for b in gw.gateway.registry if b.name == name)


async def ask(gw: RunningGateway, text: str = "hello", **fields: Any) -> int:
    async with gw.client() as client:
        response = await client.ask(chat(text, **fields))
        await response.read()
        return response.status


async def until_state(gw: RunningGateway, state: State, name: str = "a") -> None:
    await gw.until(lambda _: backend(gw, name).health.state is state)


async def ready(gw: RunningGateway) -> tuple[int, str]:
    async with gw.client() as client:
        response = await client.ask(b"", path="/readyz", method="GET")
        return response.status, (await response.json())["status"]


# Probes.


async def test_o60_a_backend_that_is_down_at_the_start_joins_by_itself() -> None:
    upstream = ScriptedUpstream()
    await upstream.listen()
    await upstream.shut()
    async with running_gateway([upstream.url]) as gw:
        assert await ready(gw) == (503, "not ready")
        async with gw.client() as client:
            response = await client.ask(chat())
            assert response.status == 503
            assert response.header("retry-after") == "1"
            assert (await response.error())["code"] == "no_backend_available"
        await upstream.listen()
        try:
            await until_state(gw, State.UP)
            assert await ready(gw) == (200, "ready")
            assert await ask(gw) == 200
        finally:
            await upstream.shut()


async def test_o59_no_traffic_before_health_and_model_list_are_there() -> None:
    async with ScriptedUpstream(health_status=503, models=()) as upstream, running_gateway([upstream.url]) as gw:
        assert backend(gw).health.state is State.DOWN
        assert await ask(gw) == 503
        upstream.models = ("m",)
        probes = upstream.probes
        await gw.until(lambda _: upstream.probes > probes + 1)
        assert backend(gw).health.state is State.DOWN, "it has models, but is not healthy"
        upstream.health_status = 200
        await until_state(gw, State.UP)
        assert await ask(gw) == 200
        assert len(upstream.requests) == 1


async def test_failed_probes_take_a_backend_out_and_a_passed_one_brings_it_back() -> None:
    async with (
        ScriptedUpstream() as a,
        ScriptedUpstream() as b,
        running_gateway([a.url, b.url], health={"interval_s": 0.05, "fail_threshold": 2}) as gw,
    ):
        instance = backend(gw).instance
        a.health_status = 500
        await until_state(gw, State.DOWN)
        assert await ready(gw) == (200, "ready"), "one is left"
        for _ in range(5):
            assert await ask(gw) == 200
        assert not a.requests
        a.health_status = 200
        await until_state(gw, State.UP)
        assert backend(gw).instance is instance, "its metrics say: the same process"
        assert backend(gw).last_error is None


async def test_o61_a_backend_that_answers_requests_is_alive_whatever_its_probes_say() -> None:
    async with (
        ScriptedUpstream() as upstream,
        running_gateway([upstream.url], health={"interval_s": 0.1, "fail_threshold": 1}) as gw,
    ):
        upstream.health_status = 500
        probes = upstream.probes
        while upstream.probes < probes + 4:
            assert await ask(gw) == 200
        assert backend(gw).health.state is State.UP
        await until_state(gw, State.DOWN)


# Restarts.


async def warm(gw: RunningGateway) -> None:
    async with gw.client() as client:
        response = await client.ask(chat("x" * 1000), headers={"x-session-id": "s"})
        await response.read()
        assert response.status == 200
    assert gw.gateway.index.stats().entries > 0
    assert gw.gateway.sessions.live_tokens(backend(gw).instance.id) > 0


def assert_cold(gw: RunningGateway) -> None:
    assert gw.gateway.index.stats().entries == 0
    for one in gw.gateway.registry:
        assert gw.gateway.sessions.live_tokens(one.instance.id) == 0


async def test_a_new_process_start_time_is_a_new_instance() -> None:
    async with ScriptedUpstream() as upstream, running_gateway([upstream.url]) as gw:
        old = backend(gw).instance
        await warm(gw)
        upstream.metrics = upstream.metrics.replace("seconds 1000", "seconds 2000")
        await gw.until(lambda _: backend(gw).instance is not old)
        assert old.retired
        assert_cold(gw)
        assert backend(gw).instance.id != old.id
        assert await ask(gw) == 200
        gw.assert_at_rest()


async def test_a_start_time_that_is_read_a_little_differently_is_no_restart() -> None:
    async with ScriptedUpstream() as upstream, running_gateway([upstream.url]) as gw:
        old = backend(gw).instance
        upstream.metrics = upstream.metrics.replace("seconds 1000", "seconds 1000.4")
        await gw.until(lambda _: (backend(gw).instance.engine_load or NO_LOAD).start_time_s == 1000.4)
        assert backend(gw).instance is old


class _NoLoad:
    start_time_s: float | None = None


NO_LOAD = _NoLoad()


@pytest.mark.parametrize("metrics", [True, False], ids=["with metrics", "without"])
async def test_killed_and_started_again_is_a_new_instance(metrics: bool) -> None:
    upstream = ScriptedUpstream()
    if not metrics:
        upstream.metrics = ""
    async with upstream, running_gateway([upstream.url], health={"interval_s": 0.05}) as gw:
        old = backend(gw).instance
        await warm(gw)
        await upstream.shut()
        await until_state(gw, State.DOWN)
        assert backend(gw).last_error == "ConnectError"
        if metrics:
            upstream.metrics = upstream.metrics.replace("seconds 1000", "seconds 2000")
        await upstream.listen()
        await until_state(gw, State.UP)
        assert backend(gw).instance is not old
        assert_cold(gw)
        assert await ask(gw) == 200
        gw.assert_at_rest()


async def test_a_restart_neither_loses_nor_inherits_counts() -> None:
    release = asyncio.Event()

    async def script(served: Served) -> None:
        await served.write(SSE_HEAD + chunk(token()))
        await release.wait()
        await served.write(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    async with ScriptedUpstream(script) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        response = await client.ask(chat("y" * 500, stream=True))
        old = backend(gw).instance
        assert old.in_flight == 1
        upstream.metrics = upstream.metrics.replace("seconds 1000", "seconds 2000")
        await gw.until(lambda _: backend(gw).instance is not old)
        assert backend(gw).instance.in_flight == 0
        assert old.in_flight == 1
        release.set()
        await response.read()
        assert response.complete
        assert old.in_flight == 0
        assert not old.pending
        assert gw.gateway.index.stats().entries == 0, "what the old life had is not learned for the new one"
        gw.assert_at_rest()


# Passive ejection.


async def failing(served: Served) -> None:
    await served.respond({"error": {}}, 500)


EJECT = {**NEVER, "eject_after_failures": 3, "eject_s": 0.3}


async def test_5xx_answers_eject_and_a_trial_brings_back() -> None:
    async with ScriptedUpstream(failing) as upstream, running_gateway([upstream.url], health=EJECT) as gw:
        for _ in range(3):
            assert await ask(gw) == 500
        assert backend(gw).health.state is State.EJECTED
        assert await ready(gw) == (200, "ready"), "its probes pass"
        assert await ask(gw) == 503
        assert len(upstream.requests) == 3
        await gw.until(lambda g: backend(gw).health.retry_in_s(g.clock()) == 0)
        assert await ask(gw) == 500, "the trial fails"
        assert backend(gw).health.state is State.EJECTED
        assert backend(gw).health.retry_in_s(gw.gateway.clock()) > 0.3, "out for twice as long"
        assert await ask(gw) == 503
        upstream.script = answer
        await gw.until(lambda g: backend(gw).health.retry_in_s(g.clock()) == 0)
        assert await ask(gw) == 200
        assert backend(gw).health.state is State.UP
        assert metric(gw.gateway, "warmroute_upstream_errors_total") == 4
        gw.assert_at_rest()


async def test_a_trial_is_one_request_at_a_time() -> None:
    release = asyncio.Event()

    async def slow(served: Served) -> None:
        await release.wait()
        await answer(served)

    async with ScriptedUpstream(failing) as upstream, running_gateway([upstream.url], health=EJECT) as gw:
        for _ in range(3):
            await ask(gw)
        upstream.script = slow
        await gw.until(lambda g: backend(gw).health.retry_in_s(g.clock()) == 0)
        trial = asyncio.create_task(ask(gw))
        await upstream.until(lambda u: len(u.requests) == 4)
        assert backend(gw).health.state is State.TRIAL
        assert [await ask(gw) for _ in range(3)] == [503] * 3
        release.set()
        assert await trial == 200
        assert await ask(gw) == 200


async def test_o66_connect_errors_fail_over_and_eject() -> None:
    async with (
        ScriptedUpstream() as a,
        ScriptedUpstream() as b,
        ScriptedUpstream() as c,
        running_gateway([a.url, b.url, c.url], health=NEVER) as gw,
    ):
        await b.shut()
        assert [await ask(gw, f"prompt {i} " * 30) for i in range(60)] == [200] * 60
        assert backend(gw, "b").health.state is State.EJECTED
        assert metric(gw.gateway, "warmroute_retries_total") == 5
        gw.assert_at_rest()


async def test_o62_first_byte_timeouts_eject_a_hanging_engine() -> None:
    async def hang(served: Served) -> None:
        await served.until_closed()

    limits = {"first_byte_timeout_s": 0.05}
    async with ScriptedUpstream(hang) as upstream, running_gateway([upstream.url], health=EJECT, limits=limits) as gw:
        assert [await ask(gw) for _ in range(4)] == [504, 504, 504, 503]
        assert backend(gw).health.state is State.EJECTED


@pytest.mark.parametrize("status", [400, 401, 404, 413, 422, 429])
async def test_o11_client_errors_never_count(status: int) -> None:
    async def refusing(served: Served) -> None:
        await served.respond({"error": {}}, status)

    async with (
        ScriptedUpstream(refusing) as a,
        ScriptedUpstream(refusing) as b,
        running_gateway([a.url, b.url], health=EJECT) as gw,
    ):
        sent = 0
        while min(len(a.requests), len(b.requests)) < 20:
            assert await ask(gw, f"prompt {sent} " * 30) == status
            sent += 1
            assert sent < 200
        assert len(a.requests) + len(b.requests) == sent, "one attempt each"
        a.script = b.script = answer
        assert await ask(gw) == 200
        for name in ("a", "b"):
            assert backend(gw, name).health.state is State.UP
        gw.assert_at_rest()


async def test_o11_clients_that_leave_never_count() -> None:
    async def hang(served: Served) -> None:
        await served.until_closed()

    async with ScriptedUpstream(hang) as upstream, running_gateway([upstream.url], health=EJECT) as gw:
        for number in range(10):
            client = await gw.connect()
            await client.send(chat(stream=number % 2 == 0))
            await upstream.until(lambda u, n=number: len(u.requests) == n + 1)  # type: ignore[misc]
            client.reset()
            await gw.until(lambda _: gw.in_flight == 0)
            await client.close()
        assert backend(gw).health.state is State.UP
        upstream.script = answer
        assert await ask(gw) == 200
        gw.assert_at_rest()


# What an answer that is none leaves behind.


@pytest.mark.parametrize("status", [400, 429, 500])
async def test_a_refused_prompt_is_not_taken_for_cached(status: int) -> None:
    async def refusing(served: Served) -> None:
        await served.respond({"error": {}}, status)

    async with ScriptedUpstream(refusing) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        for _ in range(2):
            response = await client.ask(chat("z" * 1000))
            assert response.status == status
            assert response.header("x-warmroute-cached-tokens") == "0"
            await response.read()
        assert gw.gateway.index.stats().entries == 0
        assert metric(gw.gateway, "warmroute_prompt_tokens_total") == 0
        gw.assert_at_rest()


# Load and models.


async def test_load_figures_arrive() -> None:
    text = (
        'vllm:num_requests_running{model_name="m"} 3.0\n'
        'vllm:num_requests_waiting{model_name="m"} 2.0\n'
        'vllm:kv_cache_usage_perc{model_name="m"} 0.25\n'
        'vllm:cache_config_info{block_size="16",num_gpu_blocks="1000"} 1.0\n'
        "process_start_time_seconds 1000\n"
    )
    async with ScriptedUpstream(metrics=text) as upstream, running_gateway([upstream.url]) as gw:
        load = backend(gw).instance.engine_load
        assert load is not None, "known before the first request"
        assert (load.running, load.waiting, load.kv_usage) == (3, 2, 0.25)
        assert backend(gw).capacity_tokens == 16_000
        upstream.metrics = text.replace('waiting{model_name="m"} 2.0', 'waiting{model_name="m"} 7.0')
        await gw.until(lambda _: (backend(gw).instance.engine_load or load).waiting == 7)


@pytest.mark.parametrize(
    "bad",
    [
        "vllm:num_requests_running +Inf\n",
        "vllm:num_requests_running NaN\n",
        "vllm:num_requests_running{\n",
        "vllm:num_requests_running{a=\n",
        'vllm:num_requests_running{a="\n',
        "vllm:num_requests_running x\n",
        "vllm:num_requests_running\n",
        "vllm:cache_config_info{block_size=\n",
        "process_start_time_seconds -\n",
        "\0\0\0",
    ],
)
async def test_broken_metrics_do_not_stop_the_probes(bad: str) -> None:
    async with ScriptedUpstream() as upstream, running_gateway([upstream.url]) as gw:
        good = upstream.metrics
        upstream.metrics = bad
        probes = upstream.probes
        await gw.until(lambda _: upstream.probes > probes + 6)
        assert backend(gw).health.state is State.UP
        upstream.metrics = good.replace("running 0", "running 5")
        await gw.until(lambda _: (backend(gw).instance.engine_load or NO_RUNNING).running == 5)


class _NoRunning:
    running: int | None = None


NO_RUNNING = _NoRunning()


async def test_o58_models_are_merged_and_one_dead_backend_does_no_harm() -> None:
    async with (
        ScriptedUpstream(models=("m", "n")) as a,
        ScriptedUpstream(models=("m", "org/k")) as b,
        ScriptedUpstream(models=("gone",)) as c,
        running_gateway([a.url, b.url, c.url], health={"interval_s": 0.05}) as gw,
        gw.client() as client,
    ):
        listed = await (await client.ask(b"", path="/v1/models", method="GET")).json()
        assert listed["object"] == "list"
        assert [card["id"] for card in listed["data"]] == ["m", "n", "org/k", "gone"]
        await c.shut()
        await until_state(gw, State.DOWN, "c")
        probes = a.probes, b.probes
        for _ in range(50):
            response = await client.ask(b"", path="/v1/models", method="GET")
            assert response.status == 200
            assert [card["id"] for card in (await response.json())["data"]] == ["m", "n", "org/k"]
        assert (a.probes - probes[0], b.probes - probes[1]) < (25, 25), "answered from memory"
        one = await client.ask(b"", path="/v1/models/org/k", method="GET")
        assert (await one.json())["id"] == "org/k"
        none = await client.ask(b"", path="/v1/models/gone", method="GET")
        assert none.status == 404
        assert (await none.error())["code"] == "model_not_found"
        response = await client.ask(chat(model="gone"))
        assert response.status == 503
        assert (await response.error())["code"] == "no_backend_available"
        assert (await client.ask(chat(model="n"))).header("x-warmroute-backend") == "a"


async def test_a_model_that_a_backend_loads_later_is_served() -> None:
    async with ScriptedUpstream() as upstream, running_gateway([upstream.url]) as gw:
        assert await ask(gw, model="new") == 404
        upstream.models = ("m", "new")
        await gw.until(lambda g: "new" in g.registry.models)
        assert await ask(gw, model="new") == 200


async def test_configured_models_need_no_model_list() -> None:
    async with ScriptedUpstream(models=()) as upstream:
        entry = {"name": "a", "url": upstream.url, "models": ["mine"]}
        async with running_gateway([entry]) as gw:
            assert await ask(gw, model="mine") == 200
            assert await ask(gw, model="m") == 404


# Connections.


async def test_o65_an_idle_connection_that_died_is_no_502() -> None:
    async def closes_after(served: Served) -> None:
        await answer(served)
        served.writer.close()

    async with ScriptedUpstream(closes_after) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        for _ in range(50):
            response = await client.ask(chat())
            assert response.status == 200
            await response.read()
        assert metric(gw.gateway, "warmroute_upstream_errors_total") == 0
        assert len(upstream.requests) == 50
        gw.assert_at_rest()


async def test_o65_a_request_on_a_dying_connection_is_sent_once_more() -> None:
    """The backend closes the moment it sees the second request: no byte of an answer, so it may be asked again."""
    drop = asyncio.Event()

    async def script(served: Served) -> None:
        if drop.is_set():
            drop.clear()
            served.reset()
        else:
            await answer(served)

    async with ScriptedUpstream(script) as upstream, running_gateway([upstream.url]) as gw:
        assert await ask(gw) == 200
        drop.set()
        assert await ask(gw) == 200
        assert len(upstream.requests) == 3
        assert metric(gw.gateway, "warmroute_upstream_errors_total") == 0
        assert metric(gw.gateway, "warmroute_retries_total") == 0
        gw.assert_at_rest()


# TLS and credentials.


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@contextlib.asynccontextmanager
async def tls_upstream(authority: trustme.CA, host: str = "127.0.0.1") -> AsyncIterator[ScriptedUpstream]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(host).configure_cert(context)
    async with ScriptedUpstream(tls=context) as upstream:
        yield upstream


def trusting(authority: trustme.CA, folder: Path) -> str:
    path = folder / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return str(path)


async def test_a_tls_backend_with_a_ca_of_its_own(authority: trustme.CA, tmp_path: Path) -> None:
    async with tls_upstream(authority) as upstream:
        entry = {"name": "a", "url": upstream.url, "ca_file": trusting(authority, tmp_path)}
        async with running_gateway([entry]) as gw, gw.client() as client:
            assert backend(gw).health.state is State.UP
            for stream in (False, True, False):
                response = await client.ask(chat(stream=stream))
                assert response.status == 200
                await response.read()
                assert response.complete
            big = await client.ask(chat("x" * 2_000_000))
            assert big.status == 200
            assert len(upstream.requests[-1].body) > 2_000_000
            gw.assert_at_rest()


@pytest.mark.parametrize("fault", ["another CA", "another name"])
async def test_a_tls_backend_that_cannot_be_trusted_gets_nothing(
    fault: str, authority: trustme.CA, tmp_path: Path
) -> None:
    trusted = trustme.CA() if fault == "another CA" else authority
    async with tls_upstream(authority, "127.0.0.1" if fault == "another CA" else "elsewhere.test") as upstream:
        entry = {
            "name": "a",
            "url": upstream.url,
            "ca_file": trusting(trusted, tmp_path),
            "models": ["m"],
            "api_key": "key-for-the-backend",
        }
        async with running_gateway([entry], health=NEVER) as gw, gw.client() as client:
            assert backend(gw).health.state is State.DOWN, "the probe does not trust it either"
            assert backend(gw).last_error == "ConnectError"
            backend(gw).health.probe_passed()  # as if it had been trusted until now
            response = await client.ask(chat())
            assert response.status == 502
            error = await response.error()
            assert error["code"] == "upstream_connect_failed"
            assert "127.0.0.1" not in error["message"]
            assert not upstream.requests
            gw.assert_at_rest()


async def test_an_untrusted_tls_backend_works_where_the_operator_says_so(authority: trustme.CA) -> None:
    async with tls_upstream(authority, "elsewhere.test") as upstream:
        entry = {"name": "a", "url": upstream.url, "tls_verify": False}
        async with running_gateway([entry]) as gw:
            assert await ask(gw) == 200


CLIENT_CREDENTIALS = {
    "authorization": "Bearer client-secret",
    "x-api-key": "client-secret",
    "api-key": "client-secret",
    "cookie": "session=client-secret",
    "proxy-authorization": "Basic client-secret",
}


@pytest.mark.parametrize("key", ["backend-secret", None])
async def test_the_backend_gets_its_own_credential_and_never_the_clients(key: str | None) -> None:
    seen: list[tuple[bytes, bytes]] = []

    class Watched(ScriptedUpstream):
        async def _probe(self, served: Served) -> None:
            seen.extend(served.headers)
            await super()._probe(served)

    async with Watched() as upstream:
        entry = {"name": "a", "url": upstream.url, **({"api_key": key} if key else {})}
        async with running_gateway([entry]) as gw, gw.client() as client:
            response = await client.ask(chat(), headers=CLIENT_CREDENTIALS)
            assert response.status == 200
            got = upstream.requests[0]
            assert [v for n, v in got.headers if n.lower() == b"authorization"] == (
                [b"Bearer backend-secret"] if key else []
            )
            assert all(b"client-secret" not in value for _, value in got.headers)
            credentials = {value for name, value in seen if name.lower() == b"authorization"}
            assert credentials == ({b"Bearer backend-secret"} if key else set()), "probes too"
            assert all("secret" not in value for _, value in response.headers)

"""Detection and load on real sockets, through the probes that trigger them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from backends.backend import Backend, BackendSpec
from backends.engines import EngineName, Page
from backends.engines.reader import EngineReader, contradiction
from backends.health import HealthPolicy, State
from backends.prober import ProbePolicy, Prober
from backends.registry import Registry
from backends.upstream import Endpoint
from tests.support.fleet import NoUpstream
from tests.support.upstream import ScriptedUpstream, Served
from vocabulary import BackendId

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

POLICY = ProbePolicy(interval_s=0.02, timeout_s=5.0, metrics_interval_s=0.01)
HTML = (200, b"<!doctype html><title>ours</title>")
LLAMACPP = b"llamacpp:requests_processing 1\nllamacpp:requests_deferred 2\n"
SGLANG = b"sglang:num_running_reqs 1\nsglang:num_queue_reqs 4\n"
TRTLLM = json.dumps([{"numActiveRequests": 5, "numQueuedRequests": 3}]).encode()


class Read:
    def __init__(self, policy: ProbePolicy) -> None:
        self.found: list[tuple[EngineName | None, EngineName | None]] = []
        self.changes = 0
        self.registry = Registry(HealthPolicy(), lambda _: NoUpstream(), time.monotonic, lambda: None)
        self.prober = Prober(self.registry, policy, time.monotonic, self.changed, self.was_found)

    def changed(self, backend: Backend) -> None:
        self.changes += 1

    def was_found(self, backend: Backend) -> None:
        self.found.append((name_of(backend), contradiction(backend)))

    async def add(self, port: int, **fields: Any) -> Backend:
        backend = self.registry.add(BackendSpec(BackendId("a"), Endpoint("127.0.0.1", port), **fields))
        self.prober.watch(backend)
        await self.prober.first_round(10)
        return backend


@contextlib.asynccontextmanager
async def reading(policy: ProbePolicy = POLICY) -> AsyncIterator[Read]:
    made = Read(policy)
    try:
        yield made
    finally:
        await made.prober.stop()


def name_of(backend: Backend) -> EngineName | None:
    engine = backend.instance.engine
    return None if engine is None else engine.name


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.002)


@pytest.mark.parametrize(
    ("owner", "name", "allowed"),
    [
        ("vllm", EngineName.VLLM, {"/health", "/v1/models", "/metrics"}),
        ("sglang", EngineName.SGLANG, {"/health", "/v1/models", "/metrics", "/v1/loads"}),
        ("tensorrt_llm", EngineName.TRTLLM, {"/health", "/v1/models", "/prometheus/metrics", "/metrics"}),
        ("llamacpp", EngineName.LLAMACPP, {"/health", "/v1/models", "/metrics"}),
        ("openai", EngineName.OPENAI, {"/health", "/v1/models"}),
    ],
)
async def test_an_engine_that_names_itself_is_asked_nothing_more(
    owner: str, name: EngineName, allowed: set[str]
) -> None:
    async with ScriptedUpstream(owner=owner, metrics="") as upstream, reading() as made:
        backend = await made.add(upstream.port)
        assert name_of(backend) is name, "known before its first request"
        asked = upstream.asked["/v1/models"]
        await until(lambda: upstream.asked["/v1/models"] > asked + 2)
        assert set(upstream.asked) <= allowed
        assert made.found == [(name, None)]


async def test_a_page_that_settles_the_question_is_not_asked_for_twice() -> None:
    asked: list[str] = []

    async def get(path: str) -> Page:
        asked.append(path)
        return Page(200, {}, SGLANG)

    made = Read(POLICY)
    backend = made.registry.add(BackendSpec(BackendId("a"), Endpoint("127.0.0.1", 1)))
    await EngineReader(made.registry, backend, get, made.changed, made.was_found).read()
    assert name_of(backend) is EngineName.SGLANG
    assert backend.instance.engine_load is not None
    assert backend.instance.engine_load.waiting == 4
    assert asked == ["/metrics"]


async def test_pages_of_an_engine_that_some_builds_lack() -> None:
    loads = {"loads": [{"num_running_reqs": 1, "num_waiting_reqs": 6}]}
    pages = {"/metrics": (404, b""), "/v1/loads": (200, json.dumps(loads).encode())}
    async with ScriptedUpstream(owner="sglang", pages=pages) as upstream, reading() as made:
        backend = await made.add(upstream.port)
        assert backend.instance.engine_load is not None
        assert backend.instance.engine_load.waiting == 6
        await until(lambda: upstream.asked["/v1/loads"] > 5)
        assert upstream.asked["/metrics"] == 1, "the page that answered last is asked first"
        del upstream.pages["/v1/loads"]
        upstream.pages["/metrics"] = (200, SGLANG)
        await until(lambda: (load := backend.instance.engine_load) is not None and load.waiting == 4)


async def test_iterations_that_come_once_stay_known() -> None:
    pages = {"/prometheus/metrics": (404, b""), "/metrics": (200, TRTLLM)}
    async with ScriptedUpstream(pages=pages) as upstream, reading() as made:
        backend = await made.add(upstream.port)
        assert name_of(backend) is EngineName.TRTLLM
        upstream.pages["/metrics"] = (200, b"[]")
        asked = upstream.asked["/metrics"]
        await until(lambda: upstream.asked["/metrics"] > asked + 3)
        assert backend.instance.engine_load is not None
        assert backend.instance.engine_load.waiting == 3


@pytest.mark.parametrize(
    "page", [HTML, (404, b""), (405, b"{}"), (200, b"[" * 100_000), (200, b"\xff"), (302, b""), (200, b"null")]
)
async def test_one_that_answers_nothing_of_use_is_of_no_known_kind(page: tuple[int, bytes]) -> None:
    pages = dict.fromkeys(("/metrics", "/server_info", "/props", "/version"), page)
    async with ScriptedUpstream(pages=pages) as upstream, reading() as made:
        backend = await made.add(upstream.port)
        await until(lambda: name_of(backend) is EngineName.OPENAI)
        assert backend.health.state is State.UP
        asked = upstream.asked["/v1/models"]
        await until(lambda: upstream.asked["/v1/models"] > asked + 2)
        assert {path: upstream.asked[path] for path in pages} == dict.fromkeys(pages, 1)


class Slow(ScriptedUpstream):
    """Health and models at once, nothing else ever."""

    async def _probe(self, served: Served) -> None:
        if served.target in ("/health", "/v1/models"):
            await super()._probe(served)
        else:
            self.asked[served.target] += 1
            await served.until_closed()


async def test_slow_pages_hold_up_neither_health_nor_detection_for_ever() -> None:
    policy = ProbePolicy(interval_s=0.02, timeout_s=0.05, metrics_interval_s=0.01)
    async with Slow() as upstream, reading(policy) as made:
        backend = await made.add(upstream.port)
        assert backend.health.state is State.UP
        assert backend.instance.takes_cache_salt(b"/v1/chat/completions"), "while it is not known, tenants stay apart"
        await until(lambda: name_of(backend) is EngineName.OPENAI)
        paths = ("/metrics", "/server_info", "/props", "/version")
        assert {path: upstream.asked[path] for path in paths} == dict.fromkeys(paths, 3)
        assert backend.health.state is State.UP


async def test_a_page_that_does_not_come_is_no_reason_to_ask_for_the_next() -> None:
    policy = ProbePolicy(interval_s=0.02, timeout_s=0.05, metrics_interval_s=0.01)
    async with Slow(owner="sglang") as upstream, reading(policy) as made:
        backend = await made.add(upstream.port)
        await until(lambda: upstream.asked["/metrics"] > 2)
        assert (name_of(backend), backend.health.state) == (EngineName.SGLANG, State.UP)
        assert "/v1/loads" not in upstream.asked


async def test_one_of_no_known_kind_may_become_known_and_is_the_same() -> None:
    async with ScriptedUpstream(metrics="") as upstream, reading() as made:
        backend = await made.add(upstream.port)
        assert name_of(backend) is EngineName.OPENAI
        upstream.owner = "vllm"
        await until(lambda: name_of(backend) is EngineName.VLLM)
        assert backend.instance.id == 1


async def test_a_busy_engine_is_asked_again() -> None:
    async with ScriptedUpstream(pages={"/metrics": (503, b"")}) as upstream, reading() as made:
        backend = await made.add(upstream.port)
        upstream.pages["/metrics"] = (200, LLAMACPP)
        await until(lambda: name_of(backend) is EngineName.LLAMACPP)
        assert "/server_info" not in upstream.asked


async def test_another_engine_behind_the_address_is_another_life() -> None:
    async with ScriptedUpstream(owner="vllm") as upstream, reading() as made:
        backend = await made.add(upstream.port)
        first = backend.instance
        upstream.owner, upstream.metrics = "llamacpp", LLAMACPP.decode()
        await until(lambda: name_of(backend) is EngineName.LLAMACPP)
        assert backend.instance is not first
        assert first.retired
        await until(lambda: (load := backend.instance.engine_load) is not None and load.waiting == 2)
        second = backend.instance
        assert not second.takes_cache_salt(b"/v1/chat/completions")
        asked = upstream.asked["/v1/models"]
        await until(lambda: upstream.asked["/v1/models"] > asked + 3)
        assert backend.instance is second, "one swap is one restart"


async def test_an_engine_that_returns_is_detected_anew() -> None:
    async with ScriptedUpstream(metrics="sglang:num_queue_reqs 1\n") as upstream, reading() as made:
        backend = await made.add(upstream.port)
        assert name_of(backend) is EngineName.SGLANG
        first = backend.instance
        upstream.health_status = 500
        await until(lambda: backend.health.state is State.DOWN)
        upstream.pages["/metrics"] = (404, b"")
        upstream.pages["/props"] = (200, b'{"default_generation_settings": {}}')
        upstream.health_status = 200
        await until(lambda: name_of(backend) is EngineName.LLAMACPP)
        assert backend.instance is not first


async def test_a_restart_of_the_same_engine_is_seen_by_its_start_time() -> None:
    async with ScriptedUpstream(owner="vllm") as upstream, reading() as made:
        backend = await made.add(upstream.port)
        first, changes = backend.instance, made.changes
        upstream.metrics = "vllm:num_requests_running 0\nprocess_start_time_seconds 2000\n"
        await until(lambda: backend.instance is not first)
        await until(lambda: made.changes > changes)
        assert name_of(backend) is EngineName.VLLM
        assert backend.instance.id == first.id + 1


async def test_the_config_goes_before_the_answers_and_a_contradiction_is_told() -> None:
    async with ScriptedUpstream(owner="sglang", metrics="") as upstream, reading() as made:
        backend = await made.add(upstream.port, engine=EngineName.VLLM)
        assert made.found == [(EngineName.VLLM, EngineName.SGLANG)]
        asked = upstream.asked["/v1/models"]
        await until(lambda: upstream.asked["/v1/models"] > asked + 2)
        assert made.found == [(EngineName.VLLM, EngineName.SGLANG)], "once"
        upstream.owner = "vllm"
        await until(lambda: contradiction(backend) is None)
        assert name_of(backend) is EngineName.VLLM
        assert backend.instance.id == 1


async def test_metrics_contradict_too() -> None:
    async with ScriptedUpstream(metrics=SGLANG.decode()) as upstream, reading() as made:
        backend = await made.add(upstream.port, engine=EngineName.VLLM)
        assert contradiction(backend) is EngineName.SGLANG


async def test_any_engine_may_be_called_openai() -> None:
    async with ScriptedUpstream(owner="vllm") as upstream, reading() as made:
        backend = await made.add(upstream.port, engine=EngineName.OPENAI)
        assert contradiction(backend) is None
        assert set(upstream.asked) == {"/v1/models"}
        made.registry.update(BackendSpec(BackendId("a"), backend.spec.endpoint))
        assert name_of(backend) is None
        await until(lambda: name_of(backend) is EngineName.VLLM)
        assert backend.instance.id == 1, "another setting is no other life"


# Health, where the path is not configured.


async def test_a_server_without_a_health_path_is_up_by_its_model_list() -> None:
    async with ScriptedUpstream(health_status=404) as upstream, reading() as made:
        upstream.pages["/metrics"] = (404, b"")
        backend = await made.add(upstream.port)
        assert backend.health.state is State.UP
        await until(lambda: name_of(backend) is EngineName.OPENAI)
        upstream.pages["/v1/models"] = (500, b"")
        await until(lambda: backend.health.state is State.DOWN)


async def test_its_model_list_must_answer_even_where_the_models_are_configured() -> None:
    async with ScriptedUpstream(health_status=404) as upstream, reading() as made:
        upstream.pages["/v1/models"] = (503, b"")
        backend = await made.add(upstream.port, engine=EngineName.OPENAI, models=("m",))
        assert backend.health.state is not State.UP
        upstream.pages["/v1/models"] = (404, b"")
        await until(lambda: backend.health.state is State.UP)


@pytest.mark.parametrize("status", [404, 405])
async def test_an_engine_that_has_a_health_path_must_answer_it(status: int) -> None:
    async with ScriptedUpstream(health_status=status, owner="vllm") as upstream, reading() as made:
        backend = await made.add(upstream.port, engine=EngineName.VLLM)
        assert backend.health.state is not State.UP


async def test_a_path_that_is_configured_must_be_there() -> None:
    policy = ProbePolicy("/ready", interval_s=0.02, timeout_s=5.0, metrics_interval_s=0.01)
    async with ScriptedUpstream() as upstream, reading(policy) as made:
        backend = await made.add(upstream.port)
        assert backend.health.state is not State.UP
        upstream.pages["/ready"] = (200, b"")
        await until(lambda: backend.health.state is State.UP)
        assert upstream.health_probes == 0

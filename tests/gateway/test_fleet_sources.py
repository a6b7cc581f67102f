"""Answers of sources become backends, through the real fleet control, without sockets."""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from backends.addresses import Address
from backends.backend import BackendSpec
from backends.discovery.protocol import EmptyAnswer, Found
from backends.engines import EngineName
from backends.prober import ProbePolicy, Prober
from backends.upstream import Endpoint
from gateway.config import default_config
from gateway.fleet_sources import FleetSources
from gateway.lifecycle import FleetControl
from gateway.source_plan import SourcePlan, backend_name, plan_sources
from tests.support.fleet import Fleet
from vocabulary import BackendId

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from backends.backend import Backend
    from backends.discovery.protocol import Failed, Report
    from backends.instance import Lease


@dataclass
class Scripted:
    """A source that says what a test says."""

    runs: int = 0
    running: bool = False
    report: Report = field(init=False)
    failed: Failed = field(init=False)
    crash: Exception | None = None

    async def run(self, report: Report, failed: Failed) -> None:
        self.runs += 1
        self.report, self.failed = report, failed
        if self.crash is not None:
            crash, self.crash = self.crash, None
            raise crash
        self.running = True
        try:
            await asyncio.Event().wait()
        finally:
            self.running = False


class Log:
    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def info(self, event: str, **fields: Any) -> None:
        self.lines.append((event, fields))

    warning = error = info

    def count(self, event: str) -> int:
        return sum(name == event for name, _ in self.lines)


@dataclass
class Rig:
    fleet: Fleet
    sources: FleetSources
    control: FleetControl
    log: Log

    def plan(self, source: Scripted, name: str = "pool", **section: Any) -> SourcePlan:
        entry = {"name": name, "kind": "dns", "host": "vllm.test", "port": 8000, **section}
        (parsed,) = default_config(backends=[], discovery=[entry]).discovery
        return SourcePlan(parsed, (), lambda: source, None, {"llama": (1e-5, 1e-9)})

    async def begin(self, source: Scripted, **section: Any) -> None:
        self.sources.apply([self.plan(source, **section)])
        self.sources.start()
        await settled()

    @property
    def names(self) -> list[str]:
        return sorted(backend.name for backend in self.fleet.registry)

    def get(self, name: str) -> Backend:
        backend = self.fleet.registry.get(BackendId(name))
        assert backend is not None
        return backend

    def lease(self, name: str) -> Lease:
        return self.get(name).instance.lease(1.0, 1.0, 0.0, 0.0)

    def states(self) -> dict[str, tuple[str, ...]]:
        return {backend.name: backend.drain_reasons for backend in self.fleet.registry}

    def status(self, name: str = "pool") -> dict[str, Any]:
        return next(one for one in self.sources.status() if one["name"] == name)


@asynccontextmanager
async def rig() -> AsyncIterator[Rig]:
    log: Any = Log()
    with Fleet() as fleet:
        prober = Prober(fleet.registry, ProbePolicy(), fleet.clock, lambda backend: None)
        control = FleetControl(fleet.registry, prober, fleet.fleet, fleet.metrics, fleet.clock, log)
        sources = FleetSources(control, fleet.registry, fleet.clock, random.Random(1), log)
        try:
            yield Rig(fleet, sources, control, log)
        finally:
            await sources.stop()
            for backend in fleet.registry:
                for lease in list(backend.instance.pending):
                    lease.end(0.0)
            await control.stop()
            await prober.stop()


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def found(name: str, host: str | None = None, *, ready: bool = True, **fields: Any) -> Found:
    hosts = {"a": "10.0.0.1", "b": "10.0.0.2", "c": "10.0.0.3"}
    return Found(name, Address("http", host or hosts[name], 8000), ready=ready, **fields)


async def test_what_is_found_becomes_a_backend() -> None:
    async with rig() as r:
        source = Scripted()
        await r.begin(source, models=["llama"], engine="openai", api_key="pool-key")
        source.report((found("a"), found("b", ready=False), found("c", terminating=True)))
        assert r.names == ["pool-a"], "only what is ready"
        spec = r.get("pool-a").spec
        assert spec.endpoint == Endpoint("10.0.0.1", 8000, None, "Bearer pool-key")
        assert (spec.models, spec.engine) == (("llama",), EngineName.OPENAI)
        assert (spec.prefill_s_per_token, spec.prefill_s_per_token2) == (1e-5, 1e-9)
        source.report((found("a"), found("b", models=("own",))))
        assert r.names == ["pool-a", "pool-b"]
        assert r.get("pool-b").spec.models == ("own",), "what an entry says goes before"


async def test_what_is_gone_is_drained_and_removed() -> None:
    async with rig() as r:
        source = Scripted()
        await r.begin(source)
        source.report((found("a"), found("b")))
        lease = r.lease("pool-a")
        source.report(())
        await settled()
        assert r.states() == {"pool-a": ("discovery",)}, "the idle one is gone, the other finishes"
        assert r.status()["backends"] == {"pool-a": "10.0.0.1:8000"}
        lease.end(1.0)
        await settled()
        assert r.names == []
        assert r.status()["backends"] == {}
        assert not r.fleet.fleet.states, "O38: nothing is kept of it"


async def test_o50_back_before_it_is_empty() -> None:
    async with rig() as r:
        source = Scripted()
        await r.begin(source)
        source.report((found("a"),))
        instance = r.get("pool-a").instance
        lease = r.lease("pool-a")
        for _ in range(3):
            source.report(())
            await settled()
            source.report((found("a"),))
            await settled()
        assert r.states() == {"pool-a": ()}
        assert r.get("pool-a").instance is instance, "the same process: its cache still counts"
        lease.end(1.0)
        await settled()
        assert r.names == ["pool-a"], "the removal was called off"
        assert instance.in_flight == 0
        source.report(())
        await settled()
        assert r.names == [], "and the next one is not"


async def test_o37_back_after_it_was_removed() -> None:
    async with rig() as r:
        source = Scripted()
        await r.begin(source)
        source.report((found("a"),))
        first = r.get("pool-a").instance
        source.report(())
        await settled()
        source.report((found("a"),))
        assert r.get("pool-a").instance.id != first.id, "no credit for a cache that may be gone"
        source.report(())
        await settled()
        assert r.names == []


async def test_readiness_that_flaps_keeps_the_instance() -> None:
    async with rig() as r:
        source = Scripted()
        await r.begin(source)
        source.report((found("a"), found("b")))
        instance = r.get("pool-a").instance
        for rests in (found("a", ready=False), found("a", terminating=True)):
            source.report((rests, found("b")))
            await settled()
            assert r.states() == {"pool-a": ("discovery",), "pool-b": ()}, "idle, but still there"
            source.report((found("a"), found("b")))
            assert r.states() == {"pool-a": (), "pool-b": ()}
            assert r.get("pool-a").instance is instance


async def test_reasons_of_others_to_drain_are_theirs() -> None:
    async with rig() as r:
        source = Scripted()
        await r.begin(source)
        source.report((found("a"),))
        r.control.drain("pool-a", "admin")
        source.report((found("a", ready=False),))
        source.report((found("a"),))
        assert r.states() == {"pool-a": ("admin",)}


async def test_another_address_is_another_engine() -> None:
    async with rig() as r:
        source = Scripted()
        await r.begin(source)
        source.report((found("a"),))
        old = r.get("pool-a")
        lease = r.lease("pool-a")
        source.report((found("a", "10.0.0.9"),))
        new = r.get("pool-a")
        assert new is not old
        assert new.spec.endpoint.host == "10.0.0.9"
        assert (new.instance.in_flight, old.instance.in_flight) == (0, 1), "O07: what runs ends where it is"
        lease.end(1.0)
        await settled()
        assert r.names == ["pool-a"]


async def test_pods_that_swap_addresses() -> None:
    async with rig() as r:
        source = Scripted()
        await r.begin(source)
        source.report((found("a"), found("b")))
        source.report((found("a", "10.0.0.2"), found("b", "10.0.0.1")))
        await settled()
        assert r.states() == {"pool-a": (), "pool-b": ()}
        assert r.get("pool-a").spec.endpoint.host == "10.0.0.2"
        assert r.status()["refused"] == {}


async def test_errors_change_nothing() -> None:
    async with rig() as r:
        source = Scripted()
        await r.begin(source)
        source.report((found("a"),))
        r.fleet.now_s += 7
        for _ in range(3):
            source.failed(OSError("no route to 10.0.0.53"))
        assert r.states() == {"pool-a": ()}
        shown = r.status()
        assert (shown["last_error"], shown["detail"], shown["errors_total"]) == ("OSError", None, 3)
        assert (shown["answer_age_s"], shown["found"], shown["ready"]) == (7.0, 1, 1)
        assert r.log.count("discovery_failed") == 1, "told once"
        r.fleet.now_s += 61
        source.failed(OSError())
        source.failed(EmptyAnswer("vllm.test: no records"))
        assert r.log.count("discovery_failed") == 3, "and again after a while, or when it is another"
        assert "10.0.0.53" not in str(r.log.lines)
        assert r.status()["detail"] == "vllm.test: no records"
        source.report((found("a"),))
        assert (r.status()["last_error"], r.status()["answer_age_s"]) == (None, 0.0)
        (reading,) = r.sources.readings()
        assert (reading.name, reading.backends, reading.errors_total) == ("pool", 1, 5)


async def test_a_source_that_breaks_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig() as r:
        source = Scripted(crash=RuntimeError("a bug"))
        monkeypatch.setattr("gateway.fleet_sources.Backoff.next_s", lambda self: 0.0)
        await r.begin(source)
        assert source.runs == 2
        assert source.running
        assert r.status()["last_error"] == "RuntimeError"


async def test_names_that_are_taken() -> None:
    async with rig() as r:
        static = r.control.add(BackendSpec(BackendId("pool-a"), Endpoint("10.9.9.9", 1)))
        source = Scripted()
        await r.begin(source)
        source.report((found("a"), found("b")))
        source.report((found("a", ready=False), found("b")))
        assert r.get("pool-a") is static
        assert r.states() == {"pool-a": (), "pool-b": ()}
        source.report((found("a"), found("b")))
        assert r.status()["refused"] == {"pool-a": "the name is taken"}
        source.report(())
        await settled()
        assert r.names == ["pool-a"], "a source touches only what it brought in"


async def test_an_engine_that_is_there_already() -> None:
    async with rig() as r:
        r.control.add(BackendSpec(BackendId("static"), Endpoint("10.0.0.1", 8000)))
        one, other = Scripted(), Scripted()
        r.sources.apply([r.plan(one), r.plan(other, "spare")])
        r.sources.start()
        await settled()
        one.report((found("a"), found("b")))
        other.report((found("b"),))
        assert r.names == ["pool-b", "static"]
        assert r.status()["refused"] == {"pool-a": "another backend has this address"}
        assert r.log.count("discovery_refused") == 2
        lease = r.lease("pool-b")
        one.report((found("a"),))
        await settled()
        other.report((found("b"),))
        assert r.names == ["pool-b", "spare-b", "static"], "one that leaves is in nobody's way"
        on_static = r.lease("static")
        r.control.remove_later("static")
        r.sources.apply([r.plan(one), r.plan(other, "spare")])
        await settled()
        one.report((found("a"),))
        assert r.names == ["pool-a", "pool-b", "spare-b", "static"], "what was refused is looked at again"
        for open_lease in (lease, on_static):
            open_lease.end(1.0)


async def test_max_backends() -> None:
    async with rig() as r:
        source = Scripted()
        await r.begin(source, max_backends=2)
        many = tuple(found(f"n{i:03}", f"10.1.0.{i}") for i in range(100))
        source.report(many[50:52])
        source.report(many)
        assert r.names == ["pool-n050", "pool-n051"], "those that are here stay"
        assert r.status()["overflow"] == 98
        assert r.log.count("discovery_overflow") == 1
        source.report(many[:51])
        await settled()
        assert r.names == ["pool-n000", "pool-n050"]
        source.report((found("n000", "10.1.0.0", ready=False), *many[50:53]))
        assert len(r.names) == 2, "one that drains is still one"


async def test_a_reload_that_changes_nothing() -> None:
    async with rig() as r:
        source = Scripted()
        plan = r.plan(source)
        r.sources.apply([plan])
        r.sources.start()
        await settled()
        source.report((found("a"),))
        for _ in range(5):
            r.sources.apply([plan])
            await settled()
        assert (source.runs, source.running) == (1, True)
        assert r.states() == {"pool-a": ()}


async def test_a_changed_source_keeps_its_backends_until_it_answers() -> None:
    async with rig() as r:
        source, changed = Scripted(), Scripted()
        await r.begin(source)
        source.report((found("a"), found("b")))
        kept = r.get("pool-a")
        r.sources.apply([r.plan(changed, api_key="new-key")])
        await settled()
        assert (source.running, changed.running) == (False, True)
        changed.failed(OSError())
        await settled()
        assert r.states() == {"pool-a": (), "pool-b": ()}
        assert kept.spec.endpoint.authorization is None
        changed.report((found("a"),))
        await settled()
        assert r.names == ["pool-a"]
        assert r.get("pool-a") is kept, "the same engine"
        assert kept.spec.endpoint.authorization == "Bearer new-key"


async def test_a_source_that_is_taken_out() -> None:
    async with rig() as r:
        source, other = Scripted(), Scripted()
        plan, rest = r.plan(source), r.plan(other, "spare")
        r.sources.apply([plan, rest])
        r.sources.start()
        await settled()
        source.report((found("a"),))
        other.report((found("b"),))
        lease = r.lease("pool-a")
        r.sources.apply([rest])
        await settled()
        assert not source.running
        assert r.states() == {"pool-a": ("discovery",), "spare-b": ()}
        source.report((found("c"),))
        assert "pool-c" not in r.names, "nobody listens to it any more"
        back = Scripted()
        r.sources.apply([rest, r.plan(back)])
        await settled()
        back.report((found("a"),))
        assert r.states() == {"pool-a": (), "spare-b": ()}
        lease.end(1.0)


async def test_a_static_backend_takes_over_a_name_that_is_leaving() -> None:
    async with rig() as r:
        source = Scripted()
        await r.begin(source)
        source.report((found("a"),))
        lease = r.lease("pool-a")
        source.report(())
        static = r.control.add(BackendSpec(BackendId("pool-a"), Endpoint("10.9.9.9", 1)))
        await settled()
        source.report((found("a"),))
        await settled()
        assert r.get("pool-a") is static
        assert r.status()["refused"] == {"pool-a": "the name is taken"}
        lease.end(1.0)


async def test_first_answers() -> None:
    async with rig() as r:
        one, other = Scripted(), Scripted()
        r.sources.apply([r.plan(one), r.plan(other, "spare")])
        r.sources.start()
        waiting = asyncio.create_task(r.sources.first_answers(60))
        await settled()
        one.report(())
        await settled()
        assert not waiting.done()
        other.failed(OSError())
        await asyncio.wait_for(waiting, 5)
        r.sources.apply([r.plan(Scripted())])
        await r.sources.first_answers(0.01)


async def test_o38_a_thousand_pods_leave_nothing() -> None:
    async with rig() as r:
        source = Scripted()
        await r.begin(source)
        for i in range(1000):
            source.report((found(f"p{i}", f"10.{i // 250}.0.{i % 250}"),))
            if i % 50 == 0:
                await settled()
        source.report(())
        await settled()
        assert r.names == []
        assert r.sources.readings()[0].backends == 0
        assert not r.sources._owned
        assert not r.sources._leaving
        assert not r.fleet.fleet.states


@pytest.mark.parametrize(
    ("found_name", "expected"),
    [
        ("vllm-0", "pool-vllm-0"),
        ("x" * 59, "pool-" + "x" * 59),
    ],
)
def test_names_that_fit_stay(found_name: str, expected: str) -> None:
    assert backend_name("pool", found_name) == expected


def test_names_that_do_not_fit_stay_apart() -> None:
    names = [backend_name("pool", name) for name in ("x" * 60, "x" * 61, "A", "a", "a b", "a/b", "ä", "ö")]
    assert len(set(names)) == len(names)
    default_config(backends=[{"name": name, "url": f"http://h{i}"} for i, name in enumerate(names)])


def test_plans_that_still_hold_are_taken_over() -> None:
    def config(**changed: Any) -> Any:
        sections = [
            {"name": "one", "kind": "dns", "host": "one.test", "port": 8000},
            {"name": "two", "kind": "dns", "host": "_http._tcp.two.test", "scheme": "https", **changed},
        ]
        return default_config(backends=[], discovery=sections)

    rng = random.Random(1)
    first = plan_sources(config(), rng)
    assert [plan.tls is not None for plan in first] == [False, True]
    second = plan_sources(config(), rng, first)
    assert [a is b for a, b in zip(first, second, strict=True)] == [True, True]
    third = plan_sources(config(refresh_s=5.0), rng, second)
    assert [a is b for a, b in zip(second, third, strict=True)] == [True, False]

"""Which backends there are: coming, changing and going, and what the listeners hear of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from backends.backend import Backend, BackendSpec
from backends.health import HealthPolicy
from backends.registry import Registry
from backends.upstream import Endpoint
from tests.support.fleet import NoUpstream
from vocabulary import BackendId

if TYPE_CHECKING:
    from backends.instance import Instance


class Ears:
    def __init__(self) -> None:
        self.heard: list[tuple[str, int]] = []
        self.alive: set[int] = set()

    def instance_started(self, instance: Instance) -> None:
        self.heard.append(("started", instance.id))
        self.alive.add(instance.id)

    def instance_retired(self, instance: Instance) -> None:
        self.heard.append(("retired", instance.id))
        self.alive.remove(instance.id)

    def load_changed(self, instance: Instance) -> None:
        self.heard.append(("load", instance.id))

    def spec_changed(self, instance: Instance) -> None:
        self.heard.append(("spec", instance.id))


class Made:
    """A registry, its listener, and how often the models were said to have changed."""

    def __init__(self) -> None:
        self.changed = 0
        self.ears = Ears()
        self.registry = Registry(HealthPolicy(), lambda _: NoUpstream(), lambda: 7.0, self._models_changed)
        self.registry.listen(self.ears)

    def _models_changed(self) -> None:
        self.changed += 1


@pytest.fixture
def made() -> Made:
    return Made()


def spec(name: str = "a", *models: str, port: int = 1) -> BackendSpec:
    return BackendSpec(BackendId(name), Endpoint("127.0.0.1", port), models)


def names(backends: tuple[Backend, ...]) -> list[str]:
    return [backend.name for backend in backends]


def test_backends_are_found_by_name_and_model(made: Made) -> None:
    registry = made.registry
    a, b = registry.add(spec("a", "m", "n")), registry.add(spec("b", "m"))
    assert names(registry.serving("m")) == ["a", "b"]
    assert names(registry.serving("n")) == ["a"]
    assert registry.models == {"m", "n"}
    assert (registry.get(BackendId("a")), len(registry), list(registry)) == (a, 2, [a, b])
    with pytest.raises(ValueError, match="exists"):
        registry.add(spec("a"))
    registry.remove(a.name)
    assert registry.models == {"m"}
    assert registry.get(a.name) is None
    assert made.ears.alive == {b.instance.id}


def test_a_name_that_is_taken_over_is_never_free(made: Made) -> None:
    registry = made.registry
    old, other = registry.add(spec("a", "m")), registry.add(spec("b", "m"))
    new = registry.replace(spec("a", "m", port=2))
    assert list(registry) == [new, other], "in its place"
    assert names(registry.serving("m")) == ["a", "b"]
    assert registry.serving("m")[0] is new
    assert old.instance.retired
    assert made.ears.alive == {new.instance.id, other.instance.id}


def test_other_settings_keep_the_instance(made: Made) -> None:
    registry = made.registry
    backend = registry.add(spec("a", "m"))
    instance, upstream = backend.instance, backend.upstream
    assert registry.update(replace(spec("a", "n"), capacity_tokens=5)) is backend
    assert (backend.instance, backend.upstream, backend.capacity_tokens) == (instance, upstream, 5)
    assert registry.models == {"n"}
    backend.model_cards = {"p": {"id": "p"}, "q": {"id": "q"}}
    registry.update(spec("a"))
    assert registry.models == {"p", "q"}, "what it said itself, now that the operator says nothing"
    assert made.ears.heard[1:] == [("spec", instance.id)] * 2


def test_other_connections_keep_the_instance(made: Made) -> None:
    backend = made.registry.add(spec("a", "m"))
    instance, before = backend.instance, backend.upstream
    assert made.registry.reconnect(spec("a", "m", port=2)) is before
    assert backend.upstream is not before
    assert (backend.instance, backend.spec.endpoint.port) == (instance, 2)


def test_a_restart_is_a_new_instance_and_the_old_one_counts_until_it_is_empty(made: Made) -> None:
    backend = made.registry.add(spec())
    old = backend.instance
    leases = [old.lease(1, 1, 0.1, 0.0) for _ in range(2)]
    new = made.registry.restart(backend)
    assert (backend.instance, backend.in_flight) == (new, 2)
    lease = new.lease(1, 1, 0.1, 0.0)
    heard: list[str] = []
    backend.when_empty(lambda: heard.append("empty"))
    lease.end(1.0)
    leases[0].end(1.0)
    assert (backend.in_flight, heard) == (1, [])
    leases[1].end(1.0)
    assert (backend.in_flight, heard, backend.former) == (0, ["empty"], [])
    backend.when_empty(lambda: heard.append("at once"))
    assert heard == ["empty", "at once"]


def test_one_that_has_left_begins_no_new_life(made: Made) -> None:
    backend = made.registry.add(spec())
    made.registry.remove(backend.name)
    made.registry.restart(backend)
    assert not made.ears.alive


def test_reasons_to_drain_add_up_and_are_taken_back_one_by_one(made: Made) -> None:
    backend = made.registry.add(spec())
    assert backend.drain("admin", 1.0)
    assert not backend.drain("admin", 2.0)
    assert backend.drain("discovery", 3.0)
    assert (backend.draining, backend.draining_since_s) == (True, 1.0)
    assert not backend.undrain("config"), "it was never one"
    assert not backend.undrain("admin")
    assert (backend.draining, backend.drain_reasons) == (True, ("discovery",))
    assert backend.undrain("discovery")
    assert not backend.draining


def test_a_new_health_policy_is_for_those_to_come_too(made: Made) -> None:
    first = made.registry.add(spec("a"))
    made.registry.set_health_policy(HealthPolicy(eject_after_failures=1))
    second = made.registry.add(spec("b"))
    for backend in (first, second):
        backend.health.probe_passed()
        assert backend.health.request_failed(0.0)

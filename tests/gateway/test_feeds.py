"""Feeds follow the fleet: they begin and end with their instances, and leave nothing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from backends.backend import Backend, BackendSpec, EventSource
from backends.upstream import Endpoint
from gateway.config import default_config
from gateway.feeds import Feeds
from gateway.key_space import KeySpaces
from gateway.logs import get_logger
from prefix_index.protocol import Holder
from tests.support.fleet import SECRET, Fleet
from vocabulary import BackendId, BlockKeys, Trust

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KEYS = BlockKeys(bytes(range(32)))
SPEC = BackendSpec(BackendId("a"), Endpoint("127.0.0.1", 9), ("m",), events=EventSource("tcp://127.0.0.1:1"))


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    with Fleet() as fleet:
        yield fleet


@pytest.fixture
def feeds(fleet: Fleet, tmp_path: Path) -> Iterator[Feeds]:
    """Never started: no sockets."""
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text("{}")
    config = default_config(models=[{"name": "m", "encoding": "tokens", "tokenizer": str(tokenizer)}, {"name": "n"}])
    loop = asyncio.new_event_loop()
    spaces = KeySpaces(lambda: config, SECRET)
    feeds = Feeds(fleet.index, fleet.fleet, spaces, fleet.clock, loop, get_logger("test"))
    fleet.registry.listen(feeds)
    yield feeds
    feeds.stop()
    loop.close()


def predict(fleet: Fleet, backend: Backend) -> None:
    fleet.index.store(fleet.state(backend).holder, KEYS)


def test_only_backends_with_a_source_have_one(fleet: Fleet, feeds: Feeds) -> None:
    with_one, without = fleet.registry.add(SPEC), fleet.add("b")
    assert feeds.status(with_one.instance) is not None
    assert feeds.status(without.instance) is None
    assert fleet.state(without).reported is None
    assert fleet.state(without).holder == Holder(without.instance.id)


def test_o37_a_restart_leaves_nothing(fleet: Fleet, feeds: Feeds) -> None:
    backend = fleet.registry.add(SPEC)
    before = backend.instance
    predict(fleet, backend)
    fleet.index.store(Holder(before.id), KEYS)
    fleet.registry.restart(backend)
    assert fleet.index.stats().entries == 0
    assert feeds.status(before) is None
    assert feeds.status(backend.instance) is not None


def test_o38_backends_that_come_and_go_leave_nothing(fleet: Fleet, feeds: Feeds) -> None:
    for _ in range(100):
        backend = fleet.registry.add(SPEC)
        predict(fleet, backend)
        fleet.fleet.use_block_size(fleet.state(backend), 16.0)
        fleet.registry.remove(SPEC.name)
    stats = fleet.index.stats()
    assert (stats.blocks, dict(stats.holders)) == (0, {})
    assert not feeds._feeds


def test_without_its_source_a_backend_is_as_any_other(fleet: Fleet, feeds: Feeds) -> None:
    backend = fleet.registry.add(SPEC)
    predict(fleet, backend)
    fleet.registry.update(BackendSpec(SPEC.name, SPEC.endpoint, SPEC.models))
    state = fleet.state(backend)
    assert (state.reported, state.holder, state.trust) == (None, Holder(backend.instance.id), Trust.ESTIMATED)
    assert fleet.index.stats().entries == 0
    fleet.registry.update(SPEC)
    assert fleet.state(backend).reported is not None


def test_a_feed_begins_anew_only_where_its_keys_or_its_source_change(fleet: Fleet, feeds: Feeds) -> None:
    backend = fleet.registry.add(SPEC)
    cache = fleet.state(backend).reported
    feeds.review()
    assert fleet.state(backend).reported is cache
    backend.models = ("n",)
    feeds.review()
    assert fleet.state(backend).reported is not cache

"""Where the events of configured and of found backends come from."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from backends.addresses import Address
from backends.backend import EventSource
from backends.discovery.protocol import Found
from gateway import wiring
from gateway.config import default_config
from gateway.source_plan import plan_sources

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def models(tmp_path: Path) -> list[dict[str, Any]]:
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text("{}")
    return [{"name": "m", "encoding": "tokens", "tokenizer": str(tokenizer)}]


@pytest.mark.parametrize(
    ("section", "source"),
    [
        (None, None),
        ({"endpoint": "tcp://h:5557"}, EventSource("tcp://h:5557")),
        (
            {"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://h:5558", "topic": "kv"},
            EventSource("tcp://*:5557", "tcp://h:5558", "kv", bind=True),
        ),
        ({"endpoint": "tcp://10.0.0.1:5557", "bind": True}, EventSource("tcp://10.0.0.1:5557", bind=True)),
    ],
)
def test_of_a_backend(models: list[dict[str, Any]], section: dict[str, Any] | None, source: EventSource | None) -> None:
    entry = {"name": "a", "url": "http://h:1", **({"kv_events": section} if section else {})}
    config = default_config(backends=[entry], models=models)
    assert wiring.backend_spec(config.backends[0], config).events == source


@pytest.mark.parametrize(
    ("host", "base"), [("10.0.0.7", "tcp://10.0.0.7"), ("fd00::7", "tcp://[fd00::7]"), ("pod-3", "tcp://pod-3")]
)
def test_of_what_is_found_on_its_own_host(models: list[dict[str, Any]], host: str, base: str) -> None:
    events = {"port": 5557, "replay_port": 5558, "topic": "kv"}
    section = {"name": "d", "kind": "dns", "host": "h", "port": 1, "kv_events": events}
    (plan,) = plan_sources(default_config(discovery=[section], models=models), random.Random(1))
    spec = plan.spec(Found("x", Address("http", host, 8000)))
    assert spec.events == EventSource(f"{base}:5557", f"{base}:5558", "kv")
    plain = {key: value for key, value in section.items() if key != "kv_events"}
    (plan,) = plan_sources(default_config(discovery=[plain], models=models), random.Random(1))
    assert plan.spec(Found("x", Address("http", host, 8000))).events is None

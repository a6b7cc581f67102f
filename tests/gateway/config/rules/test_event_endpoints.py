"""KV events: their addresses, and what they need."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gateway.config import Config, ConfigErrors, loads

if TYPE_CHECKING:
    from pathlib import Path

TOKENS = "models: [{name: m, encoding: tokens, tokenizer: t.json, chat_template: c.jinja}, {name: b}]\n"


@pytest.fixture(autouse=True)
def base(tmp_path: Path) -> Path:
    for name in ("t.json", "c.jinja"):
        (tmp_path / name).write_text("{}")
    return tmp_path


def load(base: Path, text: str, head: str = TOKENS) -> Config:
    return loads(head + text, "f", environ={}, base=base)


def problems(base: Path, text: str, head: str = TOKENS) -> list[str]:
    try:
        load(base, text, head)
    except ConfigErrors as error:
        return [str(problem) for problem in error.problems]
    return []


def backend(events: str, models: str = "[m]", name: str = "a") -> str:
    return f"- {{name: {name}, url: 'http://{name}:1', models: {models}, kv_events: {{{events}}}}}\n"


@pytest.mark.parametrize(
    ("events", "binds"),
    [
        ("endpoint: 'tcp://h:5557'", False),
        ("endpoint: 'tcp://10.0.0.1:5557', replay_endpoint: 'tcp://10.0.0.1:5558', topic: kv@a", False),
        ("endpoint: 'tcp://[fd00::1]:5557'", False),
        ("endpoint: 'tcp://*:5557'", True),
        ("endpoint: 'tcp://127.0.0.1:5557', bind: true", True),
    ],
)
def test_good_ones(base: Path, events: str, binds: bool) -> None:
    (entry,) = load(base, "backends:\n" + backend(events)).backends
    assert entry.kv_events is not None
    assert entry.kv_events.binds is binds


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ("topic: t", "endpoint: missing"),
        ("endpoint: 'h:5557'", "endpoint: must be tcp://HOST:PORT (like tcp://10.0.0.1:5557)"),
        ("endpoint: 'http://h:5557'", "endpoint: must be tcp://HOST:PORT"),
        ("endpoint: 'tcp://h'", "endpoint: must be tcp://HOST:PORT"),
        ("endpoint: 'tcp://h:0'", "endpoint: the port must be from 1 to 65535"),
        ("endpoint: 'tcp://h:70000'", "endpoint: the port must be from 1 to 65535"),
        ("endpoint: 'tcp://0.0.0.0:5557'", "an unspecified address (write * for all addresses)"),
        ("endpoint: 'tcp://169.254.169.254:5557'", "endpoint: not an address of an engine: a link-local address"),
        ("endpoint: 'tcp://h:1', replay_endpoint: 'tcp://*:5558'", "replay_endpoint: must be tcp://HOST:PORT"),
        ("endpoint: 'tcp://h:1', topic: 'é'", "topic: must be printable ASCII"),
        ("endpoint: 'tcp://h:1', port: 5", "port: unknown key"),
    ],
)
def test_bad_ones(base: Path, events: str, expected: str) -> None:
    (problem,) = problems(base, "backends:\n" + backend(events))
    assert expected in problem
    assert "backends[0].kv_events" in problem


def test_an_engine_has_an_endpoint_of_its_own(base: Path) -> None:
    same = "endpoint: 'tcp://h:5557'"
    (problem,) = problems(base, "backends:\n" + backend(same) + backend(same, name="c"))
    assert "f:4:" in problem
    assert "backends[1].kv_events.endpoint: another backend's events come from there (also backends[0])" in problem


@pytest.mark.parametrize("models", ["[b]", "[unknown]"])
def test_bytes_have_no_tokens(base: Path, models: str) -> None:
    """O30: only where the tokens are known."""
    (problem,) = problems(base, "backends:\n" + backend("endpoint: 'tcp://h:5557'", models))
    assert "backends[0].kv_events: needs a model with encoding: tokens" in problem


def test_models_that_are_asked_from_the_backend_may_be_any_of_the_config(base: Path) -> None:
    entry = "backends:\n- {name: a, url: 'http://a:1', kv_events: {endpoint: 'tcp://h:5557'}}\n"
    assert problems(base, entry) == []
    (problem,) = problems(base, entry, "models: [{name: b}]\n")
    assert "backends[0].kv_events: needs a model" in problem


def test_what_is_found_has_ports(base: Path) -> None:
    text = (
        "discovery:\n- {name: d, kind: dns, host: h, port: 1, models: [m], kv_events: {port: 5557, replay_port: 1}}\n"
    )
    (section,) = load(base, text).discovery
    assert section.kv_events is not None
    assert (section.kv_events.port, section.kv_events.replay_port) == (5557, 1)
    (problem,) = problems(base, text.replace("models: [m]", "models: [b]"))
    assert "discovery[0].kv_events: needs a model" in problem
    (problem,) = problems(base, text.replace("port: 5557", "port: 0"))
    assert "discovery[0].kv_events.port" in problem

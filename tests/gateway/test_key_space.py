"""Which keys events get, and when there are none (O30)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gateway.config import Config, default_config
from gateway.key_space import KeySpace, KeySpaces
from prefix_index.encoding.protocol import Namespace
from prefix_index.keys import root_state
from tests.support.fleet import SECRET, Fleet

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    with Fleet() as fleet:
        yield fleet


def spaces(tmp_path: Path, *models: dict[str, Any]) -> KeySpaces:
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text("{}")
    entries = [{**entry, "tokenizer": tokenizer} if entry.get("encoding") == "tokens" else entry for entry in models]
    config: Config = default_config(models=entries)
    return KeySpaces(lambda: config, SECRET)


TOKENS = {"name": "m", "aliases": ["alias"], "encoding": "tokens", "block_size": 32}


@pytest.mark.parametrize("served", [("m",), ("alias",), ("m", "alias"), ("alias", "unknown")])
def test_all_names_of_a_model_are_one_key_space(fleet: Fleet, tmp_path: Path, served: tuple[str, ...]) -> None:
    assert spaces(tmp_path, TOKENS).of(fleet.add("a", served)) == KeySpace("m", 32)


def test_models_not_known_yet(fleet: Fleet, tmp_path: Path) -> None:
    assert spaces(tmp_path, TOKENS).of(fleet.add("a", ())) is None


def test_bytes_have_no_tokens(fleet: Fleet, tmp_path: Path) -> None:
    reason = spaces(tmp_path, {"name": "m"}).of(fleet.add("a"))
    assert isinstance(reason, str)
    assert "encoding: tokens" in reason


def test_two_models_cannot_be_told_apart(fleet: Fleet, tmp_path: Path) -> None:
    both = spaces(tmp_path, TOKENS, {**TOKENS, "name": "n", "aliases": []})
    reason = both.of(fleet.add("a", ("m", "n")))
    assert isinstance(reason, str)
    assert "more than one model" in reason


def test_an_adapter_is_no_second_model(fleet: Fleet, tmp_path: Path) -> None:
    both = spaces(tmp_path, TOKENS, {**TOKENS, "name": "sql", "aliases": []})
    backend = fleet.add("a", ("m", "sql"))
    backend.model_cards = {"m": {"id": "m", "parent": None}, "sql": {"id": "sql", "parent": "m"}}
    assert both.of(backend) == KeySpace("m", 32)


def test_events_are_keyed_like_the_prompts_of_their_model_adapter_and_salt(tmp_path: Path) -> None:
    """O31, O33: an adapter's and a salt's blocks are reached by prompts with it, and by no others."""
    some = spaces(tmp_path, TOKENS, {**TOKENS, "name": "sql", "aliases": ["sql-v2"]})
    root = some.roots(KeySpace("m", 32))

    def prompt(model: str, salt: str = "") -> bytes:
        return root_state(SECRET, Namespace(model, cache_salt=salt), 32).digest

    assert root(Namespace("")) == prompt("m")
    assert root(Namespace("", cache_salt="s")) == prompt("m", "s")
    assert root(Namespace("", adapter="sql-v2")) == prompt("sql")
    assert root(Namespace("", adapter="other", cache_salt="s")) == prompt("other", "s")

"""What the next config's models go on with, and what ends."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from gateway import wiring
from gateway.config import default_config
from gateway.model_builder import ModelBuilder
from prefix_index.encoding.bytes_encoder import BytesEncoder
from prefix_index.encoding.protocol import Encoded, Namespace, Prompt
from prefix_index.encoding.ratio import BytesPerToken
from vocabulary.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gateway.models import Model
    from prefix_index.encoding.tokens_encoder import TokensEncoder

SECRET = b"s" * 32


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Tokenizer(WordLevel({"a": 0, "b": 1}, unk_token="a")).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "chat.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    return tmp_path


class Builders:
    def __init__(self) -> None:
        self.fallback = BytesEncoder(SECRET)
        self.made: list[ModelBuilder] = []

    def next(self, folder: Path, before: ModelBuilder | None = None, **more: Any) -> ModelBuilder:
        entry = {"name": "m", "aliases": ["alias"], "encoding": "tokens"}
        files = {"tokenizer": folder / "tokenizer.json", "chat_template": folder / "chat.jinja"}
        config = default_config(models=[{**entry, **files}, {"name": "n"}], **more)
        builder = ModelBuilder(config, SECRET, self.fallback, BytesPerToken(), lambda model, reason: None, before)
        self.made.append(builder)
        return builder


@pytest.fixture
def builders() -> Iterator[Builders]:
    made = Builders()
    yield made
    for builder in made.made:
        builder.close()
    made.fallback.close()


async def encodes(model: Model) -> bool:
    """It still has its threads: chats are encoded there."""
    encoding = model.encoder.encode(Prompt(b'[{"role": "user", "content": "a b"}]', None), Namespace("m"))
    if encoding is None or isinstance(encoding, Encoded):
        return encoding is not None
    return await asyncio.wait_for(encoding, 10) is not None


async def test_an_encoder_whose_files_are_the_same_goes_on(folder: Path, builders: Builders) -> None:
    first = builders.next(folder)
    before = first.configured()["m"]
    second = builders.next(folder, first, limits={"max_attempts": 5})
    after = second.configured()["m"]
    assert after.encoder is before.encoder
    first.close_but(second)
    assert await encodes(after), "the successor has it"
    assert after.state is before.state
    assert after.state.config_id == second.configured()["n"].state.config_id != ""


async def test_an_encoder_of_other_files_is_new_and_the_old_one_ends(folder: Path, builders: Builders) -> None:
    first = builders.next(folder)
    before = first.configured()["m"]
    (folder / "chat.jinja").write_text("{% for m in messages %}{{ m.role }}{{ m.content }}{% endfor %}")
    second = builders.next(folder, first)
    after = second.configured()["m"]
    assert after.encoder is not before.encoder
    assert await encodes(before), "until it is told"
    first.close_but(second)
    assert not await encodes(before)
    assert await encodes(after)


def test_names_aliases_and_routes(folder: Path, builders: Builders) -> None:
    routes = [{"name": "special", "models": ["alias"], "policy": "round_robin"}]
    table = builders.next(folder, routes=routes).configured()
    assert table["m"] is table["alias"]
    assert (table["m"].route, table["m"].policy.name) == ("special", "round_robin")
    assert (table["n"].route, table["n"].encoder) == ("default", builders.fallback)


def test_models_that_only_a_backend_names_keep_their_state_too(folder: Path, builders: Builders) -> None:
    first = builders.next(folder)
    before = first.build("somebody-else's")
    before.state.sequence = 7
    assert builders.next(folder, first).build("somebody-else's").state.sequence == 7


def test_files_that_cannot_be_used_leave_the_running_one_alone(folder: Path, builders: Builders) -> None:
    first = builders.next(folder)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match="model m"):
        builders.next(folder, first)
    assert first.configured()["m"].encoder.name == "tokens"


async def test_a_config_of_which_one_model_fails_ends_the_others_that_it_made(
    folder: Path, builders: Builders, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = builders.next(folder)
    made: list[TokensEncoder] = []
    load = wiring.tokens_encoder

    def noted(*arguments: Any) -> TokensEncoder:
        made.append(load(*arguments))
        return made[-1]

    monkeypatch.setattr(wiring, "tokens_encoder", noted)
    other = folder / "other"
    other.mkdir()
    (other / "tokenizer.json").write_text("{}")
    files = {"encoding": "tokens", "chat_template": folder / "chat.jinja"}
    config = default_config(
        models=[
            {"name": "good", "tokenizer": folder / "tokenizer.json", **files},
            {"name": "bad", "tokenizer": other / "tokenizer.json", **files},
        ]
    )
    with pytest.raises(ConfigError, match="model bad"):
        ModelBuilder(config, SECRET, builders.fallback, BytesPerToken(), lambda model, reason: None, first)
    (good,) = made
    assert good.encode(Prompt(b'[{"role": "user", "content": "a"}]', None), Namespace("m")) is None, "it has ended"
    assert await encodes(first.configured()["m"]), "and what runs goes on"

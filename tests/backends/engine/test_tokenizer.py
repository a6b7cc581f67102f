"""The `tokens` encoding, with a small vocabulary trained on the spot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from backends.engine.encoding import to_ids
from backends.engine.errors import ApiError
from backends.engine.generation import Output
from backends.engine.tokenizer import TokensEncoding

if TYPE_CHECKING:
    from pathlib import Path

    import httpx2

    from tests.backends.engine.conftest import StartEngine

TEMPLATE = """{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>
{% endfor %}{% if tools %}{{ tools | tojson(indent=2) }}{% endif %}
{% if add_generation_prompt %}<|assistant|>{% endif %}"""
TEXT = "some plain words that a small vocabulary learns from this very sentence and another one"
WORDS = TEXT.split()
MESSAGES = [{"role": "user", "content": " ".join(WORDS * 10)}]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2000,
        special_tokens=["<|user|>", "<|assistant|>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([" ".join(WORDS)] * 10 + WORDS * 10, trainer)
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat.jinja").write_text(TEMPLATE)
    return folder / "tokenizer.json", folder / "chat.jinja"


def test_ids_are_the_tokenizers(files: tuple[Path, Path]) -> None:
    encoding = TokensEncoding(*files)
    expected = Tokenizer.from_file(str(files[0])).encode("<|user|>some words<|end|>\n<|assistant|>").ids
    assert to_ids(encoding.chat([{"role": "user", "content": "some words"}], {}).ids) == expected


def test_generated_text_encodes_to_the_generated_ids(files: tuple[Path, Path]) -> None:
    encoding = TokensEncoding(*files)
    output = Output(encoding.vocabulary, 12345)
    assert to_ids(encoding.text(output.text(0, 300).decode()).ids) == to_ids(output.ids(300))


def test_the_template_is_sandboxed_and_its_errors_are_the_clients(files: tuple[Path, Path], tmp_path: Path) -> None:
    for number, source in enumerate(
        ("{{ ''.__class__.__mro__ }}", "{{ raise_exception('no') }}", "{{ messages.append(1) }}")
    ):
        path = tmp_path / f"{number}.jinja"
        path.write_text(source)
        with pytest.raises(ApiError, match="template failed"):
            TokensEncoding(files[0], path).chat(MESSAGES, {})


def test_without_a_template_there_is_no_chat(files: tuple[Path, Path]) -> None:
    with pytest.raises(ApiError, match="no chat template"):
        TokensEncoding(files[0], None).chat(MESSAGES, {})


def test_lone_surrogates_are_encoded_as_something(files: tuple[Path, Path]) -> None:
    assert TokensEncoding(*files).text("a\ud800b").tokens > 0


async def test_turns_are_cached_past_the_prompt(
    start_engine: StartEngine, http: httpx2.AsyncClient, files: tuple[Path, Path]
) -> None:
    engine = await start_engine(tokenizer=files[0], template=files[1])

    async def chat(messages: list[dict[str, str]], **fields: Any) -> dict[str, Any]:
        body = {"messages": messages, "max_tokens": 64, **fields}
        answer = await http.post(f"{engine.url}/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        value: dict[str, Any] = answer.json()
        return value

    first = await chat(MESSAGES)
    counted = await http.post(f"{engine.url}/tokenize", json={"messages": MESSAGES})
    prompt = first["usage"]["prompt_tokens"]
    assert counted.json()["count"] == prompt
    reply = first["choices"][0]["message"]
    second = await chat([*MESSAGES, reply, {"role": "user", "content": "more"}])
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == (prompt + 63) // 16 * 16
    tools = await chat(MESSAGES, tools=[{"type": "function"}])
    assert tools["usage"]["prompt_tokens"] > prompt


async def test_long_prompts_are_encoded_off_the_loop(
    start_engine: StartEngine, http: httpx2.AsyncClient, files: tuple[Path, Path]
) -> None:
    engine = await start_engine(tokenizer=files[0], template=files[1])
    long = {"prompt": "some plain words " * 2000, "max_tokens": 2}
    answers = [
        await http.post(f"{engine.url}/v1/completions", json={**long, **more}) for more in ({}, {}, {"model": "x"})
    ]
    assert [answer.status_code for answer in answers] == [200, 200, 404]
    assert answers[1].json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 1000

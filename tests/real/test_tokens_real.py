"""Token ids as a real engine gives them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from tests.real.llama import NAME
from tests.real.talk import Session
from tests.support.gateway import RunningGateway, running_gateway
from tests.support.scrape import counted

if TYPE_CHECKING:
    from pathlib import Path

    from tests.real.conftest import Front
    from tests.real.llama import LlamaCpp
    from tests.support.tiny_model import TinyModel


def parity(gw: RunningGateway) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = gw.gateway.self_check.status()[0]["parity"]
    return found


async def test_a_model_with_its_own_files_has_the_engines_tokens(
    engines: tuple[LlamaCpp, LlamaCpp], in_front: Front
) -> None:
    async with in_front(*engines) as gw:
        await gw.until(lambda _: len(parity(gw)) == 2)
        assert parity(gw) == [{"backend": "a", "state": "equal"}, {"backend": "b", "state": "equal"}]


async def test_another_template_is_named_with_the_place_where_it_differs(
    engines: tuple[LlamaCpp, LlamaCpp], model: TinyModel, tmp_path: Path
) -> None:
    template = tmp_path / "other.jinja"
    template.write_text("{% for m in messages %}<|im_start|>{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}")
    entry = {
        "name": NAME,
        "encoding": "tokens",
        "tokenizer": str(model.tokenizer),
        "chat_template": str(template),
    }
    async with running_gateway([engines[0].url], models=[entry]) as gw:
        await gw.until(lambda _: bool(parity(gw)))
        (shown,) = parity(gw)
        assert (shown["state"], shown["probe"]) == ("different", "user")
        role = len(Tokenizer.from_file(str(model.tokenizer)).encode("<|im_start|>user").ids)
        assert shown["position"] == role, "up to there both write the same"


async def test_prompts_whose_tokens_are_asked_from_the_engine(engines: tuple[LlamaCpp, LlamaCpp]) -> None:
    entry = {"name": NAME, "encoding": "engine", "block_size": 16, "encode_timeout_ms": 10_000}
    async with running_gateway([engine.url for engine in engines], models=[entry]) as gw:
        await gw.until(lambda gateway: all(one.instance.engine is not None for one in gateway.registry))
        async with gw.client() as client:
            session = Session("asked", system="be brief")
            for _ in range(4):
                await session.turn(client)
        first, *later = session.turns
        assert first.predicted_tokens == 0
        assert {turn.backend for turn in later} == {first.backend}
        for before, turn in zip(session.turns, later, strict=False):
            assert turn.as_predicted(16, before.answer_tokens)
            assert turn.predicted_tokens > 0
        assert counted(gw.gateway, "warmroute_encode_fallback_total") == 0

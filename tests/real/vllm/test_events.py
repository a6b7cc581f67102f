"""What a real vLLM says that it has cached, in the gateway's index: then a prediction is a fact."""

from __future__ import annotations

import asyncio
import random
import uuid
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from tests.real.llama import NAME
from tests.real.replay import recorded, replay
from tests.real.seen import shown
from tests.real.talk import Session, ask, prose
from tests.real.vllm.engine import BLOCK_TOKENS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractAsyncContextManager

    from tests.real.conftest import Front
    from tests.real.vllm.engine import Vllm
    from tests.support.gateway import RunningGateway


def behind_events(in_front: Front, pair: Sequence[Vllm]) -> AbstractAsyncContextManager[RunningGateway]:
    entries = [engine.entry(name) for name, engine in zip("ab", pair, strict=True)]
    return in_front(*entries, block_size=BLOCK_TOKENS)


async def until_exact(gw: RunningGateway) -> None:
    """Once each has said something: a feed that was never heard proves nothing."""
    async with gw.client() as client:
        for _ in range(8):
            await ask(client, unlike_any(80))
    await gw.until(lambda _: all(shown(gw, name)["trust"] == "exact" for name in "ab"), timeout_s=30)


def unlike_any(words: int) -> list[dict[str, Any]]:
    return [{"role": "user", "content": prose(random.Random(uuid.uuid4().hex), words)}]


async def ask_past_the_gateway(engine: Vllm, messages: list[dict[str, Any]]) -> None:
    body = {"model": NAME, "messages": messages, "max_tokens": 1}
    async with httpx2.AsyncClient(base_url=engine.url, trust_env=False, timeout=60) as client:
        assert (await client.post("/v1/chat/completions", json=body)).is_success


async def test_a_prompt_that_came_another_way_is_found_where_it_is(pair: tuple[Vllm, Vllm], in_front: Front) -> None:
    """Nothing but the engine's events can have told."""
    async with behind_events(in_front, pair) as gw, gw.client() as client:
        await until_exact(gw)
        for name, engine in (("a", pair[0]), ("b", pair[1])) * 2:
            messages, before = unlike_any(300), shown(gw, name)["feed"]["blocks"]
            await ask_past_the_gateway(engine, messages)
            await gw.until(lambda _, name=name, before=before: shown(gw, name)["feed"]["blocks"] > before + 10)  # type: ignore[misc]
            turn = await ask(client, messages)
            assert turn.backend == name
            assert turn.predicted_tokens == turn.cached_tokens > 300


async def test_an_emptied_cache_is_known_to_be_empty(pair: tuple[Vllm, Vllm], in_front: Front) -> None:
    async with behind_events(in_front, pair) as gw, gw.client() as client:
        await until_exact(gw)
        messages = unlike_any(300)
        home = (await ask(client, messages)).backend
        engine = pair["ab".index(home)]
        await gw.until(lambda _: shown(gw, home)["feed"]["blocks"] > 10)
        await engine.forget()
        await ask_past_the_gateway(engine, unlike_any(80))  # vLLM tells of it with the next request
        await gw.until(lambda _: shown(gw, home)["feed"]["blocks"] < 10)
        again = await ask(client, messages)
        assert again.predicted_tokens == again.cached_tokens == 0


async def test_sessions_are_predicted_with_their_answers(pair: tuple[Vllm, Vllm], in_front: Front) -> None:
    """Blocks that decoding filled are in the events, too."""
    sessions = [Session(uuid.uuid4().hex) for _ in range(4)]
    async with behind_events(in_front, pair) as gw, gw.client() as client:
        await until_exact(gw)
        for _ in range(4):
            for session in sessions:
                await session.turn(client, answer_tokens=70)
        turns = [turn for session in sessions for turn in session.turns]
        assert [turn for turn in turns if turn.predicted_tokens != turn.cached_tokens] == []
        assert all(len({turn.backend for turn in session.turns}) == 1 for session in sessions)
        assert all(shown(gw, name)["trust"] == "exact" for name in "ab")


async def test_recorded_agents_are_predicted(pair: tuple[Vllm, Vllm], in_front: Front) -> None:
    for engine in pair:
        await engine.forget()
    async with behind_events(in_front, pair) as gw, gw.client() as client:
        await until_exact(gw)
        turns = await replay(client, recorded(most_tokens=7000, sessions=24), sessions_at_once=6)
        surprises = [turn for turn in turns if turn.predicted_tokens != turn.cached_tokens]
        assert len(turns) > 100
        assert len(surprises) <= 0.01 * len(turns), surprises
        assert all(shown(gw, name)["trust"] == "exact" for name in "ab")
        gw.assert_at_rest()


@pytest.mark.parametrize(
    ("changed", "block_size", "cause"),
    [({"topic": "others"}, BLOCK_TOKENS, "wrong_topic"), ({}, BLOCK_TOKENS // 2, "block_size")],
    ids=["topic", "block size"],
)
async def test_what_is_set_wrong_is_named(
    changed: dict[str, Any], block_size: int, cause: str, pair: tuple[Vllm, Vllm], in_front: Front
) -> None:
    session = Session(uuid.uuid4().hex)
    async with in_front(pair[0].entry("a", **changed), block_size=block_size) as gw, gw.client() as client:
        async with asyncio.timeout(60):
            while (suspect := shown(gw, "a")["suspect"]) is None or suspect["cause"] != cause:
                await session.turn(client, words=5, answer_tokens=2)
                await asyncio.sleep(0.2)
        assert shown(gw, "a")["trust"] != "exact"

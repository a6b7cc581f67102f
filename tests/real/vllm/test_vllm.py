"""The estimate against what a real vLLM reports."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING

from tests.real.llama import NAME
from tests.real.replay import recorded, replay
from tests.real.seen import compared, shown
from tests.real.talk import Session
from tests.real.vllm.engine import BLOCK_TOKENS, BLOCKS

if TYPE_CHECKING:
    from tests.real.conftest import Front
    from tests.real.vllm.engine import Vllm
    from tests.support.gateway import RunningGateway


async def test_what_the_gateway_sees_of_an_engine(pair: tuple[Vllm, Vllm], in_front: Front) -> None:
    async with in_front(*pair, block_size=BLOCK_TOKENS) as gw:
        await gw.until(lambda gateway: all(each.instance.engine_load is not None for each in gateway.registry))
        for seen in (shown(gw, "a"), shown(gw, "b")):
            assert (seen["state"], seen["models"]) == ("up", [NAME])
            assert seen["capacity_tokens"] == BLOCKS * BLOCK_TOKENS
            assert (seen["engine"]["name"], seen["engine"]["block_size"]) == ("vllm", BLOCK_TOKENS)
            assert (seen["engine"]["running"], seen["engine"]["waiting"]) == (0, 0)
        assert await compared(gw) == [{"backend": name, "state": "equal"} for name in ("a", "b")]


async def test_sessions_stay_where_their_cache_is(pair: tuple[Vllm, Vllm], in_front: Front) -> None:
    sessions = [Session(uuid.uuid4().hex) for _ in range(6)]

    async def converse(gw: RunningGateway, session: Session) -> None:
        async with gw.client() as client:
            for _ in range(5):
                await session.turn(client)

    async with in_front(*pair, block_size=BLOCK_TOKENS) as gw:
        await asyncio.gather(*(converse(gw, session) for session in sessions))
        for session in sessions:
            assert len({turn.backend for turn in session.turns}) == 1
            assert not session.surprises(BLOCK_TOKENS)
        assert {session.turns[0].backend for session in sessions} == {"a", "b"}
        gw.assert_at_rest()


async def test_the_prediction_holds_on_recorded_agents(pair: tuple[Vllm, Vllm], in_front: Front) -> None:
    for engine in pair:
        await engine.forget()
    async with in_front(*pair, block_size=BLOCK_TOKENS) as gw, gw.client() as client:
        turns = await replay(client, recorded(most_tokens=7000, sessions=24), sessions_at_once=6)
        surprises = [turn for turn in turns if turn.predicted_tokens != turn.cached_tokens]
        assert len(turns) > 100
        assert len(surprises) <= 0.01 * len(turns), surprises
        assert sum(turn.cached_tokens for turn in turns) > 0.7 * sum(turn.prompt_tokens for turn in turns)
        gw.assert_at_rest()

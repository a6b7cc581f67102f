"""What an engine loses: its cache with its life, and a part of it when more sessions come than it has room for."""

from __future__ import annotations

import asyncio
import random
import uuid
from typing import TYPE_CHECKING

import pytest

from tests.real.seen import shown
from tests.real.talk import Session, prose

if TYPE_CHECKING:
    from backends.backend import Backend
    from tests.real.conftest import Front, StartEngine
    from tests.support.gateway import RunningGateway

BLOCK_TOKENS = 16


def backend(gw: RunningGateway, name: str) -> Backend:
    return next(one for one in gw.gateway.registry if one.name == name)


async def until_state(gw: RunningGateway, name: str, state: str) -> None:
    await gw.until(lambda _: backend(gw, name).health.state.value == state)


async def test_an_engine_that_was_restarted_gets_no_credit(start_engine: StartEngine, in_front: Front) -> None:
    a, b = await asyncio.gather(asyncio.to_thread(start_engine), asyncio.to_thread(start_engine))
    async with in_front(a, b) as gw, gw.client() as client:
        sessions = [Session(uuid.uuid4().hex) for _ in range(4)]
        for _ in range(2):
            for session in sessions:
                await session.turn(client)
        lost = next(session for session in sessions if session.turns[-1].backend == "a")
        before = backend(gw, "a").instance.id
        await asyncio.to_thread(a.kill)
        await until_state(gw, "a", "down")
        moved = await lost.turn(client)
        assert moved.backend == "b"
        again = await asyncio.to_thread(start_engine, port=a.port)
        await until_state(gw, "a", "up")
        assert backend(gw, "a").instance.id != before
        await asyncio.to_thread(b.kill)
        await until_state(gw, "b", "down")
        cold = await lost.turn(client)
        assert (cold.backend, cold.predicted_tokens, cold.cached_tokens) == ("a", 0, 0)
        warm = await lost.turn(client)
        assert warm.predicted_tokens > 0
        assert warm.as_predicted(BLOCK_TOKENS, cold.answer_tokens)
        assert await again.busy_slots() == 0
        gw.assert_at_rest()


async def test_a_request_under_way_survives_the_death_of_its_engine_before_the_first_token(
    start_engine: StartEngine, in_front: Front
) -> None:
    """The other engine answers it; nobody is told."""
    a, b = await asyncio.gather(asyncio.to_thread(start_engine), asyncio.to_thread(start_engine))
    async with in_front(a, b, health={"interval_s": 60}) as gw, gw.client() as client:
        session = Session(uuid.uuid4().hex)
        home = (await session.turn(client)).backend
        await asyncio.to_thread((a if home == "a" else b).kill)
        assert (await session.turn(client)).backend != home
        gw.assert_at_rest()


@pytest.mark.parametrize("told_tokens", [4000, None], ids=["told too much", "told nothing"])
async def test_an_engine_with_too_little_room_is_found_out(
    told_tokens: int | None, start_engine: StartEngine, in_front: Front
) -> None:
    """Four sessions take turns on an engine that holds two: each turn finds that the others took its place."""
    engine = await asyncio.to_thread(start_engine, slots=2, cache_mib=0)
    sessions = [Session(seed, prose(random.Random(seed), 120)) for seed in (uuid.uuid4().hex for _ in range(4))]
    entry = {"name": "a", "url": engine.url, "capacity_tokens": told_tokens}
    async with in_front({name: value for name, value in entry.items() if value}) as gw, gw.client() as client:
        for _ in range(4):
            turn = await sessions[0].turn(client, words=10)
        assert turn.as_predicted(BLOCK_TOKENS, turn.answer_tokens), "alone it finds its cache"
        claims = []
        for _ in range(16):
            turns = [await session.turn(client, words=2, answer_tokens=1) for session in sessions]
            claims.append(sum(turn.predicted_tokens for turn in turns) / sum(turn.prompt_tokens for turn in turns))
        assert max(claims) > 0.8, "it was believed"
        assert sum(claims[4:]) < 0.8 * max(claims) * len(claims[4:]), "again and again, but not for ever"
        if told_tokens is not None:
            assert sum(claims[-3:]) < 0.5 * 3, "its size was corrected"
        assert shown(gw, "a")["predictions"]["bias"] < 0.5
        assert shown(gw, "a")["suspect"]["cause"] in ("capacity", "cold_restart")

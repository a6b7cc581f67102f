"""Turns of many sessions on two real engines: each stays with its cache, and the gateway knows how much that holds."""

from __future__ import annotations

import asyncio
import json
import random
import uuid
from array import array
from typing import TYPE_CHECKING

from prefix_index.encoding.chat_text import template_messages, template_tools
from prefix_index.encoding.template import ChatTemplate
from prefix_index.encoding.tokenizer import CheckedTokenizer
from tests.real.replay import apart, recorded, replay
from tests.real.talk import Session, prose
from tests.support.scrape import counted

if TYPE_CHECKING:
    from tests.real.conftest import Front, StartEngine
    from tests.real.llama import LlamaCpp
    from tests.support.gateway import RunningGateway

BLOCK_TOKENS = 16
ODD = (
    prose(random.Random("ids"), 300),
    "  two  spaces\t\r\n\n é e\u0301 ß 日本語 👩\u200d💻 1234567 don't WON'T \x01 <|im_start|>user fi\u00ad",
    "x" * 300,
    "\n" * 40,
    "naïve  <|im_end|>",
)


async def converse(gw: RunningGateway, session: Session, turns: int) -> None:
    async with gw.client() as client:
        for _ in range(turns):
            await session.turn(client)


async def test_sessions_stay_where_their_cache_is(engines: tuple[LlamaCpp, LlamaCpp], in_front: Front) -> None:
    """No session id is sent: they are known by their prompts."""
    sessions = [Session(uuid.uuid4().hex) for _ in range(6)]
    async with in_front(*engines) as gw:
        await asyncio.gather(*(converse(gw, session, 6) for session in sessions))
        for session in sessions:
            assert len({turn.backend for turn in session.turns}) == 1
            for before, turn in zip(session.turns, session.turns[1:], strict=False):
                assert turn.cached_tokens >= before.prompt_tokens + before.answer_tokens - 1
        assert {session.turns[0].backend for session in sessions} == {"a", "b"}
        gw.assert_at_rest()


async def test_the_prediction_is_what_the_engine_reports(engines: tuple[LlamaCpp, LlamaCpp], in_front: Front) -> None:
    sessions = [Session(uuid.uuid4().hex) for _ in range(8)]
    async with in_front(*engines) as gw, gw.client() as client:
        for _ in range(6):
            for session in sessions:
                await session.turn(client)
        turns = [turn for session in sessions for turn in session.turns]
        surprises = [turn for session in sessions for turn in session.surprises(BLOCK_TOKENS)]
        assert len(surprises) <= 0.05 * len(turns), surprises
        assert sum(turn.predicted_tokens for turn in turns) > 0.5 * sum(turn.prompt_tokens for turn in turns)
        predicted = counted(gw.gateway, "warmroute_cached_tokens_predicted_total")
        reported = counted(gw.gateway, "warmroute_cached_tokens_reported_total")
        assert predicted == sum(turn.predicted_tokens for turn in turns)
        assert reported == sum(turn.cached_tokens for turn in turns)


async def test_the_prediction_holds_on_recorded_agents(start_engine: StartEngine, in_front: Front) -> None:
    """With their tool calls and results. Of two sessions that share a beginning, llama.cpp gives the one the cache of
    the other (next test), so these share none."""
    a, b = await asyncio.gather(asyncio.to_thread(start_engine), asyncio.to_thread(start_engine))
    async with in_front(a, b) as gw, gw.client() as client:
        turns = await replay(client, apart(recorded(most_tokens=6000, sessions=8)), sessions_at_once=6)
        surprises = [turn for turn in turns if not turn.as_predicted(BLOCK_TOKENS)]
        assert len(turns) > 30
        assert len(surprises) <= 0.01 * len(turns), surprises
        gw.assert_at_rest()


async def test_a_beginning_that_sessions_share_is_found(start_engine: StartEngine, in_front: Front) -> None:
    """The newcomer takes over the cache of the other, which then has the shared part alone."""
    engine = await asyncio.to_thread(start_engine)
    shared = prose(random.Random("shared"), 150)
    old, new = Session(uuid.uuid4().hex, shared), Session(uuid.uuid4().hex, shared)
    async with in_front(engine) as gw, gw.client() as client:
        await old.turn(client, words=100)
        first = await new.turn(client)
        assert first.predicted_tokens > 150
        assert first.as_predicted(BLOCK_TOKENS)
        back = await old.turn(client)
        assert first.cached_tokens <= back.cached_tokens < back.predicted_tokens - 100, "the claim was too high"
        assert not (await new.turn(client)).as_predicted(BLOCK_TOKENS)


async def test_the_engine_reads_the_ids_that_the_gateway_reads(engines: tuple[LlamaCpp, LlamaCpp]) -> None:
    engine = engines[0]
    template = ChatTemplate(engine.model.chat_template.read_text())
    tokenizer = CheckedTokenizer(engine.model.tokenizer.read_text(), on_mismatch=lambda reason: None)
    tools = [{"type": "function", "function": {"name": "f", "description": '<é> "it\'s"', "parameters": {"a": [1.5]}}}]
    agent = recorded(most_tokens=5000, sessions=2)[0]
    prompts = [[{"role": "system", "content": text}, {"role": "user", "content": text[::-1]}] for text in ODD]
    for messages in [*prompts, agent.request(len(agent.turns) - 1)]:
        raw = json.dumps(messages).encode()
        read = template_messages(raw, template.wants_parts)
        assert read is not None
        rendered = template.render(read, template_tools(json.dumps(tools).encode()), {}, len(raw))
        assert rendered is not None
        body = {"messages": messages, "tools": tools}
        assert (await engine.ask("/apply-template", body))["prompt"] == rendered
        ids = (await engine.ask("/tokenize", {"content": rendered, "parse_special": True}))["tokens"]
        assert array("I", ids).tobytes() == tokenizer.ids(rendered)

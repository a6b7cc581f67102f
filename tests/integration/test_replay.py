"""A small part of the recorded agent sessions, turn by turn through the real client, `warm` beside `round_robin`."""

from __future__ import annotations

from contextlib import AsyncExitStack

from backends.engine.command import EngineOptions, SimulatedEngine
from tests.bench.replay import MODEL, TOKENS_PER_BLOCK, ReplayResult, replay
from tests.bench.transcripts import Transcript, interleave, load, mean_live_blocks
from tests.support.gateway import running_gateway

ENGINES = 4
SESSIONS_AT_ONCE = 16
SEED = 0
BOUND = 0.5


def small_part() -> list[Transcript]:
    """Some of each kind, and the first turns of these."""
    found = load()
    customer_service, software = found[:10], found[-10:]
    return [Transcript(t.messages, t.turns[:8]) for pair in zip(customer_service, software, strict=True) for t in pair]


async def run(policy: str, transcripts: list[Transcript], cache_blocks: int) -> ReplayResult:
    options = EngineOptions(models=(MODEL,), speed=50.0, kv_tokens=cache_blocks * TOKENS_PER_BLOCK)
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(SimulatedEngine(options)) for _ in range(ENGINES)]
        routes = [{"name": "replay", "policy": policy}]
        gw = await stack.enter_async_context(running_gateway([engine.url for engine in engines], routes=routes))
        result = await replay(gw.url + "/v1", transcripts, SESSIONS_AT_ONCE, max_tokens=8)
        await gw.until(lambda _: gw.in_flight == 0)
        gw.assert_at_rest()
        return result


async def test_warm_prefills_at_most_half_of_what_round_robin_does() -> None:
    transcripts = small_part()
    order = list(interleave([len(t.turns) for t in transcripts], SESSIONS_AT_ONCE, SEED))
    cache_blocks = round(mean_live_blocks(transcripts, order)[0] / 3)
    results = {policy: await run(policy, transcripts, cache_blocks) for policy in ("warm", "round_robin")}
    for result in results.values():
        assert result.errors == 0, result.first_errors
        assert result.requests == len(order)
    assert results["warm"].prompt_tokens == results["round_robin"].prompt_tokens, "the same requests"
    assert results["round_robin"].cached_tokens > 0, "engines that cache"
    assert results["warm"].uncached_tokens <= BOUND * results["round_robin"].uncached_tokens

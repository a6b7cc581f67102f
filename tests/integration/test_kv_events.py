"""KV events end to end: simulated engines, their real ZMQ sockets, and a gateway that believes them."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from backends.engine.command import EngineOptions, SimulatedEngine
from gateway import feeds, reported
from gateway.status import status
from tests.support.event_proxy import EventProxy
from tests.support.gateway import RunningGateway, running_gateway
from tests.support.scrape import counted
from vocabulary import Trust

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

BLOCK = 16


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting times a tenth of the real ones."""
    monkeypatch.setattr(feeds, "SWEEP_S", 0.1)
    monkeypatch.setattr(reported, "GRACE_S", 0.1)


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """Never asked: prompts come as ids."""
    path = tmp_path / "tokenizer.json"
    Tokenizer(WordLevel({"a": 0, "b": 1}, unk_token="a")).save(str(path))
    return path


def ids(first: int, blocks: int) -> list[int]:
    return list(range(first, first + blocks * BLOCK))


class Fleet:
    """A gateway in front of engines a, b, ... that publish events."""

    def __init__(self, gw: RunningGateway, engines: dict[str, SimulatedEngine]) -> None:
        self.gw = gw
        self.engines = engines

    async def ask(self, prompt: list[int], **fields: Any) -> tuple[str, int, int]:
        """(backend, cached tokens as predicted, as reported)."""
        async with self.gw.client() as client:
            body = {"model": "demo", "prompt": prompt, "max_tokens": 1, **fields}
            response = await client.ask(body, path="/v1/completions")
            answer = await response.json()
            assert response.status == 200, answer
            details = answer["usage"]["prompt_tokens_details"] or {}
            predicted = int(response.header("x-warmroute-cached-tokens") or 0)
            return str(response.header("x-warmroute-backend")), predicted, int(details.get("cached_tokens", 0))

    def feed(self, name: str = "a") -> dict[str, Any]:
        return dict(next(b for b in status(self.gw.gateway)["backends"] if b["name"] == name)["feed"])

    def trust(self, name: str = "a") -> Trust:
        gateway = self.gw.gateway
        return next(gateway.fleet.of(b.instance).trust for b in gateway.registry if b.name == name)

    def told(self, name: str = "a") -> int:
        """Blocks in the index on the word of the engine."""
        gateway = self.gw.gateway
        instance = next(b.instance.id for b in gateway.registry if b.name == name)
        holders = gateway.index.stats().holders
        return sum(count for holder, count in holders.items() if holder.instance == instance)

    async def exact(self, name: str = "a") -> None:
        await self.gw.until(lambda _: self.trust(name) is Trust.EXACT)

    async def told_of(self, blocks: int, name: str = "a") -> None:
        await self.gw.until(lambda _: self.told(name) == blocks)

    def forget_predictions(self) -> None:
        """What is left is the engine's word."""
        gateway = self.gw.gateway
        for backend in gateway.registry:
            cache = gateway.fleet.of(backend.instance).reported
            assert cache is not None
            cache.forget_predictions()


def source(engine: SimulatedEngine, **fields: Any) -> dict[str, Any]:
    return {"endpoint": engine.events_endpoint, "replay_endpoint": engine.replay_endpoint, **fields}


@asynccontextmanager
async def fleet_of(
    tokenizer: Path,
    count: int = 1,
    *,
    model: dict[str, Any] | None = None,
    events: dict[str, Any] | None = None,
    replay: bool = True,
    wall_clock: Callable[[], float] = time.time,
    **options: Any,
) -> AsyncIterator[Fleet]:
    """`events` goes over the config of each feed; None as value leaves the key out."""
    async with AsyncExitStack() as stack:
        engines = {}
        for number in range(count):
            chosen = {"speed": 1000.0, "kv_events_port": 0, "kv_events_replay_port": 0, **options}
            engine = await stack.enter_async_context(SimulatedEngine(EngineOptions(**chosen), wall_clock=wall_clock))
            engines[chr(ord("a") + number)] = engine
        entries = []
        for name, engine in engines.items():
            feed = {**source(engine), **(events or {})}
            feed = {key: value for key, value in feed.items() if value is not None and (replay or "replay" not in key)}
            entries.append({"name": name, "url": engine.url, "kv_events": feed})
        entry = {
            "name": "demo",
            "encoding": "tokens",
            "tokenizer": str(tokenizer),
            "block_size": BLOCK,
            **(model or {}),
        }
        gw = await stack.enter_async_context(running_gateway(entries, models=[entry]))
        yield Fleet(gw, engines)


async def test_the_engine_s_word_is_what_it_reports(tokenizer: Path) -> None:
    async with fleet_of(tokenizer, 2) as fleet:
        await fleet.exact("a")
        await fleet.exact("b")
        first, predicted, reported = await fleet.ask(ids(1, 8))
        assert (predicted, reported) == (0, 0)
        await fleet.told_of(8, first)
        fleet.forget_predictions()
        for blocks in (8, 12, 5):
            backend, predicted, reported = await fleet.ask([*ids(1, blocks), 7])
            assert backend == first
            assert predicted == reported > 0
            await fleet.told_of(max(blocks, 8) if blocks != 5 else 12, first)
            fleet.forget_predictions()
        assert counted(fleet.gw.gateway, "warmroute_index_trust", backend="a", state="exact") == 1
        assert counted(fleet.gw.gateway, "warmroute_kv_events_total", backend=first, kind="stored") >= 2
        assert fleet.feed(first)["state"] == "live"


async def test_what_was_cached_before_the_gateway_came_is_known(tokenizer: Path) -> None:
    """O42's other side: a gateway that restarts finds the caches as they are."""
    options = EngineOptions(speed=1000.0, kv_events_port=0, kv_events_replay_port=0)
    async with SimulatedEngine(options) as engine, httpx2.AsyncClient() as http:
        body = {"prompt": ids(1, 8), "max_tokens": 1}
        assert (await http.post(f"{engine.url}/v1/completions", json=body)).status_code == 200
        entry = {"name": "demo", "encoding": "tokens", "tokenizer": str(tokenizer)}
        backend = {"name": "a", "url": engine.url, "kv_events": source(engine)}
        async with running_gateway([backend], models=[entry]) as gw:
            fleet = Fleet(gw, {"a": engine})
            await fleet.told_of(8)
            await fleet.exact()
            assert await fleet.ask([*ids(1, 8), 1]) == ("a", 8 * BLOCK, 8 * BLOCK)


async def test_a_prediction_covers_the_time_until_the_engine_tells(tokenizer: Path) -> None:
    async with fleet_of(tokenizer, speed=20.0) as fleet:
        await fleet.exact()
        long = ids(1, 200)
        slow = asyncio.create_task(fleet.ask(long))
        await fleet.gw.until(lambda _: fleet.gw.in_flight == 1)
        assert fleet.told() == 0
        _, predicted, _ = await fleet.ask([*long, 1])
        assert predicted == len(long)
        await slow


async def test_o35_a_restart_leaves_nothing_and_is_followed(tokenizer: Path) -> None:
    times = [1000.0]
    async with fleet_of(tokenizer, wall_clock=lambda: times[-1]) as fleet:
        await fleet.exact()
        await fleet.ask(ids(1, 8))
        await fleet.told_of(8)
        (backend,) = fleet.gw.gateway.registry
        await fleet.gw.until(lambda _: backend.instance.engine_load is not None)
        before = backend.instance.id
        times.append(2000.0)
        fleet.engines["a"].restart()
        await fleet.gw.until(lambda g: backend.instance.id != before and g.ready)
        assert fleet.told() == 0
        await fleet.exact()
        assert await fleet.ask(ids(1, 8)) == ("a", 0, 0)
        await fleet.told_of(8)
        fleet.forget_predictions()
        assert await fleet.ask([*ids(1, 8), 1]) == ("a", 8 * BLOCK, 8 * BLOCK)


async def test_a_new_life_is_seen_in_the_sequence_alone(tokenizer: Path) -> None:
    """Before any probe has told of the restart."""
    async with fleet_of(tokenizer) as fleet:
        await fleet.exact()
        for number in range(20):
            await fleet.ask(ids(1000 * number, 2))
        await fleet.told_of(40)
        fleet.gw.gateway.prober.drop(next(iter(fleet.gw.gateway.registry)))
        fleet.engines["a"].restart()
        for number in range(2):
            await fleet.ask(ids(50_000 + 1000 * number, 3))
        await fleet.told_of(6)
        await fleet.exact()


async def test_o36_lost_messages_are_replayed(tokenizer: Path) -> None:
    async with fleet_of(tokenizer) as fleet:
        await fleet.exact()
        await fleet.ask(ids(1, 4))
        await fleet.told_of(4)
        fleet.engines["a"].set_fault("lose_events", count=2)
        await fleet.ask(ids(1, 6))
        await fleet.ask(ids(5000, 4))
        await fleet.ask(ids(9000, 4))
        await fleet.told_of(14)
        await fleet.exact()
        fleet.forget_predictions()
        _, predicted, reported = await fleet.ask([*ids(1, 6), 1])
        assert predicted == reported == 6 * BLOCK
        assert fleet.feed()["gaps"] == 1
        assert fleet.feed()["holes"] == 0
        gateway = fleet.gw.gateway
        assert counted(gateway, "warmroute_kv_event_gaps_total", backend="a") == 1
        assert counted(gateway, "warmroute_kv_replays_total", backend="a", outcome="filled") == 2


async def test_o36_a_hole_drops_what_was_known(tokenizer: Path) -> None:
    """Without a replay endpoint nobody can tell what was missed."""
    async with fleet_of(tokenizer, replay=False) as fleet:
        await fleet.gw.until(lambda _: fleet.feed()["state"] == "live")
        await fleet.ask(ids(1, 4))
        await fleet.told_of(4)
        await fleet.exact()
        fleet.engines["a"].set_fault("lose_events", count=1)
        await fleet.ask(ids(5000, 4))
        await fleet.ask(ids(9000, 3))
        await fleet.told_of(3)
        assert fleet.trust() is Trust.ESTIMATED
        assert fleet.feed()["holes"] == 1
        _, predicted, _ = await fleet.ask([*ids(5000, 4), 1])
        assert predicted == 4 * BLOCK, "what was sent there is assumed again"


async def test_a_connection_that_breaks_is_made_up_for(tokenizer: Path) -> None:
    async with AsyncExitStack() as stack:
        options = EngineOptions(speed=1000.0, kv_events_port=0, kv_events_replay_port=0)
        engine = await stack.enter_async_context(SimulatedEngine(options))
        async with EventProxy(str(engine.events_endpoint)) as proxy:
            model = {"name": "demo", "encoding": "tokens", "tokenizer": str(tokenizer)}
            feed = source(engine, endpoint=proxy.endpoint)
            async with running_gateway([{"name": "a", "url": engine.url, "kv_events": feed}], models=[model]) as gw:
                fleet = Fleet(gw, {"a": engine})
                await fleet.exact()
                await fleet.ask(ids(1, 4))
                await fleet.told_of(4)
                proxy.break_off()
                await gw.until(lambda _: fleet.feed()["state"] == "connecting")
                await fleet.ask(ids(5000, 4))
                await proxy.come_back()
                await fleet.told_of(8)
                await fleet.exact()
                assert fleet.feed()["last_sequence"] == 1


async def test_o43_a_reset_of_the_cache_is_followed(tokenizer: Path) -> None:
    async with fleet_of(tokenizer) as fleet, httpx2.AsyncClient() as http:
        await fleet.exact()
        await fleet.ask(ids(1, 8))
        await fleet.told_of(8)
        assert (await http.post(f"{fleet.engines['a'].url}/reset_prefix_cache")).status_code == 200
        await fleet.ask(ids(5000, 3))  # the event comes with the next step
        await fleet.told_of(3)
        assert counted(fleet.gw.gateway, "warmroute_kv_events_total", backend="a", kind="cleared") == 1
        assert fleet.trust() is Trust.EXACT
        assert await fleet.ask(ids(1, 8)) == ("a", 0, 0)


async def test_what_the_engine_evicts_is_gone(tokenizer: Path) -> None:
    async with fleet_of(tokenizer, kv_tokens=20 * BLOCK) as fleet:
        await fleet.exact()
        await fleet.ask(ids(1, 10))
        await fleet.told_of(10)
        await fleet.ask(ids(5000, 15))
        await fleet.gw.until(lambda g: counted(g, "warmroute_kv_events_total", backend="a", kind="removed") > 0)
        await fleet.told_of(fleet.engines["a"].core.cache.cached)
        fleet.forget_predictions()
        _, predicted, reported = await fleet.ask([*ids(1, 10), 1])
        assert predicted == reported < 10 * BLOCK


async def test_o30_another_topic_is_noticed(tokenizer: Path) -> None:
    """Connected, replayed, and then nothing: said as `silent`, and not believed."""
    async with fleet_of(tokenizer, events={"topic": "other"}) as fleet:
        await fleet.exact()

        async def silent() -> None:
            number = 0
            while fleet.feed()["state"] != "silent":
                number += 1
                await fleet.ask(ids(number * 1000, 4))
                await asyncio.sleep(0.05)

        await asyncio.wait_for(silent(), 60)
        await fleet.gw.until(lambda _: fleet.trust() is Trust.BLIND)
        assert fleet.told() == 0
        assert status(fleet.gw.gateway)["backends"][0]["suspect"]["cause"] == "wrong_topic"


async def test_o34_another_block_size_is_said(tokenizer: Path) -> None:
    async with fleet_of(tokenizer, model={"block_size": 32}) as fleet:
        await fleet.gw.until(lambda _: fleet.feed()["state"] == "live")
        await fleet.ask(ids(1, 8))
        await fleet.gw.until(lambda _: fleet.feed()["state"] == "block_size")
        assert fleet.feed()["reason"] == "its blocks have 16 tokens, block_size of its model is 32"
        assert fleet.trust() is Trust.ESTIMATED
        assert status(fleet.gw.gateway)["backends"][0]["suspect"]["cause"] == "block_size"
        _, predicted, reported = await fleet.ask([*ids(1, 8), 1])
        assert predicted == reported == 8 * BLOCK, "as without events"


async def test_o33_a_salt_is_a_cache_of_its_own(tokenizer: Path) -> None:
    async with fleet_of(tokenizer) as fleet:
        await fleet.exact()
        await fleet.ask(ids(1, 8), cache_salt="one")
        await fleet.told_of(8)
        fleet.forget_predictions()
        assert await fleet.ask([*ids(1, 8), 1]) == ("a", 0, 0)
        assert await fleet.ask([*ids(1, 8), 1], cache_salt="two") == ("a", 0, 0)
        assert await fleet.ask([*ids(1, 8), 1], cache_salt="one") == ("a", 8 * BLOCK, 8 * BLOCK)


async def test_o31_an_adapter_is_a_cache_of_its_own(tokenizer: Path) -> None:
    async with fleet_of(tokenizer, adapters=("sql",), model={"name": "demo"}) as fleet:
        await fleet.exact()
        await fleet.ask(ids(1, 8))
        await fleet.told_of(8)
        fleet.forget_predictions()
        _, predicted, reported = await fleet.ask([*ids(1, 8), 1], model="sql")
        assert (predicted, reported) == (0, 0)
        await fleet.told_of(16)


async def test_o38_a_backend_that_leaves_leaves_nothing(tokenizer: Path) -> None:
    async with fleet_of(tokenizer, 2) as fleet:
        await fleet.exact("a")
        await fleet.ask(ids(1, 8))
        await fleet.ask(ids(1, 8))
        engine = fleet.engines["b"]
        rest = {"name": "b", "url": engine.url, "kv_events": source(engine)}
        assert (await fleet.gw.reload([rest])).applied
        await fleet.gw.until(lambda g: len(g.registry) == 1)
        holders = fleet.gw.gateway.index.stats().holders
        kept = next(iter(fleet.gw.gateway.registry)).instance.id
        assert {holder.instance for holder in holders} <= {kept, -2 * kept, -2 * kept - 1}


async def test_a_reload_begins_and_ends_a_feed(tokenizer: Path) -> None:
    async with fleet_of(tokenizer) as fleet:
        engine = fleet.engines["a"]
        await fleet.exact()
        await fleet.ask(ids(1, 8))
        await fleet.told_of(8)
        entry = {"name": "a", "url": engine.url}
        assert (await fleet.gw.reload([entry])).applied
        assert next(iter(status(fleet.gw.gateway)["backends"]))["feed"] is None
        assert fleet.trust() is Trust.ESTIMATED
        await fleet.ask(ids(1, 8))
        assert await fleet.ask([*ids(1, 8), 1]) == ("a", 8 * BLOCK, 8 * BLOCK)
        assert (await fleet.gw.reload([{**entry, "kv_events": source(engine)}])).applied
        await fleet.exact()
        await fleet.told_of(8)

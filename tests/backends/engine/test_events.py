"""KV events as a subscriber gets them."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import zmq
import zmq.asyncio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx2

    from backends.engine.command import SimulatedEngine
    from tests.backends.engine.conftest import StartEngine

Batch = tuple[bytes, int, list[dict[str, Any]]]
IDS = list(range(100, 170))


class Feed:
    """A subscriber and a replay client of one engine."""

    def __init__(self, context: zmq.asyncio.Context, engine: SimulatedEngine) -> None:
        self.sub = context.socket(zmq.SUB)
        self.sub.setsockopt(zmq.SUBSCRIBE, b"")
        self.sub.connect(str(engine.events_endpoint))
        self.dealer = context.socket(zmq.DEALER)
        self.dealer.connect(str(engine.replay_endpoint))

    async def next(self) -> Batch:
        topic, sequence, payload = await asyncio.wait_for(self.sub.recv_multipart(), 20)
        stamp, events, rank = msgspec.msgpack.decode(payload)
        assert stamp > 0
        assert rank == 0
        return topic, int.from_bytes(sequence, "big"), events

    async def replay(self, start: int) -> list[int]:
        await self.dealer.send_multipart([b"", start.to_bytes(8, "big")])
        sequences: list[int] = []
        while True:
            empty, _, sequence, payload = await asyncio.wait_for(self.dealer.recv_multipart(), 20)
            assert empty == b""
            if sequence == b"\xff" * 8:
                assert payload == b""
                return sequences
            assert len(msgspec.msgpack.decode(payload)) == 3
            sequences.append(int.from_bytes(sequence, "big"))


@asynccontextmanager
async def subscribed(engine: SimulatedEngine, http: httpx2.AsyncClient) -> AsyncIterator[Feed]:
    """Ready when a first batch came through: a PUB socket drops what it sends before a subscription arrives."""
    context = zmq.asyncio.Context()
    try:
        feed = Feed(context, engine)
        for probe in range(1000):
            await generate(http, engine, [probe] * 16)
            if await feed.sub.poll(20):
                break
        engine.restart()
        while await feed.sub.poll(20):
            await feed.sub.recv_multipart()
        yield feed
    finally:
        context.destroy(linger=0)


async def generate(http: httpx2.AsyncClient, engine: SimulatedEngine, prompt: list[int], **fields: Any) -> None:
    for attempt in range(2):  # the pooled connection dies with a restart
        try:
            answer = await http.post(f"{engine.url}/v1/completions", json={"prompt": prompt, "max_tokens": 1, **fields})
            assert answer.status_code == 200
            return
        except Exception:
            if attempt:
                raise


async def with_events(start_engine: StartEngine, **options: Any) -> SimulatedEngine:
    return await start_engine(kv_events_port=0, kv_events_replay_port=0, kv_events_topic="kv@demo", **options)


async def test_a_prompt_is_stored_as_vllm_says_it(start_engine: StartEngine, http: httpx2.AsyncClient) -> None:
    engine = await with_events(start_engine, adapters=("lora",))
    async with subscribed(engine, http) as feed:
        await generate(http, engine, IDS[:40], cache_salt="salt", model="lora")
        topic, sequence, (stored,) = await feed.next()
        assert (topic, sequence) == (b"kv@demo", 0)
        first, second = stored.pop("block_hashes")
        assert all(0 <= block < 2**64 for block in (first, second))
        assert stored == {
            "type": "BlockStored",
            "parent_block_hash": None,
            "token_ids": IDS[:32],
            "block_size": 16,
            "lora_id": 1,
            "medium": "GPU",
            "lora_name": "lora",
            "extra_keys": [["lora", "salt"], ["lora"]],
            "group_idx": 0,
            "kv_cache_spec_kind": "full_attention",
        }
        await generate(http, engine, IDS[:49], cache_salt="salt", model="lora")
        _, sequence, (child,) = await feed.next()
        assert (sequence, child["parent_block_hash"], child["token_ids"]) == (1, second, IDS[32:48])
        assert child["extra_keys"] == [["lora"]]


async def test_removals_precede_stores(start_engine: StartEngine, http: httpx2.AsyncClient) -> None:
    engine = await with_events(start_engine, kv_tokens=64)
    async with subscribed(engine, http) as feed:
        await generate(http, engine, IDS[:48])
        _, _, (stored,) = await feed.next()
        await generate(http, engine, IDS[20:52])
        _, _, (removed, again) = await feed.next()
        assert removed == {
            "type": "BlockRemoved",
            "block_hashes": stored["block_hashes"][-1:],
            "medium": "GPU",
            "group_idx": 0,
        }
        assert again["token_ids"] == IDS[20:52]


async def test_generated_blocks_carry_their_tokens(start_engine: StartEngine, http: httpx2.AsyncClient) -> None:
    engine = await with_events(start_engine)
    async with subscribed(engine, http) as feed:
        await generate(http, engine, IDS[:16], max_tokens=20)
        _, _, (prompt,) = await feed.next()
        _, _, (generated,) = await feed.next()
        assert generated["parent_block_hash"] == prompt["block_hashes"][0]
        answer = await http.post(f"{engine.url}/v1/completions", json={"prompt": IDS[:16], "max_tokens": 20})
        text = answer.json()["choices"][0]["text"].encode()
        assert b"".join(token.to_bytes(4, "little") for token in generated["token_ids"]) == text[:64]


async def test_a_clear_comes_with_the_next_batch(start_engine: StartEngine, http: httpx2.AsyncClient) -> None:
    engine = await with_events(start_engine)
    async with subscribed(engine, http) as feed:
        await generate(http, engine, IDS[:16])
        await feed.next()
        await http.post(f"{engine.url}/reset_prefix_cache")
        await generate(http, engine, IDS[:16])
        _, _, events = await feed.next()
        assert [event["type"] for event in events] == ["AllBlocksCleared", "BlockStored"]
        assert events[0] == {"type": "AllBlocksCleared"}


async def test_lost_batches_are_a_gap_that_a_replay_fills(start_engine: StartEngine, http: httpx2.AsyncClient) -> None:
    engine = await with_events(start_engine)
    async with subscribed(engine, http) as feed:
        await generate(http, engine, IDS[:16])
        await http.post(f"{engine.url}/faults", json={"kind": "lose_events", "count": 2})
        for start in (1, 2, 3):
            await generate(http, engine, IDS[start : start + 16])
        assert [(await feed.next())[1] for _ in range(2)] == [0, 3]
        assert await feed.replay(0) == [0, 1, 2, 3]
        assert await feed.replay(2) == [2, 3]
        assert await feed.replay(9) == []


async def test_a_restart_starts_the_sequence_over(start_engine: StartEngine, http: httpx2.AsyncClient) -> None:
    engine = await with_events(start_engine)
    async with subscribed(engine, http) as feed:
        for start in (0, 1, 2):
            await generate(http, engine, IDS[start : start + 16])
        engine.restart()
        await generate(http, engine, IDS[:16])
        assert [(await feed.next())[1] for _ in range(4)] == [0, 1, 2, 0]
        assert await feed.replay(0) == [0]


async def test_nonsense_on_the_replay_socket_is_ignored(start_engine: StartEngine, http: httpx2.AsyncClient) -> None:
    engine = await with_events(start_engine)
    async with subscribed(engine, http) as feed:
        await feed.dealer.send_multipart([b"what"])
        await feed.dealer.send_multipart([b"", b"short"])
        assert await feed.replay(0) == []


async def test_a_salt_that_is_no_text_does_no_harm(start_engine: StartEngine, http: httpx2.AsyncClient) -> None:
    engine = await with_events(start_engine)
    async with subscribed(engine, http) as feed:
        body = json.dumps({"prompt": IDS[:16], "max_tokens": 1, "cache_salt": "\ud800"})
        assert (await http.post(f"{engine.url}/v1/completions", content=body)).status_code == 200
        _, _, (stored,) = await feed.next()
        assert stored["extra_keys"] == [["?"]]


async def test_without_a_port_there_are_no_sockets(start_engine: StartEngine) -> None:
    engine = await start_engine()
    assert engine.events_endpoint is None
    assert engine.replay_endpoint is None
    engine.set_fault("lose_events", count=1)

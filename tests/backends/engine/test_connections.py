"""What clients do to connections: leaving, not reading, pipelining, sending what is no HTTP."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    import httpx2

    from backends.engine.command import SimulatedEngine
    from tests.backends.engine.conftest import StartEngine


def raw(path: str = "/v1/completions", **fields: Any) -> bytes:
    body = json.dumps({"prompt": "x" * 400, "max_tokens": 8, **fields}).encode()
    return b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (path.encode(), len(body), body)


@asynccontextmanager
async def connect(engine: SimulatedEngine) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", engine.port)
    try:
        yield reader, writer
    finally:
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_frees_its_sequence(start_engine: StartEngine, stream: bool) -> None:
    engine = await start_engine(speed=1.0)
    async with connect(engine) as (_, writer):
        writer.write(raw(stream=stream, max_tokens=100_000))
        await until(lambda: engine.core.running == 1)
    await until(lambda: engine.core.running == 0)
    assert not engine.core.has_work
    assert engine.core.kv_usage == 0
    assert engine.connections == 0


async def test_a_client_that_leaves_the_queue(start_engine: StartEngine) -> None:
    engine = await start_engine(speed=1.0, max_num_seqs=1)
    async with connect(engine) as (_, first):
        first.write(raw(max_tokens=100_000))
        await until(lambda: engine.core.running == 1)
        async with connect(engine) as (_, second):
            second.write(raw())
            await until(lambda: engine.core.waiting == 1)
        await until(lambda: engine.core.waiting == 0)
        assert engine.core.running == 1


async def test_a_full_queue_is_503(start_engine: StartEngine, http: httpx2.AsyncClient) -> None:
    engine = await start_engine(speed=1.0, max_num_seqs=1, max_num_queued_reqs=1)
    async with connect(engine) as (_, first), connect(engine) as (_, second):
        first.write(raw(max_tokens=100_000))
        await until(lambda: engine.core.running == 1)
        second.write(raw())
        await until(lambda: engine.core.waiting == 1)
        refused = await http.post(f"{engine.url}/v1/completions", json={"prompt": "x"})
    assert refused.status_code == 503
    assert refused.headers["retry-after"] == "1"


async def test_a_reader_that_stops_gets_all_text_in_fewer_chunks(start_engine: StartEngine) -> None:
    engine = await start_engine(max_model_len=120_000)
    tokens = 60_000
    async with connect(engine) as (reader, writer):
        writer.write(raw(stream=True, max_tokens=tokens))
        await until(lambda: engine.core.generated_tokens_total == tokens)
        received = b""
        while not received.endswith(b"0\r\n\r\n"):
            received += await asyncio.wait_for(reader.read(1 << 20), 20)
    events = [line[6:] for line in received.split(b"\n") if line.startswith(b"data: {")]
    text = "".join(json.loads(event)["choices"][0]["text"] for event in events)
    assert len(text) == 4 * tokens
    assert len(events) < tokens


async def test_what_gathered_is_sent_when_the_reader_goes_on(start_engine: StartEngine) -> None:
    engine = await start_engine()
    async with connect(engine) as (reader, writer):
        writer.write(raw(stream=True, max_tokens=120_000))
        await until(lambda: engine.core.generated_tokens_total > 50_000)
        engine.set_fault("hang")  # no further token will carry the text along
        shown = engine.core.generated_tokens_total - 1  # the last step was not shown
        received = b""
        while received.count(b'"text":"') == 0 or text_length(received) < 4 * shown:
            received += await asyncio.wait_for(reader.read(1 << 22), 20)


def text_length(received: bytes) -> int:
    lines = received.split(b"\n\n")[:-1]
    return sum(len(line.partition(b'"text":"')[2].partition(b'"')[0]) for line in lines)


async def test_pipelined_requests_are_answered_in_order(start_engine: StartEngine) -> None:
    engine = await start_engine()
    async with connect(engine) as (reader, writer):
        writer.write(raw(max_tokens=3) + raw(max_tokens=2) + b"GET /version HTTP/1.1\r\nconnection: close\r\n\r\n")
        answers = await asyncio.wait_for(reader.read(), 20)
    counts = [answers.find(text) for text in (b'"completion_tokens":3', b'"completion_tokens":2', b'"version"')]
    assert -1 not in counts
    assert counts == sorted(counts)


async def test_many_pipelined_requests_are_not_lost(start_engine: StartEngine) -> None:
    engine = await start_engine()
    async with connect(engine) as (reader, writer):
        writer.write(raw() * 40 + b"GET /version HTTP/1.1\r\nconnection: close\r\n\r\n")
        answers = await asyncio.wait_for(reader.read(), 20)
    assert answers.count(b"HTTP/1.1 200 OK") == 41


async def test_what_is_no_http_gets_400_and_the_end(start_engine: StartEngine) -> None:
    engine = await start_engine()
    async with connect(engine) as (reader, writer):
        writer.write(b"\x16\x03\x01 hello\r\n\r\n")
        answer = await asyncio.wait_for(reader.read(), 20)
    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"connection: close" in answer


async def test_expect_continue_is_answered(start_engine: StartEngine) -> None:
    engine = await start_engine()
    head, _, body = raw().partition(b"\r\n\r\n")
    async with connect(engine) as (reader, writer):
        writer.write(head + b"\r\nexpect: 100-continue\r\n\r\n")
        assert await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20) == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(body)
        assert (await asyncio.wait_for(reader.readline(), 20)) == b"HTTP/1.1 200 OK\r\n"


async def test_priority_orders_the_queue(start_engine: StartEngine) -> None:
    engine = await start_engine(speed=20.0, max_num_seqs=1, scheduling_policy="priority")
    done: list[str] = []

    async def ask(name: str, **fields: Any) -> None:
        async with connect(engine) as (reader, writer):
            writer.write(raw(**fields))
            await reader.readuntil(b"\r\n\r\n")
            done.append(name)

    async with asyncio.TaskGroup() as group:
        group.create_task(ask("running", max_tokens=200))
        await until(lambda: engine.core.running == 1)
        group.create_task(ask("late", priority=5))
        await until(lambda: engine.core.waiting == 1)
        group.create_task(ask("urgent", priority=-5))
        await until(lambda: engine.core.waiting == 2)
    assert done == ["running", "urgent", "late"]


async def test_closing_an_engine_cuts_its_clients(start_engine: StartEngine) -> None:
    from backends.engine.command import EngineOptions, SimulatedEngine

    async with SimulatedEngine(EngineOptions()) as engine:
        reader, writer = await asyncio.open_connection("127.0.0.1", engine.port)
        writer.write(raw(stream=True, max_tokens=100_000))
        await until(lambda: engine.core.running == 1)
    assert engine.connections == 0
    assert b"[DONE]" not in await asyncio.wait_for(reader.read(), 20)
    writer.close()
    await writer.wait_closed()

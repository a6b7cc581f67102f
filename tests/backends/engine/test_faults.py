"""Every fault kind, set over HTTP and in-process."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from backends.engine.errors import ApiError

if TYPE_CHECKING:
    from backends.engine.command import SimulatedEngine
    from tests.backends.engine.conftest import StartEngine

BODY = {"model": "demo", "messages": [{"role": "user", "content": "x" * 400}], "max_tokens": 20}


async def chat(http: httpx2.AsyncClient, engine: SimulatedEngine, **fields: Any) -> httpx2.Response:
    return await http.post(f"{engine.url}/v1/chat/completions", json={**BODY, **fields})


async def set_fault(http: httpx2.AsyncClient, engine: SimulatedEngine, **fault: Any) -> None:
    answer = await http.post(f"{engine.url}/faults", json=fault)
    assert (answer.status_code, answer.json()) == (200, {"kind": fault["kind"]})


async def read_until_reset(http: httpx2.AsyncClient, engine: SimulatedEngine, **fields: Any) -> bytes:
    """A stream that must end by an error; what came before it."""
    body, received = {**BODY, "stream": True, **fields}, b""
    try:
        async with http.stream("POST", f"{engine.url}/v1/chat/completions", json=body) as answer:
            assert answer.status_code == 200
            async for data in answer.aiter_raw():
                received += data
    except httpx2.ReadError:
        return received
    pytest.fail("the stream ended without an error")


async def test_status_for_some_requests(start_engine: StartEngine, http: httpx2.AsyncClient) -> None:
    engine = await start_engine()
    await set_fault(http, engine, kind="status", code=429, count=2, retry_after=7)
    answers = [await chat(http, engine) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [429, 429, 200]
    assert answers[0].headers["retry-after"] == "7"
    assert answers[0].json()["error"]["code"] == 429
    assert (await http.get(f"{engine.url}/faults")).json() == {"faults": []}


async def test_status_until_cleared(start_engine: StartEngine, http: httpx2.AsyncClient) -> None:
    engine = await start_engine()
    engine.set_fault("status", code=500)
    assert [(await chat(http, engine)).status_code for _ in range(3)] == [500] * 3
    assert (await http.get(f"{engine.url}/faults")).json() == {
        "faults": [{"kind": "status", "left": None, "left_s": None}]
    }
    await set_fault(http, engine, kind="clear")
    assert (await chat(http, engine)).status_code == 200


async def test_a_stream_is_reset_after_some_chunks(start_engine: StartEngine, http: httpx2.AsyncClient) -> None:
    engine = await start_engine(speed=20.0)
    await set_fault(http, engine, kind="reset_mid_stream", after_chunks=3, count=1)
    received = await read_until_reset(http, engine)
    assert received.count(b'"content":"') == 4  # the role and three tokens
    assert not engine.core.has_work
    assert (await chat(http, engine, stream=True)).text.endswith("data: [DONE]\n\n")


async def test_a_whole_answer_is_cut_in_half(start_engine: StartEngine, http: httpx2.AsyncClient) -> None:
    engine = await start_engine()
    engine.set_fault("reset_mid_stream", count=1)
    with pytest.raises((httpx2.ReadError, httpx2.RemoteProtocolError)):
        await chat(http, engine)
    assert (await chat(http, engine)).status_code == 200


async def test_a_hang_gives_no_byte_and_then_goes_on(start_engine: StartEngine, http: httpx2.AsyncClient) -> None:
    engine = await start_engine()
    engine.set_fault("hang")
    reader, writer = await asyncio.open_connection("127.0.0.1", engine.port)
    try:
        body = json.dumps(BODY).encode()
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
        )
        assert (await http.get(f"{engine.url}/health")).status_code == 200
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.05)
        engine.set_fault("clear")
        assert (await asyncio.wait_for(reader.readline(), 20)) == b"HTTP/1.1 200 OK\r\n"
    finally:
        writer.close()
        await writer.wait_closed()


async def test_a_hang_freezes_streams_for_a_while(start_engine: StartEngine, http: httpx2.AsyncClient) -> None:
    engine = await start_engine(speed=20.0)
    loop = asyncio.get_running_loop()
    async with http.stream("POST", f"{engine.url}/v1/chat/completions", json={**BODY, "stream": True}) as answer:
        lines = answer.aiter_lines()
        await anext(lines)
        engine.set_fault("hang", for_s=0.2)
        begun = loop.time()
        rest = [line async for line in lines]
    assert rest[-1] == "data: [DONE]" or rest[-2] == "data: [DONE]"
    assert loop.time() - begun >= 0.2


async def test_a_hang_can_take_the_probes_too(start_engine: StartEngine, http: httpx2.AsyncClient) -> None:
    engine = await start_engine()
    engine.set_fault("hang", health=True, for_s=0.2)
    with pytest.raises(httpx2.ReadTimeout):
        await http.get(f"{engine.url}/health", timeout=0.05)
    assert (await http.get(f"{engine.url}/health")).status_code == 200
    assert engine.connections == 1


async def test_a_client_may_leave_a_hanging_engine(start_engine: StartEngine, http: httpx2.AsyncClient) -> None:
    engine = await start_engine()
    engine.set_fault("hang")
    with pytest.raises(httpx2.ReadTimeout):
        await http.post(f"{engine.url}/v1/chat/completions", json=BODY, timeout=0.05)
    while engine.connections:
        await asyncio.sleep(0.001)
    engine.set_fault("clear")
    assert not engine.core.has_work


async def test_slow_start(start_engine: StartEngine, http: httpx2.AsyncClient) -> None:
    engine = await start_engine()
    await set_fault(http, engine, kind="slow_start", for_s=0.1)
    assert (await http.get(f"{engine.url}/health")).status_code == 503
    assert (await chat(http, engine)).status_code == 503
    while (await http.get(f"{engine.url}/health")).status_code != 200:
        await asyncio.sleep(0.005)
    assert (await chat(http, engine)).status_code == 200


async def test_restart_is_a_new_instance(start_engine: StartEngine, http: httpx2.AsyncClient) -> None:
    engine = await start_engine(speed=20.0)
    for _ in range(2):
        warm = await chat(http, engine)
    assert warm.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    started = await start_time(http, engine)
    reading = asyncio.create_task(read_until_reset(http, engine, max_tokens=10_000))
    while not engine.core.running:
        await asyncio.sleep(0.001)
    await set_fault(http, engine, kind="restart")
    assert b"[DONE]" not in await reading
    cold = await chat(http, engine)
    assert cold.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert await start_time(http, engine) > started
    assert engine.core.generated_tokens_total == 20


async def start_time(http: httpx2.AsyncClient, engine: SimulatedEngine) -> float:
    text = (await http.get(f"{engine.url}/metrics")).text
    return float(next(line for line in text.splitlines() if line.startswith("process_start_time_seconds")).split()[1])


async def test_restart_ends_a_hang(start_engine: StartEngine, http: httpx2.AsyncClient) -> None:
    engine = await start_engine()
    engine.set_fault("hang")
    engine.restart()
    assert (await chat(http, engine)).status_code == 200


@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "meteor"},
        {},
        {"kind": "hang", "for_s": -1},
        {"kind": "hang", "for_s": "long"},
        {"kind": "hang", "health": 1},
        {"kind": "status", "code": 200},
        {"kind": "status", "code": None},
        {"kind": "status", "count": True},
        {"kind": "reset_mid_stream", "after_chunks": None},
        {"kind": "reset_mid_stream", "unknown": 1},
    ],
)
async def test_bad_faults_are_refused(
    start_engine: StartEngine, http: httpx2.AsyncClient, fault: dict[str, Any]
) -> None:
    engine = await start_engine()
    answer = await http.post(f"{engine.url}/faults", json=fault)
    assert answer.status_code == 400, answer.text
    with pytest.raises(ApiError):
        engine.set_fault(**{"kind": "", **fault})
    assert (await chat(http, engine)).status_code == 200

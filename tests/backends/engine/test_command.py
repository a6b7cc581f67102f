"""The engine as a process of its own would run it."""

from __future__ import annotations

import asyncio
import threading

import httpx2
import pytest
import uvloop
import zmq
import zmq.asyncio

from backends.engine.command import EngineOptions, SimulatedEngine, serve


async def test_serve_tells_its_port_and_ends_when_cancelled() -> None:
    ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(serve(EngineOptions(), ready.set_result))
    port = await asyncio.wait_for(ready, 20)
    async with httpx2.AsyncClient() as http:
        assert (await http.get(f"http://127.0.0.1:{port}/health")).status_code == 200
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(httpx2.ConnectError):
            await http.get(f"http://127.0.0.1:{port}/health")


async def test_a_taken_port_is_an_error_that_leaves_nothing() -> None:
    threads = threading.active_count()
    async with SimulatedEngine(EngineOptions()) as engine:
        with pytest.raises(OSError, match="in use"):
            await serve(EngineOptions(port=engine.port, kv_events_port=0, kv_events_replay_port=0))
    assert threading.active_count() == threads


def test_streams_resets_and_replays_on_uvloop() -> None:
    async def scenario() -> None:
        options = EngineOptions(speed=20.0, kv_events_port=0, kv_events_replay_port=0)
        context = zmq.asyncio.Context()
        body = {"prompt": "x" * 400, "max_tokens": 30, "stream": True}
        async with SimulatedEngine(options) as engine, httpx2.AsyncClient() as http:
            whole = await http.post(f"{engine.url}/v1/completions", json=body)
            assert whole.text.endswith("data: [DONE]\n\n")
            engine.set_fault("reset_mid_stream", count=1)
            with pytest.raises(httpx2.ReadError):
                await http.post(f"{engine.url}/v1/completions", json=body)
            engine.set_fault("reset_mid_stream", count=1)
            with pytest.raises((httpx2.ReadError, httpx2.RemoteProtocolError)):
                await http.post(f"{engine.url}/v1/completions", json={**body, "stream": False})
            assert not engine.core.has_work
            dealer = context.socket(zmq.DEALER)
            dealer.connect(str(engine.replay_endpoint))
            for _ in range(2):
                await dealer.send_multipart([b"", bytes(8)])
                first = await asyncio.wait_for(dealer.recv_multipart(), 20)
                assert first[2] == bytes(8)
                while (await asyncio.wait_for(dealer.recv_multipart(), 20))[2] != b"\xff" * 8:
                    pass
            context.destroy(linger=0)

    uvloop.run(scenario())

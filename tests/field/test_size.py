"""Field cases D: large bodies, readers that do not read, and long prompts beside a liveness probe."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from tests.integration.test_lifecycle import config_file
from tests.support.gateway import chat, request_bytes, running_gateway
from tests.support.memory import resident_mib
from tests.support.process import client_of, command
from tests.support.scrape import counted
from tests.support.upstream import SSE_HEAD, ScriptedUpstream, Served, answer, chunk

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.support.gateway import RawClient, RunningGateway

ROUTES = ["/v1/chat/completions", "/v1/completions"]
IMAGE = "data:image/png;base64," + "iVBORw0KGgo" * 1_100_000
"""12 MB."""


def with_image(path: str, stream: bool) -> bytes:
    if path == ROUTES[1]:
        return json.dumps({"model": "m", "prompt": IMAGE, "stream": stream}).encode()
    parts = [{"type": "text", "text": "what is on it?"}, {"type": "image_url", "image_url": {"url": IMAGE}}]
    return json.dumps({"model": "m", "stream": stream, "messages": [{"role": "user", "content": parts}]}).encode()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("path", ROUTES)
async def test_o26_twelve_megabytes_pass_by_default(path: str, stream: bool) -> None:
    body = with_image(path, stream)
    assert len(body) > 12_000_000
    telemetry = {"ask_usage": False}  # else a stream's body gets one member more
    async with (
        ScriptedUpstream() as upstream,
        running_gateway([upstream.url], telemetry=telemetry) as gw,
        gw.client() as client,
    ):
        response = await client.ask(body, path=path)
        assert response.status == 200
        await response.read()
        assert response.complete
        assert upstream.requests[0].body == body
        await gw.until(lambda g: g.tasks == 0)
        gw.assert_at_rest()


async def test_o26_the_second_attempt_sends_all_of_it_again() -> None:
    body = with_image(ROUTES[0], False)
    seen: list[bytes] = []

    async def script(served: Served) -> None:
        seen.append(served.body)
        if len(seen) == 1:
            served.reset()
        else:
            await answer(served)

    async with (
        ScriptedUpstream(script) as a,
        ScriptedUpstream(script) as b,
        running_gateway([a.url, b.url]) as gw,
        gw.client() as client,
    ):
        assert (await client.ask(body)).status == 200
        assert seen == [body, body]
        await gw.until(lambda g: g.tasks == 0)
        gw.assert_at_rest()


SMALL_LIMIT = {"max_body_mb": 0.01}


def framed(size: int, path: str, chunked: bool) -> bytes:
    body = json.dumps({**chat("x" * size), "prompt": "x"}).encode()
    if not chunked:
        return request_bytes(body, path)
    pieces = [chunk(body[i : i + 4096]) for i in range(0, len(body), 4096)]
    return request_bytes(b"".join([*pieces, b"0\r\n\r\n"]), path, headers={"transfer-encoding": "chunked"})


async def assert_too_large(client: RawClient) -> None:
    response = await client.receive()
    assert response.status == 413
    assert response.header("content-type") == "application/json"
    error = await response.error()
    assert error["code"] == "body_too_large"
    assert "listen.max_body_mb" in error["message"]
    assert response.header("x-request-id")


def refused(lines: list[Any]) -> int:
    return sum(line["event"] == "request_refused" and line["code"] == "body_too_large" for line in lines)


@pytest.mark.parametrize("chunked", [False, True], ids=["content-length", "chunked"])
@pytest.mark.parametrize("path", ROUTES)
async def test_o26_over_the_limit_is_a_413_that_is_logged_and_counted(path: str, chunked: bool) -> None:
    async with ScriptedUpstream() as upstream, running_gateway([upstream.url], listen=SMALL_LIMIT) as gw:
        with capture_logs() as lines:
            async with gw.client() as client:
                client.writer.write(
                    framed(20_000, path, chunked) + framed(10, path, chunked) + framed(20_000, path, False)
                )
                await assert_too_large(client)
                assert (await (response := await client.receive()).read(), response.status)[1] == 200
                await assert_too_large(client)
                client.writer.write(framed(10, path, chunked))
                assert (await client.receive()).status == 200, "the connection is usable"
            async with gw.client() as client:
                client.writer.write(framed(100_000, path, chunked))
                await assert_too_large(client)
                assert await asyncio.wait_for(client.reader.read(), 10) == b"", "closed cleanly, no reset"
            async with gw.client() as client:  # refused before the body is sent
                headers = {"expect": "100-continue", "content-length": "20000"}
                client.writer.write(request_bytes(b"", path, headers=headers))
                await assert_too_large(client)
        assert refused(lines) == 4
        assert "xxx" not in str(lines)
        assert counted(gw.gateway, "warmroute_requests_total", status="413") == 4
        assert len(upstream.requests) == 2
        await gw.until(lambda g: not g.connections)
        gw.assert_at_rest()


# A reader that does not read.


async def flood(served: Served) -> None:
    """200 MB, as fast as they are taken."""
    if served.json["messages"][0]["content"] != "flood":
        await answer(served)
        return
    piece = b"data: " + b"x" * 65_528 + b"\n\n"
    count = 200_000_000 // len(piece)
    stream = served.json["stream"]
    whole_head = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n\r\n" % (count * len(piece))
    try:
        await served.write(SSE_HEAD if stream else whole_head)
        for _ in range(count):
            await served.write(chunk(piece) if stream else piece)
        await served.write(b"0\r\n\r\n" if stream else b"")
    except ConnectionError:
        served.upstream.count_closed()
        raise


@contextlib.asynccontextmanager
async def not_reading(gw: RunningGateway, stream: bool, version: str = "1.1") -> AsyncIterator[None]:
    client = await gw.connect()
    try:
        client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await client.send(chat("flood", stream=stream), version=version)
        yield
    finally:
        client.reset()
        await client.close()


async def standstill(served: Served) -> int:
    """What was sent when nothing more is taken."""
    sent = -1
    while sent != served.sent:
        sent = served.sent
        await asyncio.sleep(0.1)
    return sent


@pytest.mark.parametrize("version", ["1.1", "1.0"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_o27_a_reader_that_does_not_read_costs_no_memory_and_no_neighbour(stream: bool, version: str) -> None:
    async with ScriptedUpstream(flood) as upstream, running_gateway([upstream.url]) as gw, gw.client() as neighbour:
        await (await neighbour.ask(chat("neighbour"))).read()
        before_mib = resident_mib()
        async with not_reading(gw, stream, version):
            await upstream.until(lambda u: len(u.requests) == 2)
            assert await standstill(upstream.requests[-1]) < 32 << 20, "the backend feels it"
            worst_s = 0.0
            for _ in range(50):
                started_s = time.perf_counter()
                response = await neighbour.ask(chat("neighbour"))
                await response.read()
                worst_s = max(worst_s, time.perf_counter() - started_s)
                assert response.status == 200
            assert worst_s < 1.0
            assert resident_mib() - before_mib < 32
            assert gw.in_flight == 1
        await upstream.until(lambda u: u.closed == 1)
        gw.assert_at_rest()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_o27_a_write_stall_ends_the_request(stream: bool) -> None:
    async with (
        ScriptedUpstream(flood) as upstream,
        running_gateway([upstream.url], listen={"write_timeout_s": 0.5}) as gw,
        gw.client() as neighbour,
        not_reading(gw, stream),
    ):
        await upstream.until(lambda u: u.closed == 1)
        await gw.until(lambda _: gw.in_flight == 0)
        assert (await neighbour.ask(chat("neighbour"))).status == 200, "and nobody else's"
        assert counted(gw.gateway, "warmroute_upstream_errors_total") == 0, "not the backend's fault"
        gw.assert_at_rest()


# Long prompts beside a liveness probe.


POLLS = 60


async def test_o28_long_prompts_do_not_hold_up_the_liveness_probe(tmp_path: Path) -> None:
    """Ten prompts of 5 MB at once, again and again: new ones, and the same with one more turn."""

    async def taken(served: Served) -> None:
        await served.respond({"choices": []})

    async with ScriptedUpstream(taken) as upstream:
        config = config_file(tmp_path, [upstream.url])
        async with command("serve", "-c", config) as process:
            url = (await process.event("listening"))["traffic"]
            latencies_s: list[float] = []
            done = threading.Event()
            polling = asyncio.create_task(asyncio.to_thread(poll_livez, url, latencies_s, done))
            try:
                async with asyncio.timeout(40):
                    turn = 0
                    while len(latencies_s) < POLLS:
                        turn += 1
                        async with asyncio.TaskGroup() as group:
                            for number in range(10):
                                group.create_task(taken_in(url, long_prompt(number + turn // 3, turn % 3)))
            finally:
                done.set()
                await polling
            assert upstream.requests
            worst_s = [max(latencies_s[start : start + POLLS // 4]) for start in range(0, POLLS, POLLS // 4)]
            assert min(worst_s) < 0.5, "five times what the case allows; the machine may be busy, but not all the time"


def poll_livez(url: str, latencies_s: list[float], done: threading.Event) -> None:
    """In a thread: what the test's own loop does must not show."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=20)
    with contextlib.closing(connection):
        while not done.wait(0.01):
            started_s = time.perf_counter()
            connection.request("GET", "/livez")
            response = connection.getresponse()
            response.read()
            assert response.status == 200
            latencies_s.append(time.perf_counter() - started_s)


async def taken_in(url: str, body: bytes) -> None:
    async with client_of(url) as client:
        response = await client.ask(body)
        assert response.status == 200
        await response.read()


def long_prompt(number: int, turn: int) -> bytes:
    text = f"{number} " + "all work and no play makes a long prompt " * 122_000
    messages = [{"role": "user", "content": text}]
    messages += [{"role": "assistant", "content": "ok"}, {"role": "user", "content": "and now?"}] * turn
    return json.dumps({"model": "m", "messages": messages}).encode()

"""Field cases A: cancellation and connection lifetime."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.support.gateway import chat, running_gateway
from tests.support.upstream import SSE_HEAD, ScriptedUpstream, Served, answer, chunk, token

if TYPE_CHECKING:
    from gateway.app import Gateway


def cancelled(gateway: Gateway) -> float:
    return metric(gateway, "warmroute_client_cancelled_total")


def metric(gateway: Gateway, name: str) -> float:
    """Sum over all label sets."""
    lines = gateway.metrics.render().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((name + "{", name + " ")))


@pytest.mark.parametrize("head_first", [False, True], ids=["before the head", "after the head"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_o01_disconnect_during_prefill_is_noticed(head_first: bool, stream: bool) -> None:
    async def script(served: Served) -> None:
        if head_first:
            await served.write(SSE_HEAD)
        await served.until_closed()

    async with ScriptedUpstream(script) as upstream, running_gateway([upstream.url]) as gw:
        async with gw.client() as client:
            await client.send(chat(stream=stream))
            await upstream.until(lambda u: len(u.requests) == 1)
            if head_first:
                await client.receive()
            assert gw.in_flight == 1
        await upstream.until(lambda u: u.closed == 1)
        gw.assert_at_rest()
        assert cancelled(gw.gateway) == 1
        assert metric(gw.gateway, "warmroute_upstream_errors_total") == 0


@pytest.mark.parametrize("reset", [False, True], ids=["fin", "rst"])
async def test_o02_abandoned_stream_closes_upstream(reset: bool) -> None:
    async def script(served: Served) -> None:
        await served.write(SSE_HEAD + chunk(token()) * 3)
        await served.until_closed()

    async with ScriptedUpstream(script) as upstream, running_gateway([upstream.url]) as gw:
        async with gw.client() as client:
            await client.send(chat(stream=True))
            response = await client.receive()
            seen = 0
            async for piece in response.chunks():
                seen += piece.count(b"data:")
                if seen == 3:
                    break
            if reset:
                client.reset()
        await upstream.until(lambda u: u.closed == 1)
        gw.assert_at_rest()


async def test_o02_abandoned_by_a_client_that_has_stopped_reading() -> None:
    async def script(served: Served) -> None:
        await served.write(SSE_HEAD)
        try:
            while True:
                await served.write(chunk(b"data: " + b"x" * 65536 + b"\n\n"))
        except ConnectionError:
            served.upstream.count_closed()
            raise

    async with ScriptedUpstream(script) as upstream, running_gateway([upstream.url]) as gw:
        client = await gw.connect()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await client.send(chat(stream=True))
        await upstream.until(lambda u: len(u.requests) == 1)
        served, sent = upstream.requests[0], -1
        while sent != served.sent:  # until the backend is parked in a write
            sent = served.sent
            await asyncio.sleep(0.05)
        client.reset()
        await upstream.until(lambda u: u.closed == 1)
        gw.assert_at_rest()
        await client.close()


async def test_o03_non_streaming_requests_end_with_their_clients() -> None:
    async def script(served: Served) -> None:
        if served.json["messages"][0]["content"] == "quick":
            await answer(served)
        else:
            await served.until_closed()

    async with ScriptedUpstream(script) as upstream, running_gateway([upstream.url]) as gw:
        clients = [await gw.connect() for _ in range(50)]
        for client in clients:
            await client.send(chat("slow"))
        await upstream.until(lambda u: len(u.requests) == 50)
        for client in clients:
            await client.close()
        await upstream.until(lambda u: u.closed == 50)
        gw.assert_at_rest()
        async with gw.client() as client:
            assert (await client.ask(chat("quick"))).status == 200


async def test_o04_no_abort_leaks_a_load_count() -> None:
    release = asyncio.Event()

    async def script(served: Served) -> None:
        if served.json["messages"][0]["content"].startswith("hang"):
            await served.until_closed()
        else:
            await release.wait()
            await answer(served)

    async with (
        ScriptedUpstream(script) as a,
        ScriptedUpstream(script) as b,
        running_gateway([a.url, b.url], health={"slow_start_s": 0}) as gw,
    ):
        for _ in range(8):
            clients = [await gw.connect() for _ in range(50)]
            before = len(a.requests) + len(b.requests)
            for number, client in enumerate(clients):
                await client.send(chat(f"hang {number}", stream=number % 2 == 0))
            async with asyncio.timeout(10):
                while len(a.requests) + len(b.requests) < before + 50:
                    await asyncio.sleep(0.002)
            for client in clients:
                client.reset()
            await gw.until(lambda _: gw.in_flight == 0)
        gw.assert_at_rest()
        assert cancelled(gw.gateway) == 400
        backend = gw.gateway.registry.get("b")  # type: ignore[arg-type]
        assert backend is not None
        gw.gateway.registry.restart(backend)
        served_before = len(a.requests), len(b.requests)
        clients = [await gw.connect() for _ in range(20)]
        for number, client in enumerate(clients):
            await client.send(chat(f"new prefix {number} " * 40))
        await gw.until(lambda _: len(a.requests) + len(b.requests) == sum(served_before) + 20)
        release.set()
        for client in clients:
            response = await client.receive()
            await response.read()
            assert response.status == 200
            await client.close()
        counts = len(a.requests) - served_before[0], len(b.requests) - served_before[1]
        assert min(counts) >= 8, "an honest zero must not look idle beside phantom counts"
        gw.assert_at_rest()


OUTCOMES = [
    "ok",
    "stream",
    "400",
    "500",
    "connect error",
    "timeout",
    "cancel before head",
    "cancel in body",
    "retry",
    "death",
]


@pytest.mark.parametrize("outcome", OUTCOMES)
async def test_o04_counters_return_to_zero_after_every_outcome(outcome: str, unused_tcp_port: int) -> None:
    async def script(served: Served) -> None:
        if outcome in ("400", "500"):
            await served.respond({"error": {}}, int(outcome))
        elif outcome == "death":
            await served.write(SSE_HEAD + chunk(token()))
            served.reset()
        elif outcome == "retry" and served.number == 0:
            await served.respond({}, 503)
        elif outcome in ("timeout", "cancel before head"):
            await served.until_closed()
        elif outcome == "cancel in body":
            await served.write(SSE_HEAD + chunk(token()))
            await served.until_closed()
        else:
            await answer(served)

    async with ScriptedUpstream(script) as a, ScriptedUpstream(script) as b:
        limits = {"first_byte_timeout_s": 0.2 if outcome == "timeout" else 60}
        async with running_gateway([a.url, b.url], limits=limits) as gw:
            if outcome == "connect error":
                await a.shut()
                await b.shut()
            async with gw.client() as client:
                await client.send(chat("x", stream=outcome != "ok"))
                if outcome == "cancel before head":
                    await gw.until(lambda _: len(a.requests) + len(b.requests) == 1)
                    client.reset()
                else:
                    response = await client.receive()
                    if outcome == "cancel in body":
                        client.reset()
                    else:
                        await response.read()
            await gw.until(lambda _: gw.in_flight == 0)
            gw.assert_at_rest()


@pytest.mark.parametrize("closing", [False, True], ids=["keeps alive", "closes after each answer"])
async def test_o06_cancels_under_contention_lose_no_connection(closing: bool) -> None:
    """Through the whole gateway; tests/backends/test_upstream.py has the storm on the pool itself."""

    async def script(served: Served) -> None:
        if closing:
            await served.respond({"object": "chat.completion"}, headers=b"connection: close\r\n")
            served.writer.close()
        else:
            await answer(served)

    async with ScriptedUpstream(script) as upstream, running_gateway([upstream.url]) as gw:
        for round_number in range(20):
            clients = [await gw.connect() for _ in range(25)]
            for client in clients:
                await client.send(chat())
            for number, client in enumerate(clients):
                if (number + round_number) % 2:
                    client.reset()
            for number, client in enumerate(clients):
                if not (number + round_number) % 2:
                    assert (await (await client.receive()).json())["object"] == "chat.completion"
                await client.close()
        await gw.until(lambda _: gw.in_flight == 0)
        gw.assert_at_rest()
        async with gw.client() as client:
            assert (await client.ask(chat())).status == 200


async def test_o07_replacing_a_backend_does_not_cut_its_streams() -> None:
    release = asyncio.Event()

    async def script(served: Served) -> None:
        await served.write(SSE_HEAD + chunk(token("a")))
        await release.wait()
        await served.write(chunk(token("b")) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    async with ScriptedUpstream(script) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        await client.send(chat(stream=True))
        response = await client.receive()
        registry = gw.gateway.registry
        old = next(iter(registry))
        registry.remove(old.name)
        replaced = registry.add(old.spec)
        assert replaced.upstream is not old.upstream
        closing = asyncio.create_task(old.upstream.close())
        await asyncio.sleep(0)
        assert not closing.done(), "the old client closes only when its last request has ended"
        release.set()
        body = await response.read()
        assert response.complete
        assert body.endswith(b"data: [DONE]\n\n")
        await asyncio.wait_for(closing, 10)
        assert old.instance.in_flight == 0
        assert replaced.instance.in_flight == 0

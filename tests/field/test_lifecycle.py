"""Field cases G: a rolling update under traffic, and connections that end with a reset."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

from gateway.exchange import Exchange
from gateway.hot import HotProtocol
from tests.integration.test_lifecycle import config_file, get
from tests.support.gateway import RawClient, chat, running_gateway
from tests.support.memory import resident_mib
from tests.support.process import client_of, command
from tests.support.upstream import DONE, SSE_HEAD, ScriptedUpstream, Served, answer, chunk, token

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.gateway import RunningGateway

STREAMS = 5
DRAIN_DELAY_S = 1.0


async def test_o64_a_rolling_update_drops_nothing(tmp_path: Path) -> None:
    """Five streams open and 20 requests a second, on new and kept connections, until the load balancer has seen it."""
    release = asyncio.Event()

    async def script(served: Served) -> None:
        if not served.json["stream"]:
            await answer(served)
            return
        await served.write(SSE_HEAD + chunk(token("a")))
        await release.wait()
        await served.write(chunk(token("b")) + chunk(DONE) + b"0\r\n\r\n")

    async with ScriptedUpstream(script) as upstream, AsyncExitStack() as stack:
        config = config_file(tmp_path, [upstream.url], listen={"drain_delay_s": DRAIN_DELAY_S, "grace_s": 20})
        process = await stack.enter_async_context(command("serve", "-c", config))
        url = (await process.event("listening"))["traffic"]
        clients = [await stack.enter_async_context(client_of(url)) for _ in range(STREAMS)]
        streams = [await client.ask(chat(f"stream {i}", stream=True)) for i, client in enumerate(clients)]
        seen: Counter[tuple[str, int]] = Counter()
        stopping = asyncio.Event()

        async def arrive(kept: RawClient | None) -> RawClient | None:
            if kept is not None:
                response = await kept.ask(chat("kept"))
                await response.read()
                seen["kept", response.status] += 1
                return None if response.header("connection") == "close" else kept
            async with client_of(url) as client:
                response = await client.ask(chat("new"))
                await response.read()
                seen["new", response.status] += 1
                return None

        async def traffic() -> None:
            """Stops, as a load balancer does, soon after `/readyz` has said no."""
            kept: list[RawClient | None] = [await stack.enter_async_context(client_of(url)) for _ in range(4)]
            turn = 0
            while not stopping.is_set():
                turn += 1
                place = turn % 8
                if place < 4 and kept[place] is not None:
                    kept[place] = await arrive(kept[place])
                else:
                    await arrive(None)
                await asyncio.sleep(0.05)

        load = asyncio.create_task(traffic())
        await asyncio.sleep(0.3)
        before = sum(seen.values())
        process.terminate()
        await process.event("draining")
        assert await get(url, "/readyz") == 503, "at once"
        assert await get(url, "/livez") == 200
        await asyncio.sleep(DRAIN_DELAY_S / 2)  # the load balancer's own interval
        stopping.set()
        await load
        assert seen.total() - before >= 5, "it served on"
        assert {status for _, status in seen} == {200}, seen
        release.set()
        for stream in streams:
            assert await stream.read() == token("a") + token("b") + DONE
            assert stream.complete
        assert await process.ended() == 0


# Resets.


def alive(kind: type[object]) -> int:
    return sum(isinstance(one, kind) for one in gc.get_objects())


async def end_with_reset(gw: RunningGateway, number: int, *, answered: bool) -> None:
    client = await gw.connect()
    try:
        path = "/v1/models" if number % 4 == 3 else "/v1/chat/completions"
        if path == "/v1/models":
            await client.send(b"", path=path, method="GET")
        else:
            await client.send(chat(f"{number % 10} " * 50, stream=number % 2 == 0))
        if answered:
            await (await client.receive()).read()
    finally:
        client.reset()
        await client.close()


@pytest.mark.parametrize("keep_alive_s", [600, 5])
async def test_o67_reset_connections_leave_nothing_behind_whatever_the_keep_alive(keep_alive_s: int) -> None:
    """A tenth of the case's 20,000; nothing may stay at all, so the number does not matter."""
    async with (
        ScriptedUpstream() as upstream,
        running_gateway([upstream.url], listen={"keep_alive_s": keep_alive_s}) as gw,
    ):

        async def many(count: int) -> None:
            for start in range(0, count, 20):
                ends = (end_with_reset(gw, number, answered=number % 5 > 0) for number in range(start, start + 20))
                await asyncio.gather(*ends)
            await gw.until(lambda g: not g.connections and gw.in_flight == 0)

        await many(300)
        gc.collect()
        before_mib = resident_mib()
        await many(700)
        gc.collect()
        assert resident_mib() - before_mib < 16
        assert (alive(HotProtocol), alive(Exchange)) == (0, 0)
        gw.assert_at_rest()


async def test_o67_the_default_keep_alive_is_modest_and_a_long_one_is_warned_of(tmp_path: Path) -> None:
    async def checked(**listen: Any) -> str:
        config = config_file(tmp_path, ["http://127.0.0.1:9"], listen=listen)
        async with command("check", config) as process:
            assert await process.ended() == 0
            return "\n".join(process.lines + process.out)

    assert "keep_alive_s" not in await checked()
    assert "listen.keep_alive_s" in (await checked(keep_alive_s=7200)).replace(": ", ".")

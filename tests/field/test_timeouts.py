"""Field cases H: slow backends. All times are a tenth of the case's, or less."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from tests.field.test_cancellation import metric
from tests.support.gateway import chat, running_gateway
from tests.support.upstream import DONE, SSE_HEAD, ScriptedUpstream, Served, chunk, token

if TYPE_CHECKING:
    from collections.abc import Mapping

PAUSE_S = 0.8
SHORT_S = 0.25
AMPLE_S = 8.0


async def slow(served: Served) -> None:
    """Pauses before the head and, in a stream, between chunks."""
    await asyncio.sleep(PAUSE_S)
    if served.json["stream"]:
        await served.stream(token("a"), token("b"), gap_s=PAUSE_S / 2)
    else:
        await served.respond({"object": "chat.completion", "choices": []})


def failures(lines: list[Any]) -> list[Mapping[str, Any]]:
    return [line for line in lines if line["event"] == "upstream_failed"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_o75_pauses_below_the_limits_are_no_failure(stream: bool) -> None:
    limits = {"connect_timeout_s": SHORT_S, "first_byte_timeout_s": AMPLE_S, "idle_timeout_s": AMPLE_S}
    async with (
        ScriptedUpstream(slow) as upstream,
        running_gateway([upstream.url], limits=limits) as gw,
        gw.client() as client,
    ):
        with capture_logs() as lines:
            response = await client.ask(chat("slow", stream=stream))
            body = await response.read()
        assert response.status == 200
        assert response.complete
        assert not stream or body == token("a") + token("b") + DONE
        assert not failures(lines)
        assert metric(gw.gateway, "warmroute_upstream_errors_total") == 0


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_o75_no_first_byte_in_time_is_a_504_that_says_so(stream: bool) -> None:
    async def script(served: Served) -> None:
        await served.until_closed()

    limits = {"first_byte_timeout_s": SHORT_S, "idle_timeout_s": AMPLE_S}
    async with (
        ScriptedUpstream(script) as a,
        ScriptedUpstream(script) as b,
        running_gateway([a.url, b.url], limits=limits) as gw,
        gw.client() as client,
    ):
        with capture_logs() as lines:
            response = await client.ask(chat("slow", stream=stream))
            error = await response.error()
        assert response.status == 504
        assert error["code"] == "upstream_first_byte_timeout"
        assert "first_byte_timeout_s" in error["message"], "the knob to turn"
        assert len(a.requests) + len(b.requests) == 1, "the engine may still compute: no second copy"
        await (a if a.requests else b).until(lambda u: u.closed == 1)
        (line,) = failures(lines)
        assert line["error"] == "UpstreamFirstByteTimeout"
        assert line["backend"] == ("a" if a.requests else "b")
        assert line["log_level"] == "warning"
        gw.assert_at_rest()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_o75_silence_in_the_middle_is_told_in_band(stream: bool) -> None:
    async def script(served: Served) -> None:
        if stream:
            await served.write(SSE_HEAD + chunk(token("a")))
        else:
            await served.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{")
        await served.until_closed()

    limits = {"first_byte_timeout_s": AMPLE_S, "idle_timeout_s": SHORT_S}
    async with (
        ScriptedUpstream(script) as upstream,
        running_gateway([upstream.url], limits=limits) as gw,
        gw.client() as client,
    ):
        with capture_logs() as lines:
            response = await client.ask(chat("slow", stream=stream))
            body = await response.read()
        if stream:
            assert response.complete
            assert body.startswith(token("a"))
            error = json.loads(body.removeprefix(token("a")).removeprefix(b"data: "))["error"]
            assert error["code"] == "upstream_truncated"
            assert "idle_timeout_s" in error["message"]
        else:
            assert not response.complete, "never a clean end"
        await upstream.until(lambda u: u.closed == 1)
        (line,) = failures(lines)
        assert line["error"] == "UpstreamIdleTimeout"
        gw.assert_at_rest()


async def test_o75_a_connection_that_fails_is_logged_by_its_class() -> None:
    far_apart = {"interval_s": 60, "metrics_interval_s": 60}
    async with ScriptedUpstream() as upstream, running_gateway([upstream.url], health=far_apart) as gw:
        await upstream.shut()
        async with gw.client() as client:
            with capture_logs() as lines:
                assert (await client.ask(chat("canary prompt"))).status == 502
        (line,) = failures(lines)
        assert line["error"] == "UpstreamConnectError"
        assert line["request_id"]
        assert "canary" not in str(lines)


async def test_o76_a_long_generation_outlives_every_timeout() -> None:
    tokens, gap_s = 50, 0.03
    limits = dict.fromkeys(("connect_timeout_s", "first_byte_timeout_s", "idle_timeout_s", "keepalive_idle_s"), 0.3)

    async def script(served: Served) -> None:
        await served.stream(*[token(str(number)) for number in range(tokens)], gap_s=gap_s)

    async with (
        ScriptedUpstream(script) as upstream,
        running_gateway([upstream.url], limits=limits, listen={"keep_alive_s": 1}, health={"timeout_s": 0.3}) as gw,
        gw.client() as client,
    ):
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        response = await client.ask(chat(stream=True))
        body = await response.read()
        assert loop.time() - started_s > max(*limits.values(), 1), "longer than all of them"
        assert body == b"".join(token(str(number)) for number in range(tokens)) + DONE
        assert response.complete
        assert metric(gw.gateway, "warmroute_upstream_errors_total") == 0
        gw.assert_at_rest()

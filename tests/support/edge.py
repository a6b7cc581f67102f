"""A gateway with tight limits for its clients, and what tests of them ask of it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Any

from tests.support.gateway import RawClient, RunningGateway, chat, running_gateway
from tests.support.scrape import counted
from tests.support.upstream import ScriptedUpstream, Served, answer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

PATIENT = {"header_timeout_s": 60, "body_timeout_s": 60, "write_timeout_s": 60, "keep_alive_s": 60}
CHUNKED = b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\ntransfer-encoding: chunked\r\n\r\n"


@contextlib.asynccontextmanager
async def edge(
    script: Callable[[Served], Any] = answer, **listen: Any
) -> AsyncIterator[tuple[RunningGateway, ScriptedUpstream]]:
    """A gateway with these limits; whatever happens, it is at rest at the end and nothing of ours went wrong."""
    async with (
        ScriptedUpstream(script) as upstream,
        running_gateway([upstream.url], listen={**PATIENT, **listen}) as gw,
    ):
        yield gw, upstream
        await gw.until(lambda g: gw.in_flight == 0 and not g.connections and not g.tasks)
        gw.assert_at_rest()
        assert gw.gateway.request_buffer.used == 0
        assert counted(gw.gateway, "warmroute_request_bytes_buffered") == 0
        assert counted(gw.gateway, "warmroute_connections") == 0
        assert counted(gw.gateway, "warmroute_requests_total", status="500") == 0


def closed(gw: RunningGateway, reason: str) -> float:
    return counted(gw.gateway, "warmroute_connections_closed_total", reason=reason)


async def assert_closed(client: RawClient) -> None:
    """By the gateway, with nothing more said."""
    async with asyncio.timeout(10):
        assert await client.reader.read() == b""


async def assert_refused(client: RawClient, status: int, code: str) -> None:
    response = await client.receive()
    assert response.status == status
    assert response.header("connection") == "close"
    assert (await response.error())["code"] == code
    await assert_closed(client)


async def assert_served(client: RawClient, text: str = "next") -> None:
    response = await client.ask(chat(text))
    assert response.status == 200
    await response.read()
    assert response.complete


def small_buffers(gw: RunningGateway, client: RawClient | None = None) -> None:
    """In the kernel, so that a client that does not read is felt early."""
    if client is None:
        gw.process._traffic.listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
    else:
        client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)

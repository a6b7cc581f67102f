"""A backend whose streams stay open until they are let go, and clients that keep them so."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.support.upstream import DONE, SSE_HEAD, ScriptedUpstream, Served, chunk, token

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from contextlib import AsyncExitStack

    from tests.support.gateway import RawClient, Response, RunningGateway


@dataclass
class Holding:
    """The script: a request with `hold` gets its first token, and the rest after `let_go`. All others are answered at
    once, without usage, so that nothing is learned from them."""

    released: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, served: Served) -> None:
        if not served.json.get("hold"):
            await (served.stream(token()) if served.json.get("stream") else served.respond({"choices": []}))
            return
        await served.write(SSE_HEAD + chunk(token()))
        await self.released.wait()
        await served.write(chunk(DONE) + b"0\r\n\r\n")

    def let_go(self) -> None:
        self.released.set()


@dataclass
class Held:
    """A stream after its first token."""

    client: RawClient
    response: Response
    chunks: AsyncIterator[bytes]

    @property
    def backend(self) -> str:
        return self.response.header("x-warmroute-backend") or ""

    async def end(self) -> None:
        async for _ in self.chunks:
            pass
        assert self.response.complete


async def hold(
    gw: RunningGateway, stack: AsyncExitStack, body: dict[str, Any], headers: Mapping[str, str] | None = None
) -> Held:
    """A stream that runs until its backend lets go; the next request sees it decode."""
    client = await stack.enter_async_context(gw.client())
    response = await client.ask({**body, "stream": True, "hold": True}, headers=headers or {})
    assert response.status == 200
    chunks = response.chunks()
    async with asyncio.timeout(10):
        assert await anext(chunks)
    return Held(client, response, chunks)


async def place(
    client: RawClient,
    body: dict[str, Any],
    headers: Mapping[str, str] | None = None,
    path: str = "/v1/chat/completions",
) -> str:
    """Where an ordinary request goes."""
    response = await client.ask(body, headers=headers or {}, path=path)
    assert response.status == 200, await response.read()
    await response.read()
    return response.header("x-warmroute-backend") or ""


async def fleet(
    stack: AsyncExitStack, names: Mapping[str, tuple[str, ...]], script: Holding
) -> tuple[dict[str, ScriptedUpstream], list[dict[str, Any]]]:
    """Backends by name with the models they have, and their entries in a config."""
    upstreams = {
        name: await stack.enter_async_context(ScriptedUpstream(script, models=models)) for name, models in names.items()
    }
    return upstreams, [{"name": name, "url": upstream.url} for name, upstream in upstreams.items()]

"""Asks engines for the token ids of prompts. Off the hot path, on httpx2.

Invariant: one client per backend and endpoint, closed when the backend leaves or its endpoint changes.
"""

from __future__ import annotations

import asyncio
import sys
from array import array
from typing import TYPE_CHECKING, Any, Final

import httpx2
import msgspec

from backends.engines.protocol import Ask

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from backends.backend import Backend
    from backends.engines import Engine
    from backends.engines.protocol import PromptKind
    from backends.upstream import Endpoint

_MAX_ANSWER_BYTES: Final = 32 << 20
_INLINE_BYTES: Final = 32 * 1024
_MAX_STEPS: Final = 2
_LIMITS: Final = httpx2.Limits(max_connections=16, max_keepalive_connections=4, keepalive_expiry=30.0)
_LOADS: Final = msgspec.json.Decoder()
_OTHER_WAY: Final = frozenset((400, 403, 404, 405, 422, 500, 501))
"""The next way of asking may succeed. 400 and 403 too: one may want flags of the server that another does without (vLLM
0.32 forbids `render` without --enable-scale-out)."""


class NotAnswered(Exception):
    """No engine that can be asked, or it did not give ids: `status` is that of its last answer."""

    def __init__(self, reason: str, status: int | None = None) -> None:
        super().__init__(reason)
        self.status = status


class TokenClient:
    """Time limits are the caller's: a call can be cancelled at any time."""

    def __init__(self) -> None:
        self._clients: dict[Backend, tuple[Endpoint, httpx2.AsyncClient]] = {}
        self._ways: dict[tuple[int, str], int] = {}
        """By instance and kind of prompt: the way of asking that worked last."""

    async def ids(self, backend: Backend, kind: PromptKind, body: Mapping[str, Any]) -> bytes:
        """Token ids of a request's prompt, 4 bytes each, little-endian. Values of `body` may be msgspec.Raw. Raises
        NotAnswered, httpx2.HTTPError, and ValueError for an answer that is no list of ids."""
        engine = backend.instance.engine
        asks = engine.token_asks(kind, body) if engine is not None else ()
        if engine is None or not asks:
            raise NotAnswered("the engine cannot be asked")
        way = (backend.instance.id, kind)
        first = self._ways.get(way, 0)
        status: int | None = None
        for at in range(first if first < len(asks) else 0, len(asks)):
            status, ids = await self._follow(backend, engine, asks[at])
            if ids is not None:
                self._ways[way] = at
                return ids
            if status not in _OTHER_WAY:
                break
        raise NotAnswered("the engine gave no token ids", status)

    async def keep(self, backends: Iterable[Backend]) -> None:
        """Close the clients of all others."""
        kept = set(backends)
        instances = {backend.instance.id for backend in kept}
        self._ways = {way: at for way, at in self._ways.items() if way[0] in instances}
        for backend in self._clients.keys() - kept:
            await self._clients.pop(backend)[1].aclose()

    async def close(self) -> None:
        await self.keep(())

    async def _follow(self, backend: Backend, engine: Engine, ask: Ask) -> tuple[int, bytes | None]:
        """(status, ids or None) of a way that may take several steps."""
        for _ in range(_MAX_STEPS):
            status, answer = await self._post(backend, ask)
            if status != 200:
                return status, None
            if len(answer) <= _INLINE_BYTES:
                found = _read(engine, answer)
            else:
                found = await asyncio.to_thread(_read, engine, answer)
            if isinstance(found, bytes):
                return status, found
            ask = found
        raise ValueError("no token ids in the answer")

    async def _post(self, backend: Backend, ask: Ask) -> tuple[int, bytes]:
        endpoint = backend.spec.endpoint
        client = await self._client(backend, endpoint)
        extensions = {"sni_hostname": endpoint.server_hostname} if endpoint.server_hostname else {}
        content = msgspec.json.encode(ask.body)
        async with client.stream("POST", ask.path, content=content, extensions=extensions) as response:
            body = bytearray()
            async for part in response.aiter_bytes():
                body += part
                if len(body) > _MAX_ANSWER_BYTES:
                    raise ValueError("the answer is too large")
            return response.status_code, bytes(body)

    async def _client(self, backend: Backend, endpoint: Endpoint) -> httpx2.AsyncClient:
        known = self._clients.get(backend)
        if known is not None and known[0] == endpoint:
            return known[1]
        headers = {"host": endpoint.host_header, "content-type": "application/json"}
        if endpoint.authorization:
            headers["authorization"] = endpoint.authorization
        client = httpx2.AsyncClient(
            base_url=f"{'https' if endpoint.tls else 'http'}://{endpoint.authority}",
            headers=headers,
            verify=endpoint.tls or False,
            trust_env=False,
            timeout=None,
            limits=_LIMITS,
        )
        self._clients[backend] = endpoint, client
        if known is not None:
            await known[1].aclose()
        return client


def _read(engine: Engine, answer: bytes) -> bytes | Ask:
    found = engine.read_tokens(_LOADS.decode(answer))
    if isinstance(found, Ask):
        return found
    ids = array("I", found)
    if sys.byteorder == "big":
        ids.byteswap()
    return ids.tobytes()

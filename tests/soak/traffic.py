"""Clients of all kinds, which know what they should get and tell the tally when it is something else."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tests.soak.tally import KILLED_STREAM, Tally
from tests.support.gateway import RawClient, Response

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from tests.soak.processes import Engine

ANSWER_TIMEOUT_S: Final = 60.0
KILL_SLACK_S: Final = 10.0
"""A kill and what a client sees of it are at most so far apart."""
SESSIONS: Final = 300
"""A corpus of so many sessions is played over and over: what is bounded by size is full after the warm-up."""
TURNS: Final = 6
_WORDS: Final = ("cache", "block", "prefix", "token", "prompt", "session", "turn", "tool", "answer", "index")


class Unexpected(Exception):
    """The text is the cause under which it is counted."""


@dataclass
class Plan:
    port: int
    keys: tuple[str, ...]
    engines: Mapping[str, Engine]
    tally: Tally
    stop: asyncio.Event


def text_of(seed: str, words: int) -> str:
    rng = random.Random(seed)
    return " ".join(rng.choice(_WORDS) + str(rng.randrange(1000)) for _ in range(words))


def conversation(session: int, turns: int) -> list[dict[str, str]]:
    messages = [{"role": "system", "content": text_of(f"system {session % 5}", 300)}]
    for turn in range(turns):
        messages.append({"role": "user", "content": text_of(f"{session} {turn}", 120)})
        if turn + 1 < turns:
            messages.append({"role": "assistant", "content": text_of(f"{session} {turn} answer", 40)})
    return messages


class Client:
    """One connection at a time, one request after the other."""

    def __init__(self, plan: Plan, number: int) -> None:
        self._plan = plan
        self._rng = random.Random(number)
        self._client: RawClient | None = None
        self._spent = False
        """The gateway closes it after the answer that came last."""
        self._key = plan.keys[number % len(plan.keys)]
        kinds: list[tuple[int, str, Callable[[], Awaitable[None]]]] = [
            (30, "chat, streamed", self._chat_stream),
            (20, "chat, whole", self._chat_whole),
            (8, "completions", self._completions),
            (8, "messages, streamed", self._messages),
            (4, "embeddings", self._embeddings),
            (6, "left in the middle of the answer", self._leaves_early),
            (4, "left before the answer", self._leaves_at_once),
            (3, "reads slowly", self._reads_slowly),
            (3, "large body", self._large_body),
            (3, "refused: no key", self._no_key),
            (3, "refused: no such model", self._no_model),
            (2, "refused: no JSON", self._no_json),
            (2, "refused: no HTTP", self._no_http),
            (1, "left in the middle of its own body", self._half_a_body),
        ]
        self._kinds = {name: act for _, name, act in kinds}
        self._names = [name for weight, name, _ in kinds for _ in range(weight)]

    async def run(self) -> None:
        tally = self._plan.tally
        try:
            while not self._plan.stop.is_set():
                name = self._rng.choice(self._names)
                try:
                    async with asyncio.timeout(ANSWER_TIMEOUT_S):
                        await self._kinds[name]()
                    tally.done[name] += 1
                except Unexpected as error:
                    tally.errors[str(error) if str(error) == KILLED_STREAM else f"{name}: {error}"] += 1
                    await self._hang_up()
                except TimeoutError:
                    tally.errors[f"{name}: no end within {ANSWER_TIMEOUT_S:g} s"] += 1
                    await self._hang_up()
                except (ConnectionError, asyncio.IncompleteReadError) as error:
                    tally.errors[f"{name}: the connection ended ({type(error).__name__})"] += 1
                    await self._hang_up()
        finally:
            await self._hang_up()

    # The connection.

    async def _connected(self) -> RawClient:
        if self._spent:
            await self._hang_up()
        if self._client is None:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._plan.port, limit=1 << 22)
            self._client = RawClient(reader, writer)
        return self._client

    async def _hang_up(self) -> None:
        client, self._client, self._spent = self._client, None, False
        if client is not None:
            client.reset()
            await client.close()

    async def _ask(self, path: str, body: bytes | dict[str, Any], *, key: str | None = None) -> Response:
        client = await self._connected()
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        headers = {"authorization": f"Bearer {key or self._key}"}
        await client.send(body, path=path, headers=headers)
        response = await client.receive(ANSWER_TIMEOUT_S)
        self._plan.tally.first_byte_s.append(loop.time() - began_s)
        self._spent = response.header("connection") == "close"
        return response

    async def _whole(self, response: Response, status: int) -> bytes:
        data = await response.read()
        if response.status != status:
            raise Unexpected(f"status {response.status} {_code(data)}")
        if not response.complete:
            raise Unexpected("an answer that was cut short")
        return data

    async def _streamed(self, response: Response, end: bytes) -> None:
        if response.status != 200:
            raise Unexpected(f"status {response.status} {_code(await response.read())}")
        data = await response.read()
        if response.complete and end in data and b'"error"' not in data:
            return
        if response.complete and b"upstream_truncated" in data and end not in data:
            if self._was_killed(response.header("x-warmroute-backend")):
                raise Unexpected(KILLED_STREAM)
            raise Unexpected("an in-band error of a backend that lives")
        raise Unexpected("a stream without its end" if response.complete else "a stream that was cut")

    def _was_killed(self, backend: str | None) -> bool:
        now_s = asyncio.get_running_loop().time()
        engine = self._plan.engines.get(backend or "")
        return engine is not None and any(now_s - at_s < KILL_SLACK_S for at_s in engine.killed_at)

    # The kinds.

    def _chat_body(self, *, stream: bool, **more: Any) -> dict[str, Any]:
        messages = conversation(self._rng.randrange(SESSIONS), self._rng.randint(1, TURNS))
        return {"model": "demo", "stream": stream, "messages": messages, **more}

    async def _chat_stream(self) -> None:
        body = self._chat_body(stream=True, stream_options={"include_usage": True})
        await self._streamed(await self._ask("/v1/chat/completions", body), b"data: [DONE]")

    async def _chat_whole(self) -> None:
        data = await self._whole(await self._ask("/v1/chat/completions", self._chat_body(stream=False)), 200)
        if "choices" not in json.loads(data):
            raise Unexpected("an answer without choices")

    async def _completions(self) -> None:
        prompt = text_of(f"completion {self._rng.randrange(SESSIONS)}", 200)
        body = {"model": "demo", "prompt": prompt, "stream": self._rng.random() < 0.5}
        response = await self._ask("/v1/completions", body)
        if body["stream"]:
            await self._streamed(response, b"data: [DONE]")
        else:
            await self._whole(response, 200)

    async def _messages(self) -> None:
        session = self._rng.randrange(SESSIONS)
        system, *messages = conversation(session, self._rng.randint(1, TURNS))
        body = {"model": "demo", "stream": True, "max_tokens": 24, "system": system["content"], "messages": messages}
        await self._streamed(await self._ask("/v1/messages", body), b"message_stop")

    async def _embeddings(self) -> None:
        await self._whole(await self._ask("/v1/embeddings", {"model": "demo", "input": "some text"}), 200)

    async def _leaves_early(self) -> None:
        response = await self._ask("/v1/chat/completions", self._chat_body(stream=True, max_tokens=500))
        async for _ in response.chunks():
            break
        await self._hang_up()

    async def _leaves_at_once(self) -> None:
        client = await self._connected()
        headers = {"authorization": f"Bearer {self._key}"}
        await client.send(self._chat_body(stream=self._rng.random() < 0.5), headers=headers)
        await asyncio.sleep(self._rng.random() * 0.02)
        await self._hang_up()

    async def _reads_slowly(self) -> None:
        response = await self._ask("/v1/chat/completions", self._chat_body(stream=True))
        await asyncio.sleep(self._rng.random() * 2)
        await self._streamed(response, b"data: [DONE]")

    async def _large_body(self) -> None:
        content = text_of(f"large {self._rng.randrange(10)}", 4000)
        body = {"model": "demo", "max_tokens": 1, "messages": [{"role": "user", "content": content}]}
        await self._whole(await self._ask("/v1/chat/completions", body), 200)

    async def _no_key(self) -> None:
        client = await self._connected()
        await client.send(self._chat_body(stream=False), headers={"authorization": "Bearer nobody-knows-this-key"})
        await self._whole(await client.receive(ANSWER_TIMEOUT_S), 401)
        await self._hang_up()

    async def _no_model(self) -> None:
        """503 while a backend that has just been added has not told its models: it may serve this one."""
        response = await self._ask("/v1/chat/completions", {"model": "other", "messages": []})
        await self._whole(response, 503 if response.status == 503 else 404)

    async def _no_json(self) -> None:
        await self._whole(await self._ask("/v1/chat/completions", b'{"model": '), 400)

    async def _no_http(self) -> None:
        await self._hang_up()
        client = await self._connected()
        client.writer.write(b"this is no HTTP\r\n\r\n")
        await self._whole(await client.receive(ANSWER_TIMEOUT_S), 400)
        await self._hang_up()

    async def _half_a_body(self) -> None:
        await self._hang_up()
        client = await self._connected()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nauthorization: Bearer {self._key}\r\n"
        client.writer.write(head.encode() + b"content-type: application/json\r\ncontent-length: 100000\r\n\r\n{")
        await client.writer.drain()
        await asyncio.sleep(self._rng.random() * 0.1)
        await self._hang_up()


def _code(data: bytes) -> str:
    """The error's stable code, from either shape."""
    try:
        error = json.loads(data)["error"]
        return str(error.get("code") or error.get("type"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return "without a code"

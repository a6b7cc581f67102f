"""The backend that every contender is measured against: four engines' ports in one process, cheap and always the same.

Invariant: a completion is 547 bytes of JSON; a stream is 100 chunks of 214 bytes at a fixed gap, each written on its
own, then `[DONE]`. Usage is plausible: a long prompt whose start was seen on this port counts as cached up to the
length seen, so a gateway that learns from reported cached tokens learns nothing absurd here.

Run as `python -m tests.bench.mock`; prints its ports as one JSON line and ends when standard input closes.
"""

import asyncio
import functools
import json
import random
import sys
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import cast

import httptools
import uvloop

from tests.bench.bodies import SHARED_SYSTEM
from tests.bench.precise_timer import PreciseTimer

PORTS = 4
CHUNKS = 100
GAP_S = 0.02
COMPLETION_BYTES = 547
CHUNK_BYTES = 214
_BYTES_PER_TOKEN = 4
_LONG_PROMPT_BYTES = 8192
_KEY_BYTES = 4096
_KNOWN_PROMPTS = 4096

_CREATED = 1760000000
_ID = "chatcmpl-0123456789abcdef0123456789abcdef"


def completion(prompt_tokens: int, cached_tokens: int) -> bytes:
    """A chat completion of exactly COMPLETION_BYTES; numbers are padded with blanks, which JSON allows."""
    usage = (
        f'{{"prompt_tokens":{prompt_tokens:7d},"total_tokens":{prompt_tokens + 64:7d},"completion_tokens":64,'
        f'"prompt_tokens_details":{{"cached_tokens":{cached_tokens:7d}}}}}'
    )
    text = (
        f'{{"id":"{_ID}","object":"chat.completion","created":{_CREATED},"model":"m","choices":[{{"index":0,'
        '"message":{"role":"assistant","content":"%s"},"logprobs":null,"finish_reason":"stop"}],'
        f'"usage":{usage}}}'
    )
    filler = "The mock answers with words that nobody reads. " * 12
    return (text % filler[: COMPLETION_BYTES - len(text) + 2]).encode()


def chunk(finish_reason: str | None) -> bytes:
    """One SSE event of exactly CHUNK_BYTES, framed as an HTTP chunk."""
    reason = json.dumps(finish_reason)
    text = (
        f'data: {{"id":"{_ID}","object":"chat.completion.chunk","created":{_CREATED},"model":"m",'
        '"choices":[{"index":0,'
        f'"delta":{{"content":"%s"}},"logprobs":null,"finish_reason":{reason}}}]}}\n\n'
    )
    return _framed((text % " token of text"[: CHUNK_BYTES - len(text) + 2].ljust(CHUNK_BYTES - len(text) + 2)).encode())


def _framed(payload: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(payload), payload)


def _usage_chunk(prompt_tokens: int, cached_tokens: int) -> bytes:
    usage = {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + CHUNKS,
        "completion_tokens": CHUNKS,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }
    event = {"id": _ID, "object": "chat.completion.chunk", "created": _CREATED, "model": "m", "choices": []}
    return _framed(b"data: " + json.dumps({**event, "usage": usage}, separators=(",", ":")).encode() + b"\n\n")


_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n"
)
_JSON_HEAD = b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
_TOKEN = chunk(None)
_LAST_TOKEN = chunk("stop")
_DONE = _framed(b"data: [DONE]\n\n") + b"0\r\n\r\n"
_MODELS = {
    "object": "list",
    "data": [{"id": "m", "object": "model", "created": _CREATED, "owned_by": "mock", "max_model_len": 131072}],
}
# what sglang-router and vllm-router ask a worker at start-up, beside what the OpenAI API has
_ABOUT = {"status": "ok", "model_path": "m", "model_id": "m", "served_model_name": "m", "is_generation": True}
_ABOUT_MORE = {"version": "0.11.0", "tp_size": 1, "dp_size": 1, "load": 0, "max_total_num_tokens": 1_000_000}
_METRICS = """\
# TYPE process_start_time_seconds gauge
process_start_time_seconds {start}
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="m"}} 0.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{engine="0",model_name="m"}} 0.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} 0.1
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{{block_size="16",enable_prefix_caching="True",engine="0",num_gpu_blocks="65536"}} 1.0
# TYPE vllm:prefix_cache_queries counter
vllm:prefix_cache_queries_total{{engine="0",model_name="m"}} 0.0
# TYPE vllm:prefix_cache_hits counter
vllm:prefix_cache_hits_total{{engine="0",model_name="m"}} 0.0
"""


@dataclass(slots=True)
class Engine:
    """What one port remembers."""

    start_s: float
    random: random.Random
    small_prompts: int = 0
    seen_bytes: OrderedDict[bytes, int] = field(default_factory=OrderedDict)

    def tokens(self, body: bytes) -> tuple[int, int]:
        """Prompt tokens and cached tokens to report for this body; the body then counts as seen."""
        size = len(body)
        if size < _LONG_PROMPT_BYTES:
            self.small_prompts += 1
            cached_bytes = len(SHARED_SYSTEM) if self.small_prompts > 1 else 0
        else:
            key = body[:_KEY_BYTES]
            cached_bytes = self.seen_bytes.pop(key, 0)
            self.seen_bytes[key] = size
            if len(self.seen_bytes) > _KNOWN_PROMPTS:
                self.seen_bytes.popitem(last=False)
        cached_tokens = min(cached_bytes, size - 1) // _BYTES_PER_TOKEN // 16 * 16
        return max(1, size // _BYTES_PER_TOKEN), cached_tokens

    def about(self, path: bytes) -> bytes:
        """The answer to any GET: metrics, models, or something that satisfies a probe."""
        if path.startswith(b"/metrics"):
            return _METRICS.format(start=self.start_s).encode()
        return json.dumps(_MODELS if path.startswith(b"/v1/models") else {**_ABOUT, **_ABOUT_MORE}).encode()


class Stream:
    """One SSE answer under way."""

    def __init__(self, transport: asyncio.Transport, timer: PreciseTimer, tail: bytes, first_s: float) -> None:
        self.transport = transport
        self.timer = timer
        self.tail = tail
        self.due_s = first_s
        self.sent = 0
        self.ended = False
        transport.write(_STREAM_HEAD)
        timer.call_at(first_s, self.tick)

    def tick(self) -> None:
        """Write the chunk that is due, and the end right after the last one."""
        if self.ended:
            return
        self.sent += 1
        if self.sent == CHUNKS:
            self.transport.write(_LAST_TOKEN)
            self.transport.write(self.tail)
            self.ended = True
            return
        self.transport.write(_TOKEN)
        self.due_s += GAP_S
        self.timer.call_at(self.due_s, self.tick)


class Connection(asyncio.Protocol):
    """One connection of a gateway. Its requests do not overlap: none of the contenders pipelines."""

    def __init__(self, engine: Engine, timer: PreciseTimer) -> None:
        self.engine = engine
        self.timer = timer
        self.parser = httptools.HttpRequestParser(self)
        self.path = b""
        self.parts: list[bytes] = []
        self.stream: Stream | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.stream is not None:
            self.stream.ended = True

    def on_message_begin(self) -> None:
        self.path = b""
        self.parts = []

    def on_url(self, url: bytes) -> None:
        self.path += url

    def on_body(self, body: bytes) -> None:
        self.parts.append(body)

    def on_message_complete(self) -> None:
        if self.parser.get_method() != b"POST":
            answer = self.engine.about(self.path)
            self.transport.write(_JSON_HEAD % (len(answer), answer))
            return
        body = b"".join(self.parts)
        self.parts = []
        prompt_tokens, cached_tokens = self.engine.tokens(body)
        if b'"stream":true' in body:
            usage = _usage_chunk(prompt_tokens, cached_tokens) if b'"include_usage":true' in body else b""
            first_s = time.monotonic() + GAP_S * self.engine.random.random()
            self.stream = Stream(self.transport, self.timer, usage + _DONE, first_s)
        else:
            answer = completion(prompt_tokens, cached_tokens)
            self.transport.write(_JSON_HEAD % (len(answer), answer))


async def serve() -> None:
    """Serve until standard input closes."""
    loop = asyncio.get_running_loop()
    timer = PreciseTimer(loop)
    engines = [Engine(time.time(), random.Random(port)) for port in range(PORTS)]
    servers = [
        await loop.create_server(functools.partial(Connection, engine, timer), "127.0.0.1", 0) for engine in engines
    ]
    print(json.dumps([server.sockets[0].getsockname()[1] for server in servers]), flush=True)
    try:
        await loop.run_in_executor(None, sys.stdin.read)
    finally:
        for server in servers:
            server.close()
        timer.close()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve())

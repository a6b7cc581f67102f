"""The prompts of the workloads: chat bodies as the `openai` client writes them, made from a seed.

Invariant: the same seed gives the same bytes, so every contender of a round gets the same requests; different seeds
share no prefix beyond what a workload says. Texts have line breaks, quotes and a few letters beyond ASCII, as often as
real chats have them, because these decide what parsing costs: with one such letter in 100 a router that matches
characters pays 1.6 times as much.
"""

import json
import random
import re
from collections.abc import Iterator
from typing import Any

SHARED_SYSTEM = (
    "You are a careful assistant of a travel company. Answer in short sentences. "
    "Never promise a refund before the rules of the ticket are read. " * 2
)
SESSION_START_BYTES = 50_000
SESSION_TURNS = 20
_MESSAGE_BYTES = 1000
_TURN_MESSAGE_BYTES = 440
_WORDS = re.findall(
    r"\w+",
    "the of and to in is that for it as with was on be by this are from "
    "or an at not have which one can function return value index request session token prefix cache engine "
    "router block worker queue latency please show me how you would change file line error stack trace test "
    "module import class method naive source reply larger city data result table column customer flight seat baggage "
    "price refund payment ",
)
_MARKS = (". ", ",\n", ' "quoted" ', ": ", "\n\n", " (see `code()`) ")
_RARE_MARKS = (" — ", "’s ", " → ")
_RARE = 1 / 50  # one letter beyond ASCII in some 3,000, as in the agent transcripts of tests/data/traces


def text(rng: random.Random, size: int) -> str:
    """About `size` bytes of prose with line breaks, quotes and non-ASCII letters."""
    parts: list[str] = []
    length = 0
    while length < size:
        marks = _RARE_MARKS if rng.random() < _RARE else _MARKS
        part = " ".join(rng.choices(_WORDS, k=9)) + rng.choice(marks)
        parts.append(part)
        length += len(part.encode())
    return "".join(parts)


def _dumps(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _message(role: str, content: str) -> bytes:
    return _dumps({"role": role, "content": content})


def _body(messages: bytes, stream: bool) -> bytes:
    return b'{"messages":[%s],"model":"m","max_tokens":64%s}' % (messages, b',"stream":true' if stream else b"")


def small(seed: int, count: int, stream: bool = False) -> list[bytes]:
    """Bodies of about 1 KB: a system prompt that all share, and a question of their own."""
    rng = random.Random(seed)
    system = _message("system", SHARED_SYSTEM)
    return [_body(system + b"," + _message("user", text(rng, 640)), stream) for _ in range(count)]


def _long_chat(rng: random.Random, size: int) -> bytes:
    opening = f"Session {rng.getrandbits(64):016x}. " + text(rng, _MESSAGE_BYTES)
    messages = [_message("system", opening)]
    length = len(messages[0])
    while length < size:
        role = "user" if len(messages) % 2 else "assistant"
        messages.append(_message(role, text(rng, _MESSAGE_BYTES)))
        length += len(messages[-1]) + 1
    if len(messages) % 2:
        messages.append(_message("user", text(rng, _MESSAGE_BYTES)))
    return b",".join(messages)


def cold(seed: int, count: int) -> list[bytes]:
    """Bodies of about 60 KB and 60 messages that share nothing with one another."""
    rng = random.Random(seed)
    return [_body(_long_chat(rng, 60_000), stream=False) for _ in range(count)]


def session(seed: int) -> Iterator[bytes]:
    """One chat of about 48 messages and 50 KB, then SESSION_TURNS bodies that each add an answer and a question.

    The first body is for warming up; the others are 51 to 70 KB, 60 KB in the mean, and only their last turn is new.
    """
    rng = random.Random(seed)
    messages = _long_chat(rng, SESSION_START_BYTES)
    yield _body(messages, stream=False)
    for _ in range(SESSION_TURNS):
        answer = _message("assistant", text(rng, _TURN_MESSAGE_BYTES))
        question = _message("user", text(rng, _TURN_MESSAGE_BYTES))
        messages = b",".join((messages, answer, question))
        yield _body(messages, stream=False)


def raw_request(port: int, body: bytes) -> bytes:
    """The body as an HTTP/1.1 request with the headers that the `openai` client sends."""
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nAccept-Encoding: gzip, deflate\r\n"
        b"Connection: keep-alive\r\nAccept: application/json\r\nContent-Type: application/json\r\n"
        b"User-Agent: AsyncOpenAI/Python 2.0.0\r\nAuthorization: Bearer bench-key-0123456789\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (port, len(body), body)
    )

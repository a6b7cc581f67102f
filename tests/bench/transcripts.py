"""Recorded agent sessions as lists of requests, and the order in which a replay sends them.

Invariant: pure. The same files and seed give the same requests in the same order, whatever answers them; two
transcripts that begin alike give messages that begin alike.
"""

import gzip
import hashlib
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "data" / "traces"
FILES = ("tau_bench_airline_gpt4o.jsonl.gz", "swe_agent_demos.jsonl.gz")
BLOCK_BYTES = 64
Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Transcript:
    """One session. A turn is an assistant message; its request is every message before it."""

    messages: tuple[Message, ...]
    turns: tuple[int, ...]

    def request(self, turn: int) -> list[Message]:
        """The messages to send for a turn, the recorded answers of the earlier turns among them."""
        return list(self.messages[: self.turns[turn]])


def load(folder: Path = FOLDER) -> list[Transcript]:
    """All transcripts, file by file in their order."""
    found: list[Transcript] = []
    for name in FILES:
        with gzip.open(folder / name, "rt", encoding="utf-8") as lines:
            found.extend(transcript(json.loads(line)["messages"]) for line in lines)
    return found


def transcript(recorded: Sequence[Message]) -> Transcript:
    """Recorded messages as the OpenAI API wants them. Tool-call ids, which no record has, are made from positions."""
    messages: list[Message] = []
    open_calls: list[str] = []
    for position, message in enumerate(recorded):
        role, content = message["role"], message.get("content")
        if role == "assistant" and message.get("tool_calls"):
            calls = [_call(f"call_{position}_{n}", call) for n, call in enumerate(message["tool_calls"])]
            open_calls = [call["id"] for call in calls]
            messages.append({"role": role, "content": content, "tool_calls": calls})
        elif role == "tool":
            call_id = open_calls.pop(0) if open_calls else f"call_{position}_0"
            messages.append({"role": role, "tool_call_id": call_id, "content": content or ""})
        else:
            messages.append({"role": role, "content": content or ""})
    turns = tuple(n for n, message in enumerate(messages) if message["role"] == "assistant" and n > 0)
    return Transcript(tuple(messages), turns)


def _call(call_id: str, recorded: Message) -> Message:
    function = {"name": recorded["name"], "arguments": recorded["arguments"]}
    return {"id": call_id, "type": "function", "function": function}


def interleave(turns: Sequence[int], sessions_at_once: int, seed: int) -> Iterator[tuple[int, int]]:
    """(session, turn) in the order to send: so many sessions are open, and in each round every one takes a turn.

    `turns` has the number of turns of each session. A session that ends makes room for the next of the list. The order
    within a round is shuffled: in a fixed one, `round_robin` over 4 backends would by accident keep sessions in place.
    """
    rng = random.Random(seed)
    waiting = iter([session for session, count in enumerate(turns) if count])
    open_sessions = [(session, 0) for session, _ in zip(waiting, range(sessions_at_once), strict=False)]
    while open_sessions:
        rng.shuffle(open_sessions)
        yield from open_sessions
        following: list[tuple[int, int]] = []
        for session, turn in open_sessions:
            if turn + 1 < turns[session]:
                following.append((session, turn + 1))
            elif (next_session := next(waiting, None)) is not None:
                following.append((next_session, 0))
        open_sessions = following


def mean_live_blocks(transcripts: Sequence[Transcript], order: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """Size of what is live, in 64-byte blocks, in the mean over requests: two readings of it.

    First the whole lengths of all open sessions added up; then the distinct blocks in their last prompts, where the
    system prompt that many share counts once. A prompt is `role NUL content NUL` per message, in UTF-8, as engine and
    gateway encode it without a tokenizer.
    """
    whole = [len(_blocks(t.messages)) for t in transcripts]
    held: dict[int, list[bytes]] = {}
    whole_total = distinct_total = 0
    for session, turn in order:
        held[session] = _blocks(transcripts[session].request(turn))
        whole_total += sum(whole[open_session] for open_session in held)
        distinct_total += len(set().union(*held.values()))
        if turn + 1 == len(transcripts[session].turns):
            del held[session]
    return whole_total / max(1, len(order)), distinct_total / max(1, len(order))


def _blocks(messages: Sequence[Message]) -> list[bytes]:
    text = "".join(f"{m['role']}\0{m['content'] or ''}\0" for m in messages).encode("utf-8", "surrogatepass")
    chained = hashlib.blake2b(digest_size=8)
    blocks: list[bytes] = []
    for start in range(0, len(text) - BLOCK_BYTES + 1, BLOCK_BYTES):
        chained.update(text[start : start + BLOCK_BYTES])
        blocks.append(chained.digest())
    return blocks

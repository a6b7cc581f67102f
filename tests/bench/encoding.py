"""Micro-benchmarks of encoding: one more turn of a session, cold prompts, the libraries behind `tokens`."""

from __future__ import annotations

import asyncio
import inspect
import json
import random
from pydoc_data.topics import topics
from statistics import median
from time import perf_counter, process_time

import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from prefix_index.encoding.bytes_encoder import BytesEncoder
from prefix_index.encoding.protocol import Encoded, Encoder, Namespace, Prompt
from prefix_index.encoding.template import ChatTemplate
from prefix_index.encoding.tokenizer import CheckedTokenizer
from prefix_index.encoding.tokens_encoder import TokensEncoder

_ROUNDS = 25
_NAMESPACE = Namespace("model")
_SIZES = {"60k": 60, "400k": 400}
"""Messages of a kilobyte each."""
_BUDGET_TURN_US = {"bytes": {"60k": 60.0, "400k": 1_040.0}, "tokens": {"60k": 312.0, "400k": 1_040.0}}
_CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def _row(name: str, value: float, unit: str, budget: float | None = None) -> dict[str, object]:
    return {
        "name": name,
        "value": round(value, 3),
        "unit": unit,
        "peer": "budget" if budget else None,
        "ratio": round(value / budget, 3) if budget else None,
    }


def _conversation(rng: random.Random, messages: int) -> list[dict[str, str]]:
    """Prose with quotes, newlines and code, cut from the interpreter's own help texts."""
    text = "\n".join(sorted(topics.values()))
    starts = [rng.randrange(len(text) - 1000) for _ in range(messages)]
    return [
        {"role": ("user", "assistant")[number % 2], "content": text[start : start + 1000]}
        for number, start in enumerate(starts)
    ]


def tiny_vocabulary() -> str:
    """A byte-level BPE of 4,096 tokens with ChatML's special tokens."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=4096,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sorted(topics.values()), trainer)
    text: str = tokenizer.to_str()
    return text


async def _encode(encoder: Encoder, raw: bytes) -> Encoded | None:
    result = encoder.encode(Prompt(raw, None), _NAMESPACE)
    return await result if inspect.isawaitable(result) else result


async def _timed_us(encoder: Encoder, raw: bytes) -> tuple[float, float]:
    """Wall and CPU time (all threads of this process)."""
    wall, cpu = perf_counter(), process_time()
    await _encode(encoder, raw)
    return (perf_counter() - wall) * 1e6, (process_time() - cpu) * 1e6


async def _session_rows(encoder: Encoder) -> list[dict[str, object]]:
    rows = []
    for size, messages in _SIZES.items():
        cold: list[float] = []
        wall: list[float] = []
        cpu: list[float] = []
        for number in range(_ROUNDS):
            talk = _conversation(random.Random(number), messages + 2)
            before, after = (json.dumps(part).encode() for part in (talk[:-2], talk))
            cold.append((await _timed_us(encoder, before))[0])
            took = await _timed_us(encoder, after)
            wall.append(took[0])
            cpu.append(took[1])
        name = f"encode_{encoder.name}"
        budget = _BUDGET_TURN_US[encoder.name][size]
        rows += [
            _row(f"{name}_{size}_cold", median(cold), "us"),
            _row(f"{name}_{size}_next_turn_cpu", median(cpu), "us", budget),
            _row(f"{name}_{size}_next_turn_wall", median(wall), "us"),
        ]
    return rows


def _library_rows(vocabulary: str) -> list[dict[str, object]]:
    rows = []
    text = "".join(message["content"] for message in _conversation(random.Random(0), 40))
    for name, allow_fast in (("fast", True), ("reference", False)):
        tokenizer = CheckedTokenizer(vocabulary, on_mismatch=print, allow_fast=allow_fast)
        times = []
        for _ in range(7):
            begin = perf_counter()
            tokenizer.ids(text)
            times.append(perf_counter() - begin)
        rows.append(_row(f"tokenise_{name}_40k", len(text) / median(times) / 1e6, "MB/s"))
    return rows


def run() -> list[dict[str, object]]:
    """Rows `{"name", "value", "unit", "peer", "ratio"}`; where the design has a budget, ratio is value over it."""
    vocabulary = tiny_vocabulary()
    tokenizer = CheckedTokenizer(vocabulary, on_mismatch=print)
    encoders: list[Encoder] = [
        BytesEncoder(b"bench"),
        TokensEncoder(b"bench", tokenizer, ChatTemplate(_CHATML), on_mismatch=print),
    ]
    rows: list[dict[str, object]] = []
    for encoder in encoders:
        rows += asyncio.run(_session_rows(encoder))
        encoder.close()
    return rows + _library_rows(vocabulary)

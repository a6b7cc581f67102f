"""What can be set on a simulated engine. Names as in vLLM where vLLM has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from backends.engine.setups import SETUPS, Setup

if TYPE_CHECKING:
    from pathlib import Path

    from backends.engine.scheduler import Policy

DEFAULT_MODEL_LEN: Final = 131_072


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """ValueError for what cannot be. Port 0 is any free one."""

    host: str = "127.0.0.1"
    port: int = 0
    models: tuple[str, ...] = ("demo",)
    """Names of the one model; the first is the one that answers carry when a request names none."""
    adapters: tuple[str, ...] = ()
    """LoRA adapters: further models, each with a cache of its own."""
    setup: str = "llama-3.1-8b"
    speed: float = 1.0
    """How much faster than the real hardware: 10 makes a step of 7 ms take 0.7 ms."""
    block_size: int = 16
    kv_tokens: int | None = None
    """Cache size; None: the set-up's."""
    max_model_len: int | None = None
    """Prompt and output together; None: 131,072 or the whole cache, whichever is less."""
    scheduling_policy: Policy = "fcfs"
    long_prefill_token_threshold: int = 0
    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 256
    max_num_queued_reqs: int | None = None
    """More waiting requests are answered with 503; None: no limit."""
    output_tokens: int = 64
    """Length of a reply where the request sets no max_tokens."""
    tokenizer: Path | None = None
    """A tokenizer.json; None: 4 bytes of text are a token."""
    template: Path | None = None
    """A jinja2 chat template file, used with a tokenizer."""
    kv_events_port: int | None = None
    """KV events over ZMQ on this port of `host`; None: none."""
    kv_events_replay_port: int | None = None
    kv_events_topic: str = ""

    def __post_init__(self) -> None:
        if self.setup not in SETUPS:
            raise ValueError(f"unknown setup {self.setup!r}: one of {', '.join(SETUPS)}")
        if self.speed <= 0:
            raise ValueError("speed must be positive")
        if not self.models:
            raise ValueError("an engine serves at least one model name")
        if min(self.block_size, self.output_tokens, self.max_num_batched_tokens, self.max_num_seqs) < 1:
            raise ValueError("block_size, output_tokens, max_num_batched_tokens and max_num_seqs must be positive")
        if self.capacity_tokens < self.block_size:
            raise ValueError("kv_tokens must hold at least one block")
        if self.kv_events_replay_port is not None and self.kv_events_port is None:
            raise ValueError("kv_events_replay_port needs kv_events_port")

    @property
    def hardware(self) -> Setup:
        return SETUPS[self.setup]

    @property
    def capacity_tokens(self) -> int:
        """Whole blocks only."""
        tokens = self.hardware.kv_tokens if self.kv_tokens is None else self.kv_tokens
        return tokens // self.block_size * self.block_size

    @property
    def model_len(self) -> int:
        return min(self.max_model_len or DEFAULT_MODEL_LEN, self.capacity_tokens)

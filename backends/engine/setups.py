"""Named GPU set-ups and the cost of one engine step. Pure numbers: no state, no clock.

The coefficients were fitted to NVIDIA AIConfigurator 0.12.0 tables (h100_sxm, vLLM 0.24.0, BF16 KV; mean error under
2.6%). Published single points agree within 5-12%, hence `REALITY`.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

REALITY: Final = 0.9
"""Modelled time / measured time."""


@dataclass(frozen=True, slots=True)
class Setup:
    """One model on one kind of hardware. Times in milliseconds, as fitted."""

    slug: str
    overhead_ms: float
    weights_ms: float
    prefill_ms_per_token: float
    decode_ms_per_seq: float
    attention_ms_per_token_ctx: float
    kv_read_ms_per_token: float
    kv_tokens: int


SETUPS: Final[Mapping[str, Setup]] = MappingProxyType(
    {
        setup.slug: setup
        for setup in (
            Setup("llama-3.1-8b", 2.59, 3.86, 0.01958, 0.0109, 7.93e-7, 4.19e-5, 450_000),
            Setup("llama-3.1-8b-fp8", 2.57, 1.89, 0.01420, 0.0103, 7.89e-7, 4.20e-5, 510_000),
            Setup("llama-3.3-70b-tp4", 6.28, 8.93, 0.06155, 0.0323, 9.91e-7, 2.65e-5, 470_000),
            Setup("llama-3.3-70b-tp4-fp8", 7.99, 2.82, 0.04625, 0.0347, 9.71e-7, 2.64e-5, 690_000),
            Setup("llama-3.3-70b-tp8", 6.55, 3.64, 0.03854, 0.0225, 4.98e-7, 1.33e-5, 1_350_000),
            Setup("qwen3-32b-tp2", 6.55, 7.08, 0.04871, 0.0267, 1.60e-6, 4.22e-5, 300_000),
        )
    }
)


def step_s(setup: Setup, prefill_chunks: Iterable[tuple[int, int]], decode_seqs: int, kv_tokens: int) -> float:
    """Seconds that one step takes.

    `prefill_chunks`: (tokens, tokens of the same sequence that were there before); `kv_tokens`: what the decoding
    sequences read.

        ms = (o + max(w, a*P) + c*B + b*sum(P_j * x_j) + d*K) / 0.9        x_j = already there + P_j/2
    """
    tokens, token_ctx = 0, 0.0
    for chunk, before in prefill_chunks:
        tokens += chunk
        token_ctx += chunk * (before + chunk / 2)
    compute = max(setup.weights_ms, setup.prefill_ms_per_token * tokens)
    decode = setup.decode_ms_per_seq * decode_seqs + setup.kv_read_ms_per_token * kv_tokens
    attention = setup.attention_ms_per_token_ctx * token_ctx
    return (setup.overhead_ms + compute + decode + attention) / REALITY / 1000

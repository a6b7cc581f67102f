"""What a prefill costs: the one formula that the costs, the leases and the fit share."""

from __future__ import annotations

from typing import Final, NamedTuple

DEFAULT_P: Final = 2.2e-5
"""s/token: an 8B model on one H100, used until something better is known."""
DEFAULT_Q: Final = 9e-10
"""s/token^2."""


class Rates(NamedTuple):
    """Speed of one backend."""

    p: float = DEFAULT_P
    """s/token."""
    q: float = DEFAULT_Q
    """s/token^2: attention to what came before."""


def prefill_s(p: float, q: float, uncached_tokens: float, prompt_tokens: float) -> float:
    """Seconds to prefill the last `uncached_tokens` of a prompt: each attends to all before it, on average in -
    u/2.
    """
    return p * uncached_tokens + q * uncached_tokens * (prompt_tokens - 0.5 * uncached_tokens)


def rates_of_coefficients(a_ms: float, b_ms: float, efficiency: float = 0.9) -> Rates:
    """Rates from the cost model of an engine step, step_ms = (o + a*P + b*P*x + ...)/efficiency.

    `a_ms` in ms/token, `b_ms` in ms/(token*context token).
    """
    return Rates(a_ms / 1000 / efficiency, b_ms / 1000 / efficiency)

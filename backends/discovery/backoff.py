"""How long to wait after an error. Pure: the caller sleeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random


class Backoff:
    """Doubles from `least_s` up to `most_s`; each delay is drawn from its upper half, so that many gateways that lost
    the same server do not come back in step."""

    def __init__(self, rng: random.Random, least_s: float = 0.5, most_s: float = 30.0) -> None:
        self._rng = rng
        self._least_s = least_s
        self._most_s = most_s
        self._failures = 0

    def next_s(self) -> float:
        longest_s = min(self._most_s, self._least_s * 2.0 ** min(self._failures, 16))
        self._failures += 1
        return longest_s * self._rng.uniform(0.5, 1.0)

    def reset(self) -> None:
        self._failures = 0

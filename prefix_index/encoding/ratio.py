"""Bytes per token of each model, learned from what engines report as `usage.prompt_tokens`.

Invariant: a ratio lies between 1 and 12 and is 4.0 until something was learned.
"""

from __future__ import annotations

from typing import Final

DEFAULT_BYTES_PER_TOKEN: Final = 4.0
_LOWEST: Final = 1.0
_HIGHEST: Final = 12.0
_KEEP: Final = 0.98
"""Weight that a prompt keeps when the next one arrives: the last 50 prompts count for most."""
_MAX_MODELS: Final = 4096


class BytesPerToken:
    """Ratio of exponentially weighted sums, so that a long prompt tells more than a short one of mostly template."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, float]] = {}

    def ratio(self, model: str) -> float:
        sums = self._sums.get(model)
        if sums is None:
            return DEFAULT_BYTES_PER_TOKEN
        return min(max(sums[0] / sums[1], _LOWEST), _HIGHEST)

    def observe(self, model: str, prompt_bytes: int, prompt_tokens: int) -> None:
        """A prompt of so many bytes had so many tokens; a report of nothing teaches nothing, nor does one of more
        tokens than bytes: images are counted in it."""
        if prompt_tokens <= 0 or prompt_bytes < prompt_tokens:
            return
        if model not in self._sums and len(self._sums) >= _MAX_MODELS:
            return
        seen_bytes, seen_tokens = self._sums.get(model, (0.0, 0.0))
        self._sums[model] = (seen_bytes * _KEEP + prompt_bytes, seen_tokens * _KEEP + prompt_tokens)

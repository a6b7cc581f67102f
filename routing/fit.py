"""How fast one backend prefills, learned from the time to first token of requests that met no queue.

    ttft ~ overhead + p*u + q*u*(in - u/2)

Weighted least squares with exponential forgetting, drawn towards the start values. Errors count relative to the
predicted time, so that a few long prompts do not drown all short ones; outliers (a queue that this gateway did not
see) are damped after Huber. The overhead of steps and network is fitted so that p does not have to carry it, and
left out of costs: it is the same everywhere.

Invariant: always finite, p and q within 0.1-10x of their start values, whatever the samples.
"""

from __future__ import annotations

import math
from typing import Final

from routing.prefill import DEFAULT_P, DEFAULT_Q, prefill_s

MIN_SAMPLES: Final = 20
SOLVE_EVERY: Final = 16
"""Samples between two solutions: a solution costs more than all of them."""
FORGETTING: Final = 0.995
"""Weight of the past per sample: the last 200 count."""
CLAMP: Final = 10.0
OVERHEAD_SCALE_S: Final = 0.01
"""What an overhead is likely to be; also the absolute part of a sample's expected error."""
MAX_OVERHEAD_S: Final = 1.0
MIN_UNCACHED_TOKENS: Final = 256
"""Below, reading the weights takes longer than the tokens' arithmetic: time is flat in u and says nothing of p."""
PRIOR_P: Final = 0.05
PRIOR_Q: Final = 0.2
PRIOR_OVERHEAD: Final = 0.01
"""Weight of the start values, in squared relative errors. Short prompts say little of q: there its start value
should stand.
"""
HUBER: Final = 2.0
"""Residuals over so many times the mean one are damped."""
HUBER_FLOOR: Final = 0.02
MAX_TOKENS: Final = 1e9
MAX_TTFT_S: Final = 3600.0


class PrefillFit:
    """Online estimate of p (s/token) and q (s/token^2) of one instance."""

    def __init__(self, p0: float = DEFAULT_P, q0: float = DEFAULT_Q) -> None:
        if not (0.0 < p0 < math.inf and 0.0 < q0 < math.inf):
            raise ValueError("p0 and q0 must be positive and finite")
        self._p0 = p0
        self._q0 = q0
        # in units of the start values: (p/p0, q/q0, overhead/OVERHEAD_SCALE_S)
        self._solution = (1.0, 1.0, 0.0)
        self._moments = (0.0,) * 9  # of the features with each other (xx, xy, xz, yy, yz, zz) and with the target
        self._mean_residual = 0.2
        self._samples = 0

    @property
    def samples(self) -> int:
        return self._samples

    @property
    def p(self) -> float:
        return self._p0 if self._samples < MIN_SAMPLES else self._p0 * self._solution[0]

    @property
    def q(self) -> float:
        return self._q0 if self._samples < MIN_SAMPLES else self._q0 * self._solution[1]

    @property
    def overhead_s(self) -> float:
        """What every request pays beside its prefill; 0 until there are enough samples."""
        return 0.0 if self._samples < MIN_SAMPLES else OVERHEAD_SCALE_S * self._solution[2]

    def add(self, uncached_tokens: float, prompt_tokens: float, ttft_s: float) -> None:
        """One request that waited for nobody. What cannot be true (negative, not finite, hours long) or teaches
        nothing is ignored.
        """
        if not (MIN_UNCACHED_TOKENS <= uncached_tokens <= prompt_tokens <= MAX_TOKENS and 0.0 < ttft_s <= MAX_TTFT_S):
            return
        linear = self._p0 * uncached_tokens
        square = prefill_s(0.0, self._q0, uncached_tokens, prompt_tokens)
        scale = 1.0 / (OVERHEAD_SCALE_S + linear + square)
        x, y, z, target = linear * scale, square * scale, OVERHEAD_SCALE_S * scale, ttft_s * scale
        weight = self._weight(target, x, y, z)
        xx, xy, xz, yy, yz, zz, tx, ty, tz = self._moments
        wx, wy, wz = weight * x, weight * y, weight * z
        self._moments = (
            xx * FORGETTING + wx * x,
            xy * FORGETTING + wx * y,
            xz * FORGETTING + wx * z,
            yy * FORGETTING + wy * y,
            yz * FORGETTING + wy * z,
            zz * FORGETTING + wz * z,
            tx * FORGETTING + wx * target,
            ty * FORGETTING + wy * target,
            tz * FORGETTING + wz * target,
        )
        self._samples += 1
        if self._samples == MIN_SAMPLES:
            self._solve(sweeps=100)
        elif self._samples > MIN_SAMPLES and self._samples % SOLVE_EVERY == 0:
            self._solve(sweeps=12)

    def _weight(self, target: float, x: float, y: float, z: float) -> float:
        """1, or less for a residual far over the usual one. A lasting change gets through, as the usual one follows."""
        a, b, c = self._solution
        residual = abs(target - a * x - b * y - c * z)
        usual = HUBER * self._mean_residual + HUBER_FLOOR
        self._mean_residual += 0.05 * (min(residual, 5.0 * usual) - self._mean_residual)
        return 1.0 if residual <= usual else usual / residual

    def _solve(self, sweeps: int) -> None:
        """Least squares in a box, by coordinate descent from the last solution: no inverse, so never singular."""
        xx, xy, xz, yy, yz, zz, tx, ty, tz = self._moments
        a, b, c = self._solution
        for _ in range(sweeps):
            a = min(max((PRIOR_P + tx - b * xy - c * xz) / (PRIOR_P + xx), 1.0 / CLAMP), CLAMP)
            b = min(max((PRIOR_Q + ty - a * xy - c * yz) / (PRIOR_Q + yy), 1.0 / CLAMP), CLAMP)
            c = min(max((tz - a * xz - b * yz) / (PRIOR_OVERHEAD + zz), 0.0), MAX_OVERHEAD_S / OVERHEAD_SCALE_S)
        self._solution = (a, b, c)

"""The limits of one tenant: requests at once, and per minute.

The rate is kept by GCRA (ITU-T I.371, the virtual scheduling algorithm): one number, the time at which all that was let
through would have been due. Invariant: `admit` and `release` come in pairs, and nothing is counted that was refused.
"""

from __future__ import annotations

from typing import Final

from vocabulary.errors import RateExceeded, TooManyRequests

BURST_S: Final = 10.0
"""So much of the rate may come at once."""
_MAX_RETRY_AFTER_S: Final = 60.0
_SMOOTHING: Final = 0.2
_EPSILON_S: Final = 1e-9


class Quota:
    __slots__ = (
        "_busy_since_s",
        "_due_s",
        "_interval_s",
        "_max_concurrent",
        "_release_gap_s",
        "_requests_per_min",
        "_tolerance_s",
        "in_flight",
    )

    def __init__(self, max_concurrent: int | None = None, requests_per_min: int | None = None) -> None:
        self.in_flight = 0
        self._due_s = float("-inf")
        self._busy_since_s = 0.0
        """Or the last release, if that is later."""
        self._release_gap_s = 1.0
        """How often a place becomes free while any is taken: a moving average."""
        self.set_limits(max_concurrent, requests_per_min)

    def set_limits(self, max_concurrent: int | None, requests_per_min: int | None) -> None:
        """None: no limit. What runs or was let through still counts."""
        self._max_concurrent = max_concurrent
        self._requests_per_min = requests_per_min
        self._interval_s = 60.0 / requests_per_min if requests_per_min else 0.0
        self._tolerance_s = max(0.0, BURST_S - self._interval_s)

    def admit(self, now_s: float) -> None:
        """Raises TooManyRequests or RateExceeded; a request that is refused costs nothing of the rate."""
        if self._max_concurrent is not None and self.in_flight >= self._max_concurrent:
            raise TooManyRequests(
                "this tenant has as many requests under way as tenants[].max_concurrent_requests allows"
                f" ({self._max_concurrent})",
                min(self._release_gap_s, _MAX_RETRY_AFTER_S),
            )
        if self._interval_s:
            self._admit_by_rate(now_s)
        if not self.in_flight:
            self._busy_since_s = now_s
        self.in_flight += 1

    def _admit_by_rate(self, now_s: float) -> None:
        # of a stricter rate before a reload more may be due than this one can ever have let through
        self._due_s = due_s = min(max(self._due_s, now_s), now_s + self._tolerance_s + self._interval_s)
        wait_s = due_s - now_s - self._tolerance_s
        if wait_s > _EPSILON_S:
            raise RateExceeded(
                f"this tenant sends more than tenants[].requests_per_min allows ({self._requests_per_min} on average)",
                wait_s,
            )
        self._due_s = due_s + self._interval_s

    def release(self, now_s: float) -> None:
        self.in_flight -= 1
        gap_s = now_s - self._busy_since_s
        self._busy_since_s = now_s
        self._release_gap_s += _SMOOTHING * (gap_s - self._release_gap_s)

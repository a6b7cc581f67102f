"""What came of every request, by cause, and the verdict over the whole run."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

MAX_SLOPE_MB_PER_MIN: Final = 1.0
KILLED_STREAM: Final = "in-band error of a stream whose backend was killed"


@dataclass
class Tally:
    done: Counter[str] = field(default_factory=Counter)
    """Requests that went as they should, by kind."""
    errors: Counter[str] = field(default_factory=Counter)
    """All others, by cause."""
    first_byte_s: list[float] = field(default_factory=list)
    rss: list[tuple[float, float]] = field(default_factory=list)
    """(minutes, MB) of the gateway, from the end of the warm-up on."""
    leaks: dict[str, float] = field(default_factory=dict)
    """What is left at rest, by what it is; 0 where nothing is."""

    @property
    def requests(self) -> int:
        return self.done.total() + self.errors.total()

    @property
    def unexpected(self) -> int:
        return self.errors.total() - self.errors[KILLED_STREAM]

    @property
    def p99_s(self) -> float:
        ordered = sorted(self.first_byte_s)
        return ordered[max(0, math.ceil(0.99 * len(ordered)) - 1)] if ordered else math.nan

    @property
    def slope_mb_per_min(self) -> float:
        """Least squares."""
        count = len(self.rss)
        if count < 2:
            return math.nan
        mean_x = sum(x for x, _ in self.rss) / count
        mean_y = sum(y for _, y in self.rss) / count
        spread = sum((x - mean_x) ** 2 for x, _ in self.rss)
        return sum((x - mean_x) * (y - mean_y) for x, y in self.rss) / spread

    @property
    def leaked(self) -> float:
        return sum(self.leaks.values())

    @property
    def passed(self) -> bool:
        return self.unexpected == 0 and self.leaked == 0 and self.slope_mb_per_min < MAX_SLOPE_MB_PER_MIN

    def lines(self) -> list[str]:
        """The report; the last line is the verdict."""
        text = ["requests that went as they should:"]
        text += [f"  {count:8d}  {kind}" for kind, count in sorted(self.done.items())]
        text += ["errors by cause:"]
        text += [f"  {count:8d}  {cause}" for cause, count in self.errors.most_common()] or ["         0"]
        text += ["left at rest:"]
        text += [f"  {value:8g}  {what}" for what, value in self.leaks.items()]
        text.append(
            f"soak {'passed' if self.passed else 'FAILED'}: {self.requests} requests,"
            f" {self.errors[KILLED_STREAM]} streams of killed backends told so in band,"
            f" {self.unexpected} other errors, {self.leaked:g} leaks,"
            f" RSS {self.slope_mb_per_min:+.2f} MB/min, first byte p99 {self.p99_s * 1000:.0f} ms"
        )
        return text

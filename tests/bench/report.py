"""Rounds into figures: medians, paired ratios, the printed table and the rows of the JSON file.

Invariant: a ratio is the median over rounds of (ours / peer) within one round, never a quotient of medians, because
the machine's speed drifts between rounds more than the contenders differ.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Measured:
    """One figure of one contender, one value per round, in the order of the rounds."""

    name: str
    unit: str
    contender: str
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Compared:
    """Ours beside one peer: the ratio's median and range over rounds, and in how many rounds ours was lower."""

    ratio: float | None
    low: float
    high: float
    lower_rounds: int
    rounds: int


def compare(ours: Sequence[float], peer: Sequence[float]) -> Compared:
    """Paired ratios. A round in which either figure is not positive (latency below the noise) has none."""
    pairs = list(zip(ours, peer, strict=True))
    ratios = [mine / theirs for mine, theirs in pairs if mine > 0 and theirs > 0]
    lower = sum(mine < theirs for mine, theirs in pairs)
    if not ratios:
        return Compared(None, float("nan"), float("nan"), lower, len(pairs))
    return Compared(statistics.median(ratios), min(ratios), max(ratios), lower, len(pairs))


def peer_rows(measured: Sequence[Measured], ours: str) -> list[Row]:
    """One row per figure and peer: our median, and the paired ratio. A figure without peers has one row."""
    by_figure = {(m.name, m.contender): m for m in measured}
    rows: list[Row] = []
    for name in dict.fromkeys(m.name for m in measured):
        mine = by_figure[name, ours]
        value = round(statistics.median(mine.values), 4)
        peers = [m for m in measured if m.name == name and m.contender != ours]
        for peer in peers:
            ratio = compare(mine.values, peer.values).ratio
            rows.append(_row(name, value, mine.unit, peer.contender, None if ratio is None else round(ratio, 4)))
        if not peers:
            rows.append(_row(name, value, mine.unit, None, None))
    return rows


def _row(name: str, value: float, unit: str, peer: str | None, ratio: float | None) -> Row:
    return {"name": name, "value": value, "unit": unit, "peer": peer, "ratio": ratio}


def peer_table(measured: Sequence[Measured], ours: str) -> str:
    """Every contender's median and range, and ours over it."""
    by_figure = {(m.name, m.contender): m for m in measured}
    lines = [
        f"{'figure':<24} {'contender':<14} {'median (min-max)':>32}  ours/it (min-max), rounds in which ours is lower"
    ]
    for m in measured:
        spread = f"{statistics.median(m.values):.2f} ({min(m.values):.2f}-{max(m.values):.2f}) {m.unit}"
        line = f"{m.name:<24} {m.contender:<14} {spread:>32}"
        if m.contender != ours:
            c = compare(by_figure[m.name, ours].values, m.values)
            ratio = "none" if c.ratio is None else f"{c.ratio:.2f} ({c.low:.2f}-{c.high:.2f})"
            line += f"  {ratio}, {c.lower_rounds}/{c.rounds}"
        lines.append(line)
    return "\n".join(lines)


def micro_table(rows: Sequence[Row]) -> str:
    """The rows that have no peer."""
    width = max((len(row["name"]) for row in rows), default=0)
    return "\n".join(f"{row['name']:<{width}} {row['value']:>14,.2f} {row['unit']}" for row in rows)

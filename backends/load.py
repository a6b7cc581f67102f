"""An engine's own load figures, and the reading of Prometheus text. Which names an engine has is its adapter's."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """None where the engine does not say."""

    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    """Share of the KV cache in use, 0 to 1."""
    capacity_tokens: int | None = None
    block_size: int | None = None
    """Tokens per KV block (SGLang: per page)."""
    start_time_s: float | None = None
    """Unix time at which the engine's process began: a change is a restart."""
    prefix_cache: bool | None = None
    """It reuses the KV blocks of earlier prompts."""


class Samples:
    """Values of several engine ranks or models in one process stand side by side under one name."""

    __slots__ = ("_labels", "_values")

    def __init__(self, values: Mapping[str, list[float]], labels: Mapping[str, list[Mapping[str, str]]]) -> None:
        self._values = values
        self._labels = labels

    def total(self, name: str) -> int | None:
        values = self._values.get(name)
        return int(sum(values)) if values else None

    def mean(self, *names: str) -> float | None:
        """Of the first of these names that is there."""
        values = next((self._values[name] for name in names if name in self._values), None)
        return sum(values) / len(values) if values else None

    def first(self, name: str) -> float | None:
        values = self._values.get(name)
        return values[0] if values else None

    def labels(self, name: str) -> list[Mapping[str, str]]:
        return self._labels.get(name, [])

    def has_prefix(self, prefix: str) -> bool:
        return any(name.startswith(prefix) for name in self._labels)


def read_samples(page: bytes, names: tuple[str, ...]) -> Samples:
    """Samples whose names begin with one of these. Raises ValueError on text that is no Prometheus exposition."""
    values: dict[str, list[float]] = {}
    labels: dict[str, list[Mapping[str, str]]] = {}
    # an engine's page has thousands of lines; the library's parser sees only the few that matter
    lines = [line for line in page.decode().splitlines() if line.startswith(names)]
    for family in text_string_to_metric_families("\n".join([*lines, ""])):
        for sample in family.samples:
            labels.setdefault(sample.name, []).append(sample.labels)
            if math.isfinite(sample.value):
                values.setdefault(sample.name, []).append(sample.value)
    return Samples(values, labels)

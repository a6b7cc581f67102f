"""What `/metrics` shows, as numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from gateway.app import Gateway


def counted(gateway: Gateway, name: str, **labels: str) -> float:
    """Sum over all samples of that name with these labels; 0 where there is none."""
    return sum(
        sample.value
        for family in text_string_to_metric_families(gateway.metrics.render().decode())
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def series(gateway: Gateway) -> set[tuple[str, ...]]:
    """Every sample by its name and labels."""
    return {
        (sample.name, *(f"{name}={value}" for name, value in sorted(sample.labels.items())))
        for family in text_string_to_metric_families(gateway.metrics.render().decode())
        for sample in family.samples
    }

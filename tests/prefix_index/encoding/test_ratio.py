from __future__ import annotations

import pytest

from prefix_index.encoding.ratio import BytesPerToken


def test_four_until_learned_and_per_model() -> None:
    ratios = BytesPerToken()
    assert ratios.ratio("a") == 4.0
    ratios.observe("a", 300, 100)
    assert ratios.ratio("a") == 3.0
    assert ratios.ratio("b") == 4.0


def test_new_prompts_outweigh_old_ones() -> None:
    ratios = BytesPerToken()
    for _ in range(500):
        ratios.observe("a", 300, 100)
    for _ in range(200):
        ratios.observe("a", 500, 100)
    assert ratios.ratio("a") == pytest.approx(5.0, abs=0.1)


def test_a_long_prompt_tells_more_than_a_short_one() -> None:
    ratios = BytesPerToken()
    ratios.observe("a", 40_000, 10_000)
    ratios.observe("a", 20, 10)
    assert ratios.ratio("a") == pytest.approx(4.0, abs=0.1)


@pytest.mark.parametrize(
    ("size", "tokens", "ratio"),
    [(10, 11, 4.0), (10, 10, 1.0), (100_000, 10, 12.0), (0, 10, 4.0), (10, 0, 4.0), (-1, -1, 4.0)],
)
def test_what_cannot_be_is_clamped_or_ignored(size: int, tokens: int, ratio: float) -> None:
    ratios = BytesPerToken()
    ratios.observe("a", size, tokens)
    assert ratios.ratio("a") == ratio


def test_made_up_model_names_do_not_pile_up() -> None:
    ratios = BytesPerToken()
    for number in range(10_000):
        ratios.observe(f"model {number}", 30, 10)
    assert len(ratios._sums) < 5_000

from __future__ import annotations

import pytest

from backends.engine.setups import SETUPS, step_s


def test_a_lone_decode_reads_the_weights() -> None:
    # (2.59 + 3.86 + 0.0109 + 1000 * 4.19e-5) / 0.9
    assert step_s(SETUPS["llama-3.1-8b"], [], 1, 1000) == pytest.approx(7.225333e-3, rel=1e-6)


def test_a_full_prefill_step_is_bound_by_compute() -> None:
    # (2.59 + 0.01958 * 8192 + 7.93e-7 * 8192 * (16384 + 4096)) / 0.9
    assert step_s(SETUPS["llama-3.1-8b"], [(8192, 16384)], 0, 0) == pytest.approx(0.3289236, rel=1e-5)


def test_small_prefills_hide_behind_the_weights() -> None:
    setup = SETUPS["llama-3.3-70b-tp4"]
    with_context = 9.91e-7 * 100 * 50 / 0.9 / 1000
    assert step_s(setup, [(100, 0)], 2, 0) - step_s(setup, [], 2, 0) == pytest.approx(with_context)


def test_all_parts_together() -> None:
    # P = 300, sum(P_j * x_j) = 100 * 1050 + 200 * 100, B = 4, K = 40_000
    expected = (6.55 + max(7.08, 0.04871 * 300) + 0.0267 * 4 + 1.60e-6 * 125_000 + 4.22e-5 * 40_000) / 0.9 / 1000
    assert step_s(SETUPS["qwen3-32b-tp2"], [(100, 1000), (200, 0)], 4, 40_000) == pytest.approx(expected)


def test_the_named_setups() -> None:
    assert {slug: setup.kv_tokens for slug, setup in SETUPS.items()} == {
        "llama-3.1-8b": 450_000,
        "llama-3.1-8b-fp8": 510_000,
        "llama-3.3-70b-tp4": 470_000,
        "llama-3.3-70b-tp4-fp8": 690_000,
        "llama-3.3-70b-tp8": 1_350_000,
        "qwen3-32b-tp2": 300_000,
    }

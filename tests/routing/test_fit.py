"""The step cost used here is the published one: step_ms = (o + max(w, a*P) + c*B + b*P*x + d*K) / 0.9."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing import DEFAULT_P, DEFAULT_Q, PrefillFit, rates_of_coefficients
from routing.fit import MIN_SAMPLES

LLAMA_8B = (2.59, 3.86, 0.01958, 0.0109, 7.93e-7, 4.19e-5)
LLAMA_70B_TP4 = (6.28, 8.93, 0.06155, 0.0323, 9.91e-7, 2.65e-5)


def ttft_s(setup: tuple[float, ...], uncached: int, prompt: int, decoding: int = 0) -> float:
    o, w, a, c, b, d = setup
    done, total_ms = prompt - uncached, 0.0
    while done < prompt:
        step = min(8192 - decoding, prompt - done)
        total_ms += o + max(w, a * step) + c * decoding + b * step * (done + step / 2) + d * decoding * 8000
        done += step
    return total_ms / 0.9 / 1000


def agent_turn(rng: random.Random) -> tuple[int, int]:
    """(uncached, prompt): mostly a short turn on a long context, now and then a cold one."""
    prompt = int(rng.uniform(3000, 120_000))
    return (prompt if rng.random() < 0.1 else min(prompt, 256 + int(rng.expovariate(1 / 1500)))), prompt


@pytest.mark.parametrize("setup", [LLAMA_8B, LLAMA_70B_TP4], ids=["llama-3.1-8b", "llama-3.3-70b-tp4"])
def test_converges_on_the_cost_model(setup: tuple[float, ...]) -> None:
    rng, fit = random.Random(1), PrefillFit()
    for _ in range(150):
        uncached, prompt = agent_turn(rng)
        fit.add(uncached, prompt, ttft_s(setup, uncached, prompt))
    truth = rates_of_coefficients(setup[2], setup[4])
    assert fit.p == pytest.approx(truth.p, rel=0.03)
    assert fit.q == pytest.approx(truth.q, rel=0.03)
    assert fit.overhead_s == pytest.approx(setup[0] / 900, rel=0.5)


def test_bears_decodes_noise_and_queues_it_did_not_see() -> None:
    rng, fit = random.Random(2), PrefillFit()
    for _ in range(400):
        uncached, prompt = agent_turn(rng)
        seconds = ttft_s(LLAMA_8B, uncached, prompt, rng.randrange(16)) * rng.gauss(1, 0.05)
        fit.add(uncached, prompt, seconds + (rng.uniform(0.1, 5) if rng.random() < 0.05 else 0))
    truth = rates_of_coefficients(LLAMA_8B[2], LLAMA_8B[4])
    assert fit.p == pytest.approx(truth.p, rel=0.1)
    assert fit.q == pytest.approx(truth.q, rel=0.1)


def test_without_an_overhead_of_its_own_p_would_carry_it() -> None:
    """Short prompts on the 70B set-up: the step's fixed 7 ms are a tenth of the whole. Least squares through the origin
    is 5% off; with the intercept it is not."""
    rng = random.Random(3)
    samples = [(u, u, ttft_s(LLAMA_70B_TP4, u, u)) for u in (int(rng.uniform(300, 3000)) for _ in range(200))]
    fit = PrefillFit(6.5e-5, DEFAULT_Q)
    for uncached, prompt, seconds in samples:
        fit.add(uncached, prompt, seconds)
    truth = rates_of_coefficients(LLAMA_70B_TP4[2], LLAMA_70B_TP4[4])
    linear = sum((y - truth.q * u * u / 2) / u for u, _, y in samples) / len(samples)
    assert abs(fit.p / truth.p - 1) < 0.02
    assert linear / truth.p > 1.05


def test_start_values_until_there_are_enough_samples() -> None:
    fit = PrefillFit(1e-5, 1e-9)
    for i in range(MIN_SAMPLES - 1):
        fit.add(1000 + 500 * i, 20_000, 0.5)
    assert (fit.p, fit.q, fit.overhead_s, fit.samples) == (1e-5, 1e-9, 0.0, MIN_SAMPLES - 1)
    fit.add(5000, 20_000, 0.5)
    assert fit.p != 1e-5


def test_follows_an_engine_that_changed() -> None:
    rng, fit = random.Random(4), PrefillFit()
    for setup in (LLAMA_8B, LLAMA_70B_TP4):
        for _ in range(1500):
            uncached, prompt = agent_turn(rng)
            fit.add(uncached, prompt, ttft_s(setup, uncached, prompt))
        assert fit.p == pytest.approx(setup[2] / 900, rel=0.1)


@pytest.mark.parametrize(("factor", "bound"), [(1000.0, 10.0), (0.001, 0.1)])
def test_clamped_around_the_start_values(factor: float, bound: float) -> None:
    rng, fit = random.Random(5), PrefillFit()
    for _ in range(300):
        uncached = int(rng.uniform(300, 9000))
        fit.add(uncached, uncached, min(3600.0, factor * ttft_s(LLAMA_8B, uncached, uncached)))
    assert fit.p == pytest.approx(bound * DEFAULT_P)


def test_one_kind_of_prompt_moves_p_and_leaves_q() -> None:
    fit = PrefillFit()
    for _ in range(300):
        fit.add(2000, 2000, 0.09)
    assert fit.p * 2000 + fit.q * 2000 * 1000 + fit.overhead_s == pytest.approx(0.09, rel=0.02)
    assert 0.5 < fit.q / DEFAULT_Q < 2


def test_what_teaches_nothing_is_ignored() -> None:
    fit = PrefillFit()
    impossible: list[tuple[float, float, float]] = [
        (-1, 10, 0.1),
        (500, 400, 0.1),
        (500, 500, 0),
        (500, 500, -1),
        (500, 500, math.nan),
    ]
    impossible += [(math.nan, 500, 0.1), (500, math.inf, 0.1), (math.inf, math.inf, 0.1), (500, 500, 4000), (0, 500, 1)]
    for uncached, prompt, seconds in impossible:
        fit.add(uncached, prompt, seconds)
    assert fit.samples == 0


@pytest.mark.parametrize(("p0", "q0"), [(0.0, 1e-9), (1e-5, -1.0), (math.nan, 1e-9), (math.inf, 1e-9)])
def test_start_values_must_make_sense(p0: float, q0: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        PrefillFit(p0, q0)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0, 1e10), st.floats(0, 1e10), st.floats(0, 1e5) | st.just(math.inf)),
        min_size=MIN_SAMPLES,
        max_size=80,
    )
)
def test_safe_whatever_the_samples(samples: list[tuple[float, float, float]]) -> None:
    fit = PrefillFit()
    for uncached, more, seconds in samples:
        fit.add(uncached, uncached + more, seconds)
        assert 0.0999 * DEFAULT_P <= fit.p <= 10.001 * DEFAULT_P
        assert 0.0999 * DEFAULT_Q <= fit.q <= 10.001 * DEFAULT_Q
        assert math.isfinite(fit.overhead_s)

"""Two vLLM engines for all tests. `WARMROUTE_VLLM`: the Python of the environment that has vLLM."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.real.vllm.engine import until_up, vllm

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.real.vllm.engine import Vllm
    from tests.support.tiny_model import TinyModel


@pytest.fixture(scope="session")
def pair(model: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Vllm, Vllm]]:
    python, logs = os.environ["WARMROUTE_VLLM"], tmp_path_factory.mktemp("vllm")
    with vllm(python, model, logs / "a.log") as a, vllm(python, model, logs / "b.log") as b:
        until_up(a)
        until_up(b)
        yield a, b

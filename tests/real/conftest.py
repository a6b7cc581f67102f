"""Two llama.cpp servers for all tests of a process, more of them where a test needs its own, and a gateway in front."""

from __future__ import annotations

import contextlib
import importlib.util
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from tests.real.llama import NAME, llama_cpp
from tests.support.gateway import running_gateway
from tests.support.tiny_model import TinyModel, tiny_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractAsyncContextManager

    from tests.real.llama import LlamaCpp
    from tests.support.gateway import RunningGateway

    StartEngine = Callable[..., LlamaCpp]


class Engine(Protocol):
    @property
    def url(self) -> str: ...


class Front(Protocol):
    def __call__(
        self,
        *backends: Engine | dict[str, Any],
        block_size: int = 16,
        encoding: dict[str, Any] | None = None,
        **sections: Any,
    ) -> AbstractAsyncContextManager[RunningGateway]: ...


@pytest.fixture(scope="session")
def model() -> TinyModel:
    return tiny_model()


@pytest.fixture(scope="session")
def _llama_cpp() -> None:
    if importlib.util.find_spec("xllamacpp") is None:
        pytest.skip("no llama.cpp: xllamacpp has no wheel for this platform, or the dev dependencies are not installed")


@pytest.fixture(scope="session")
def engines(_llama_cpp: None, model: TinyModel) -> Iterator[tuple[LlamaCpp, LlamaCpp]]:
    """With room for all sessions of a test."""
    with llama_cpp(model) as a, llama_cpp(model) as b:
        yield a, b


@pytest.fixture
def start_engine(_llama_cpp: None, model: TinyModel) -> Iterator[StartEngine]:
    """Takes the arguments of `llama_cpp`, and blocks: for `asyncio.to_thread`."""
    with contextlib.ExitStack() as running:
        yield lambda **arguments: running.enter_context(llama_cpp(model, **arguments))


@pytest.fixture
def in_front(model: TinyModel) -> Front:
    """A gateway before these engines (named a, b, ...) that knows the model's tokens, unless `encoding` says otherwise.
    More sections as keywords."""
    files = {"tokenizer": str(model.tokenizer), "chat_template": str(model.chat_template)}
    tokens = {"encoding": "tokens", **files}

    def front(
        *backends: Engine | dict[str, Any],
        block_size: int = 16,
        encoding: dict[str, Any] | None = None,
        **sections: Any,
    ) -> AbstractAsyncContextManager[RunningGateway]:
        entries = [one if isinstance(one, dict) else one.url for one in backends]
        entry = {"name": NAME, "block_size": block_size, **(encoding or tokens)}
        return running_gateway(entries, models=[entry], **sections)

    return front

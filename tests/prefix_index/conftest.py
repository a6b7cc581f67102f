"""Every member of the index protocol answers the same contract tests: a new one adds its factory here."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from prefix_index.memory import MemoryIndex
from prefix_index.naive import NaiveIndex
from prefix_index.protocol import PrefixIndex

IndexFactory = Callable[[int], PrefixIndex]
"""An empty index with room for so many entries."""

FACTORIES: dict[str, IndexFactory] = {"naive": NaiveIndex, "memory": MemoryIndex}


@pytest.fixture(params=list(FACTORIES.values()), ids=list(FACTORIES))
def new_index(request: pytest.FixtureRequest) -> IndexFactory:
    factory: IndexFactory = request.param
    return factory

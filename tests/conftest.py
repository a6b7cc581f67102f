"""All asynchronous tests run on uvloop, as the gateway does, and must leave nothing behind."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
import uvloop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(autouse=True)
def _no_task_left(request: pytest.FixtureRequest) -> None:
    if "asyncio" in request.keywords:
        request.getfixturevalue("_owned_tasks")


@pytest.fixture
async def _owned_tasks() -> AsyncIterator[None]:
    before = asyncio.all_tasks()
    yield
    for _ in range(10):  # callbacks of what has just ended
        await asyncio.sleep(0)
    left = {task for task in asyncio.all_tasks() - before - {asyncio.current_task()} if not task.done()}
    assert not left, f"tasks left running: {[task.get_name() for task in left]}"

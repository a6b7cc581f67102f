"""What the fuzz tests share: how many examples, one gateway for all of them, and random cuts and faults in bytes."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING, Any, Self, TypeVar

import uvloop
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

    from gateway.app import Gateway

T = TypeVar("T")


def examples(few: int) -> settings:
    """`few` of them, or FUZZ_TIMES as many: `FUZZ_TIMES=100 python -m pytest tests/fuzz`."""
    times = int(os.environ.get("FUZZ_TIMES", "1"))
    return settings(
        max_examples=few * times,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


class Stage:
    """An event loop that outlives the examples of a test, and what runs on it. For tests that are no coroutines."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._stack = contextlib.AsyncExitStack()

    def __enter__(self) -> Self:
        self._runner.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._runner.run(self._stack.aclose())
        finally:
            self._runner.__exit__(kind, error, trace)

    def enter(self, context: AbstractAsyncContextManager[T]) -> T:
        return self._runner.run(self._stack.enter_async_context(context))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)


class ErrorLog:
    """In place of a gateway's log: keeps the errors, which are faults of ours."""

    def __init__(self, gateway: Gateway) -> None:
        self.errors: list[tuple[str, dict[str, Any]]] = []
        gateway.log = self  # type: ignore[assignment]

    def error(self, event: str, **fields: Any) -> None:
        self.errors.append((event, fields))

    def info(self, event: str, **fields: Any) -> None:
        pass

    warning = debug = info


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    """`data`, cut at these places (modulo its length)."""
    places = sorted({cut % len(data) for cut in cuts} - {0}) if data else []
    return [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]


CUTS = st.lists(st.integers(0, 1 << 20), max_size=8)


@st.composite
def faults(draw: Callable[[Any], Any], tokens: list[bytes]) -> list[tuple[str, int, int, bytes]]:
    """What to do to some bytes: see `spoil`."""
    one = st.tuples(
        st.sampled_from(["insert", "replace", "delete", "repeat", "flip"]),
        st.integers(0, 1 << 20),
        st.integers(1, 12),
        st.sampled_from(tokens) | st.binary(min_size=1, max_size=3),
    )
    found: list[tuple[str, int, int, bytes]] = draw(st.lists(one, min_size=1, max_size=3))
    return found


def spoil(data: bytes, found: list[tuple[str, int, int, bytes]]) -> bytes:
    for what, place, size, token in found:
        at = place % (len(data) + 1)
        if what == "insert":
            data = data[:at] + token + data[at:]
        elif what == "replace":
            data = data[:at] + token + data[at + len(token) :]
        elif what == "delete":
            data = data[:at] + data[at + size :]
        elif what == "repeat":
            data = data[: at + size] + data[at:]
        elif at < len(data):
            data = data[:at] + bytes((data[at] ^ (1 << (size % 8)),)) + data[at + 1 :]
    return data

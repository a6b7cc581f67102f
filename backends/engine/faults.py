"""Faults on command: what is active and for how many requests. Pure state; who serves asks it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from backends.engine.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

KINDS: Final = ("hang", "reset_mid_stream", "status", "slow_start", "restart", "lose_events", "clear")


@dataclass(frozen=True, slots=True)
class Fault:
    """One command. Fields that its kind does not use are at their defaults."""

    kind: str
    for_s: float | None = None
    """hang, slow_start: how long; None: until cleared."""
    count: int | None = None
    """reset_mid_stream, status, lose_events: how often; None: until cleared."""
    after_chunks: int = 3
    code: int = 500
    retry_after_s: int | None = None
    health: bool = False
    """hang: GET requests get no answer either."""

    @classmethod
    def read(cls, command: Mapping[str, Any]) -> Fault:
        """From JSON, where `retry_after_s` is spelt `retry_after`. ApiError for anything unknown."""
        values = {"retry_after_s" if key == "retry_after" else key: value for key, value in command.items()}
        if values.get("kind") not in KINDS:
            raise ApiError(400, f"kind must be one of {', '.join(KINDS)}", param="kind")
        for field, value in values.items():
            if field not in cls.__slots__:
                raise ApiError(400, f"unknown field {field[:80]!r}", param=field[:80])
            number = isinstance(value, int | float) and not isinstance(value, bool)
            valid = {"kind": True, "health": isinstance(value, bool), "for_s": value is None or (number and value >= 0)}
            whole = value is None or (type(value) is int and value >= 0)
            if not valid.get(field, whole):
                raise ApiError(400, f"{field} has a wrong type or is negative", param=field)
        fault = cls(**values)
        if not isinstance(fault.code, int) or not 400 <= fault.code <= 599:
            raise ApiError(400, "code must be from 400 to 599", param="code")
        if not isinstance(fault.after_chunks, int):
            raise ApiError(400, "after_chunks must be a number", param="after_chunks")
        return fault


@dataclass(slots=True)
class _Active:
    fault: Fault
    until_s: float | None
    left: int | None


class FaultBoard:
    """At most one active fault of each kind; the newest replaces the one before."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._active: dict[str, _Active] = {}

    def set(self, fault: Fault) -> None:
        until_s = None if fault.for_s is None else self._clock() + fault.for_s
        self._active[fault.kind] = _Active(fault, until_s, fault.count)

    def clear(self) -> None:
        self._active.clear()

    def end(self, kind: str) -> None:
        self._active.pop(kind, None)

    def active(self, kind: str) -> Fault | None:
        """The fault, as long as its time and count last."""
        entry = self._active.get(kind)
        if entry is None:
            return None
        if (entry.until_s is not None and self._clock() >= entry.until_s) or entry.left == 0:
            del self._active[kind]
            return None
        return entry.fault

    def take(self, kind: str) -> Fault | None:
        """The same, and it counts as one use."""
        fault = self.active(kind)
        if fault is not None:
            entry = self._active[kind]
            entry.left = None if entry.left is None else entry.left - 1
        return fault

    def list(self) -> list[dict[str, Any]]:
        """What GET /faults shows."""
        shown = []
        for kind in tuple(self._active):
            if self.active(kind) is not None:
                entry = self._active[kind]
                left_s = None if entry.until_s is None else round(entry.until_s - self._clock(), 3)
                shown.append({"kind": kind, "left": entry.left, "left_s": left_s})
        return shown

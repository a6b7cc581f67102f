"""Whether a backend may take requests: probes, passive ejection and the half-open trial. Pure: no clock, no I/O.

4xx answers and clients that leave never count against a backend (O11). Successful traffic counts as life, so a probe
that is slow while streams flow does not take the only backend away (O61). A trial is one request sent after the
ejection: what still runs from before neither holds it up nor fails it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final, Protocol


class State(enum.StrEnum):
    UNKNOWN = "unknown"  # never probed: takes no traffic yet
    UP = "up"
    DOWN = "down"  # probes fail
    EJECTED = "ejected"  # requests fail while probes pass
    TRIAL = "trial"  # ejection time is over: one request at a time shows whether it works again


_UP: Final = State.UP  # looked at for every candidate; through its class it costs ten times as much


@dataclass(frozen=True, slots=True)
class HealthPolicy:
    fail_threshold: int = 3
    """Failed probes in a row that take a backend out."""
    pass_threshold: int = 1
    """Passed probes in a row that bring it back."""
    eject_after_failures: int = 5
    """Failed requests in a row that eject it."""
    eject_s: float = 10.0
    """Length of an ejection; doubles with each one in a row, up to `eject_max_s`."""
    eject_max_s: float = 120.0


class Running(Protocol):
    """A request on the backend, as far as a trial asks."""

    open: bool
    """It has not ended."""


class Health:
    """State machine of one backend; callers pass the time in seconds of any monotonic clock."""

    __slots__ = (
        "_ejections",
        "_failed_probes",
        "_failures",
        "_last_success_s",
        "_passed_probes",
        "_policy",
        "_trial",
        "_until_s",
        "state",
    )

    def __init__(self, policy: HealthPolicy) -> None:
        self._policy = policy
        self.state = State.UNKNOWN
        self._failed_probes = 0
        self._passed_probes = 0
        self._failures = 0
        self._ejections = 0
        self._until_s = 0.0
        self._last_success_s = float("-inf")
        self._trial: Running | None = None

    def set_policy(self, policy: HealthPolicy) -> None:
        """Counts and an ejection under way go on."""
        self._policy = policy

    def admits(self, now_s: float) -> bool:
        """May a new request go there? In a trial only while no other one is on trial."""
        state = self.state
        if state is _UP:
            return True
        if state is State.EJECTED and now_s >= self._until_s:
            self.state = state = State.TRIAL
            self._trial = None
        return state is State.TRIAL and (self._trial is None or not self._trial.open)

    def try_with(self, request: Running) -> None:
        """A request was placed there while the state is not UP: in a trial, its outcome is the verdict."""
        if self.state is State.TRIAL and (self._trial is None or not self._trial.open):
            self._trial = request

    @property
    def reachable(self) -> bool:
        """The probes' word: what readiness and `/v1/models` ask."""
        return self.state in (State.UP, State.EJECTED, State.TRIAL)

    def probe_passed(self) -> bool:
        """Returns True when this brings the backend back (or up for the first time)."""
        self._failed_probes = 0
        self._passed_probes += 1
        if self.state is State.UNKNOWN or (
            self.state is State.DOWN and self._passed_probes >= self._policy.pass_threshold
        ):
            self.state = State.UP
            self._failures = 0
            return True
        return False

    def probe_failed(self, now_s: float, grace_s: float, *, refused: bool = False) -> bool:
        """Returns True when this takes the backend out. A request that succeeded within `grace_s` speaks for its life,
        unless the connection was refused: then nobody listens and it is out at once."""
        self._passed_probes = 0
        if self.state is State.DOWN:
            return False
        if self.state is State.UNKNOWN:
            self.state = State.DOWN
            return True
        if not refused and now_s - self._last_success_s < grace_s:
            return False
        self._failed_probes += 1
        if refused or self._failed_probes >= self._policy.fail_threshold:
            self.state = State.DOWN
            self._failed_probes = 0
            return True
        return False

    def request_succeeded(self, now_s: float) -> bool:
        """Any response that is not a 5xx. Returns True when this ends an ejection."""
        self._failures = 0
        self._last_success_s = now_s
        self._ejections = 0
        if self.state is _UP or self.state not in (State.TRIAL, State.EJECTED):
            return False
        self.state = State.UP
        self._trial = None
        return True

    def request_failed(self, now_s: float, request: Running | None = None) -> bool:
        """A 5xx, a failed connect, a timeout or a broken response. Returns True when this ejects the backend.

        In a trial only the request on trial counts: others were sent before the ejection.
        """
        self._failures += 1
        tripped = self.state is State.UP and self._failures >= self._policy.eject_after_failures
        if tripped or (self.state is State.TRIAL and request is self._trial):
            self.state = State.EJECTED
            self._trial = None
            self._ejections += 1
            length_s = min(self._policy.eject_s * 2 ** (self._ejections - 1), self._policy.eject_max_s)
            self._until_s = now_s + length_s
            self._failures = 0
            return True
        return False

    def retry_in_s(self, now_s: float) -> float:
        """Seconds until an ejected backend may be tried again."""
        return max(0.0, self._until_s - now_s) if self.state is State.EJECTED else 0.0

"""Slow start: the part of the new sessions that a backend may get which is new, or back.

By the policies alone it would get all of them: it is empty, so every cost speaks for it. A bound on the requests that
it holds at once only puts that off. So it is paid in shares of a session: each one that is placed anywhere pays it its
fair share times its worth, which rises with its age, and one placed there costs a whole.

Invariants: pure but for the credit; who is no newer than the others is never held back, so a fleet that starts together
is as without a ramp; who is held back has a taker beside it; the credit starts at a whole, so its turn comes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from routing.facts import Candidate
    from vocabulary import InstanceId

SLOW_START: Final = "slow_start"
"""The reason of candidates that are held back."""

_LEAST_WORTH: Final = 0.1
_MOST_WORTH: Final = 2.0
"""Catching up with what the others have must not be a flood either."""
_LENGTHS: Final = 6.0
_MOST_CREDIT: Final = 2.0
TOGETHER: Final = 0.5
"""Of a slow start: backends that are no further apart count as one start."""


@dataclass(slots=True)
class Ramp:
    """Of one instance, from when it may first take requests. The caller keeps it, and drops it when it is over."""

    began_s: float
    slow_start_s: float
    credit: float = 1.0

    def over(self, now_s: float) -> bool:
        """Long after the slow start: until it has caught up, a policy would still send it nearly all that comes."""
        return now_s - self.began_s >= _LENGTHS * self.slow_start_s


def worth(age_s: float, slow_start_s: float) -> float:
    """Fair shares of the new sessions: a whole one at the end of the slow start, at most two later."""
    return min(_MOST_WORTH, max(_LEAST_WORTH, age_s / slow_start_s))


def held_back(candidates: Sequence[Candidate], ramps: Mapping[InstanceId, Ramp], home: InstanceId | None) -> list[int]:
    """Positions of the candidates that have had their share. `home`: of the request's session, which may go there."""
    takers = [candidate.instance for candidate in candidates if candidate.rejected is None]
    began_s = [ramps[instance].began_s if instance in ramps else float("-inf") for instance in takers]
    oldest_s = min(began_s, default=0.0)
    return [
        position
        for position, candidate in enumerate(candidates)
        if candidate.rejected is None
        and candidate.instance != home
        and (ramp := ramps.get(candidate.instance)) is not None
        and ramp.credit < 1.0
        and ramp.began_s - oldest_s > TOGETHER * ramp.slow_start_s
    ]


def pay(
    candidates: Sequence[Candidate],
    ramps: Mapping[InstanceId, Ramp],
    chosen: InstanceId,
    home: InstanceId | None,
    now_s: float,
) -> None:
    """A request went to `chosen`. One that had a home to go to pays nobody: what a policy moves is no measure of what
    comes."""
    if chosen == home:
        return
    takers = [
        candidate.instance for candidate in candidates if candidate.rejected is None or candidate.rejected == SLOW_START
    ]
    homeless = home not in takers
    for instance in takers:
        ramp = ramps.get(instance)
        if ramp is not None:
            credit = ramp.credit
            if homeless:
                credit += worth(now_s - ramp.began_s, ramp.slow_start_s) / len(takers)
            if instance == chosen:
                credit -= 1.0
            ramp.credit = min(_MOST_CREDIT, max(0.0, credit))

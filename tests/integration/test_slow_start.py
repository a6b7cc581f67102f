"""A fifth backend beside four loaded ones, in virtual time: what share of the new sessions it gets, as it ages.

The router, the index, the sessions and the policy are the gateway's own; only the engines are simulated: prefills one
after another, then decodes side by side.
"""

from __future__ import annotations

import heapq
import itertools
import json
import random
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.fleet import Fleet

if TYPE_CHECKING:
    from gateway.placement import Placement

ESTABLISHED = 4
SLOW_START_S = 20.0
JOINS_S = 100.0
ENDS_S = JOINS_S + 100.0
SESSIONS_PER_S = 8.0
TURNS = 2
THINK_S = 6.0
DECODE_S = 2.0


class Simulation:
    """Sessions arrive at random, of a few turns each."""

    def __init__(self, fleet: Fleet, seed: int) -> None:
        self.fleet = fleet
        self.rng = random.Random(seed)
        self.begun: list[tuple[float, str]] = []
        """(seconds since the new one joined, backend) of each session's first turn."""
        self._events: list[tuple[float, int, Any]] = []
        self._order = itertools.count()
        self._free_at_s: dict[str, float] = {}
        self._texts: dict[int, list[dict[str, str]]] = {}
        self._sessions = itertools.count()

    def run(self) -> None:
        fleet = self.fleet
        fleet.now_s = 0.0
        for number in range(ESTABLISHED):
            fleet.add(f"b{number}", capacity_tokens=450_000)
        self._at(0.0, self._arrive)
        self._at(JOINS_S, self._join)
        while self._events:
            now_s, _, (what, arguments) = heapq.heappop(self._events)
            if now_s > ENDS_S:
                break
            fleet.now_s = now_s
            what(*arguments)

    def _at(self, time_s: float, what: Any, *arguments: Any) -> None:
        heapq.heappush(self._events, (time_s, next(self._order), (what, arguments)))

    def _join(self) -> None:
        backend = self.fleet.add("new", capacity_tokens=450_000)
        self.fleet.fleet.ease_in(backend.instance, self.fleet.now_s)

    def _arrive(self) -> None:
        session = next(self._sessions)
        self._texts[session] = [{"role": "user", "content": f"{session} " + "w" * self.rng.randint(2000, 6000)}]
        self._turn(session, 0)
        self._at(self.fleet.now_s + self.rng.expovariate(SESSIONS_PER_S), self._arrive)

    def _turn(self, session: int, turn: int) -> None:
        fleet = self.fleet
        body = json.dumps({"model": "m", "stream": True, "messages": self._texts[session]}).encode()
        placement = fleet.router.place(fleet.prepare(body, [(b"x-session-id", b"%d" % session)]))
        name = placement.state.backend
        if turn == 0:
            self.begun.append((fleet.now_s - JOINS_S, name))
        token_s = max(fleet.now_s, self._free_at_s.get(name, 0.0)) + placement.lease.prefill_s
        self._free_at_s[name] = token_s
        self._at(token_s, self._first_token, placement)
        self._at(token_s + DECODE_S * self.rng.uniform(0.5, 1.5), self._done, placement, session, turn)

    def _first_token(self, placement: Placement) -> None:
        self.fleet.router.answered(placement, failed=False)
        self.fleet.router.first_token(placement, self.fleet.now_s)

    def _done(self, placement: Placement, session: int, turn: int) -> None:
        self.fleet.router.settle(placement, None, 3)
        if turn + 1 == TURNS:
            del self._texts[session]
            return
        answer, question = {"role": "assistant", "content": "a" * 400}, {"role": "user", "content": "q" * 400}
        self._texts[session] = [*self._texts[session], answer, question]
        self._at(self.fleet.now_s + self.rng.expovariate(1 / THINK_S), self._turn, session, turn + 1)

    def share(self, from_s: float, to_s: float) -> float:
        """Of the sessions that began then, in fair shares of one backend among all."""
        names = [name for at_s, name in self.begun if from_s <= at_s < to_s]
        return names.count("new") / len(names) * (ESTABLISHED + 1)


def simulated(policy: str, slow_start_s: float) -> Simulation:
    with Fleet(policy=policy) as fleet:
        fleet.fleet.set_slow_start(slow_start_s)
        simulation = Simulation(fleet, seed=5)
        simulation.run()
        return simulation


def test_with_a_slow_start_it_is_neither_flooded_nor_starved() -> None:
    made = simulated("warm", SLOW_START_S)
    assert made.share(-20, 0) == 0
    first, second = made.share(0, 10), made.share(10, 20)
    assert 0 < first < second < 1.2
    assert made.share(20, 40) >= 0.7
    windows = [made.share(begin_s, begin_s + 20) for begin_s in range(0, 100, 20)]
    assert max(windows) <= 2.1, "two fair shares, but for where the windows cut"
    assert min(windows[1:]) >= 0.7


def test_without_one_it_is_flooded() -> None:
    made = simulated("warm", 0.0)
    assert made.share(0, 10) > 3


@pytest.mark.parametrize("policy", ["least_requests", "lmetric"])
def test_policies_that_do_not_press_are_eased_in_too(policy: str) -> None:
    made = simulated(policy, SLOW_START_S)
    assert 0 < made.share(0, 10) < 0.7
    assert 0.7 <= made.share(20, 100) <= 1.3

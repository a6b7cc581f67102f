"""Rendezvous hash with bounded load: the highest hash(key, backend) among those below the bound.

    bound = max(floor, ceil(1.25 * (requests in flight on all + 1) / n)) of requests on one backend

The key is the session, else the head of the prompt; without either the least loaded takes it. The backend's name is
hashed, not its place or its instance: adding one of n moves 1/n of the sessions, and a restart moves none. A session
that a full owner has passed on stays where it is until its owner is no busier than the mean: between there and the
bound it would change places with every request that ends (O51).

Source: Thaler and Ravishankar, Using Name-Based Mappings to Increase Hit Rates (1998); Mirrokni et al., Consistent
Hashing with Bounded Loads (2016); 1.25 as KubeAI and the vLLM router have it. Prevents: load-blind pins that drown
one engine, skewed rings, and modulo hashing that moves every session when a backend comes or goes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import xxhash

from routing.policies.base import draw, equals

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from routing.facts import Candidate, Facts, Knobs
    from routing.policies.base import PolicyState

HASH_RANGE: Final = 2.0**64


def distance(key: bytes, backend: str) -> float:
    """0 to 1: how far the backend is from the key; the nearest is its owner."""
    return xxhash.xxh3_64_intdigest(b"%d:%b%b" % (len(key), key, backend.encode())) / HASH_RANGE


class SessionHash:
    name = "session_hash"
    wants_match = False

    def __init__(self, knobs: Knobs) -> None:
        self._factor = knobs.hash_load_factor
        self._floor = knobs.hash_load_floor

    def choose(self, facts: Facts, eligible: Sequence[Candidate], state: PolicyState) -> int:
        loads = [candidate.in_flight for candidate in eligible]
        key = facts.session or facts.head_key
        if not key:
            return draw(equals(loads), state.rng)
        total = sum(loads)
        bound = max(self._floor, math.ceil(self._factor * (total + 1) / len(loads)))
        open_ = [i for i, load in enumerate(loads) if load < bound] or equals(loads)
        distances = [distance(key, candidate.backend) for candidate in eligible]
        owner = min(range(len(eligible)), key=distances.__getitem__)
        if facts.home is not None and loads[owner] * len(loads) > total:
            for i in open_:
                if eligible[i].instance == facts.home:
                    return i
        return min(open_, key=distances.__getitem__)

    def terms(self, facts: Facts, candidate: Candidate) -> Mapping[str, float]:
        """Only the distance: whether the bound passed a backend over shows in the candidates' `in_flight`."""
        key = facts.session or facts.head_key
        return {"hash_distance": distance(key, candidate.backend)} if key else {"in_flight": float(candidate.in_flight)}

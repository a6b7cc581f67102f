"""Short forms for facts and candidates."""

from __future__ import annotations

import random
from typing import Any

from routing import Candidate, Knobs, PolicyState
from vocabulary import BackendId, InstanceId

KNOBS = Knobs()


def candidate(number: int, **given: Any) -> Candidate:
    return Candidate(instance=InstanceId(number), backend=BackendId(f"b{number}"), **given)


def state(seed: int = 0) -> PolicyState:
    return PolicyState(rng=random.Random(seed))

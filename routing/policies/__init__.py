"""Policies by name. A policy is a cost or a rule over facts that others gathered: it holds knobs, never state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from routing.policies.base import Policy, PolicyState
from routing.policies.least_requests import LeastRequests
from routing.policies.lmetric import LMetric
from routing.policies.longest_prefix import LongestPrefix
from routing.policies.power_of_two import PowerOfTwo
from routing.policies.round_robin import RoundRobin
from routing.policies.session_hash import SessionHash
from routing.policies.uniform import Uniform
from routing.policies.warm import Warm
from vocabulary.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from routing.facts import Knobs

__all__ = ["DEFAULT_POLICY", "POLICY_NAMES", "Policy", "PolicyState", "UnknownPolicy", "build"]

_BUILDERS: Final[Mapping[str, Callable[[Knobs], Policy]]] = {
    "round_robin": lambda _: RoundRobin(),
    "random": lambda _: Uniform(),
    "least_requests": lambda _: LeastRequests(),
    "power_of_two": lambda _: PowerOfTwo(),
    "session_hash": SessionHash,
    "longest_prefix": lambda _: LongestPrefix(),
    "lmetric": lambda _: LMetric(),
    "warm": Warm,
}

POLICY_NAMES: Final = tuple(_BUILDERS)
DEFAULT_POLICY: Final = "warm"


class UnknownPolicy(ConfigError):
    """No policy of that name; the text lists those there are."""

    def __init__(self, name: str) -> None:
        super().__init__(f"unknown policy {name!r}; there are: {', '.join(POLICY_NAMES)}")
        self.name = name


def build(name: str, knobs: Knobs) -> Policy:
    """The policy called `name`. Raises UnknownPolicy."""
    try:
        builder = _BUILDERS[name]
    except KeyError:
        raise UnknownPolicy(name) from None
    return builder(knobs)

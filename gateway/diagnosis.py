"""Why predictions of cached tokens do not come true on an instance, by name. Pure: samples in, a finding out.

The kinds of evidence, the plainest first: what the engine says of itself, prompts that are counted otherwise, answers
without the figure, and which requests it is that find nothing cached.
"""

from __future__ import annotations

import enum
import math
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


class Cause(enum.StrEnum):
    """The closed list of `warmroute_index_suspect`."""

    NOT_REPORTING = "not_reporting"
    COLD_RESTART = "cold_restart"
    BLOCK_SIZE = "block_size"
    TEMPLATE = "template"
    MODEL_ALIAS = "model_alias"
    CACHE_OFF = "cache_off"
    CAPACITY = "capacity"
    FEED_SILENT = "feed_silent"
    WRONG_TOPIC = "wrong_topic"


class Finding(NamedTuple):
    cause: Cause
    detail: str
    """One sentence for the operator, with figures and without names of clients."""


class Sample(NamedTuple):
    """One answered request. Tokens are the engine's."""

    model: str
    """As the client named it."""
    predicted: float
    """Prompt tokens taken to be cached there when it was sent."""
    cached: int | None
    """Reported. None: the answer does not say."""
    counted: float
    """Prompt tokens by our own count; 0 where the engine may count more (images), or where ours is an estimate."""
    prompt: int
    """By the engine's count; 0: it did not say."""
    block: float
    """Tokens in a block of ours."""
    sure: bool
    """What was predicted cannot be still under way: nothing was being prefilled there, or it is the session's own."""

    @property
    def expects(self) -> bool:
        """Most of the prompt, and at least a block, is to be cached."""
        return self.predicted >= self.block > 0 and self.predicted > 0.5 * self.prompt

    @property
    def missed(self) -> bool:
        return (self.cached or 0) < 0.1 * self.predicted

    @property
    def hit(self) -> bool:
        return (self.cached or 0) >= 0.5 * self.predicted


class Known(NamedTuple):
    """What is known of the instance besides its last answers."""

    block_size: int | None = None
    """By its own metrics."""
    prefix_cache: bool | None = None
    reports: bool = False
    """An answer of this instance has had the figure."""
    has_hit: bool = False
    """An answer of this instance has come up to its prediction."""
    flag: str | None = None
    """What the engine must be started with to report cached tokens."""


MISSES: Final = 8
OF_LAST: Final = 10
"""So many misses of the last so many sure expectations are no chance."""
_FEW: Final = 5


def persistent_misses(samples: Collection[Sample]) -> bool:
    return sum(one.missed for one in _certain(samples)[-OF_LAST:]) >= MISSES


def diagnose(samples: Sequence[Sample], known: Known) -> Finding | None:
    """The likeliest cause; None: predictions come true, or too few were made. `samples`: the oldest first."""
    for look in (_engine_says, _not_reporting, _blocks, _template, _alias, _misses):
        found = look(samples, known)
        if found is not None:
            return found
    return None


def _certain(samples: Collection[Sample]) -> list[Sample]:
    """A hit is one whatever was under way."""
    return [one for one in samples if one.expects and (one.sure or one.hit)]


def _engine_says(samples: Sequence[Sample], known: Known) -> Finding | None:
    if known.prefix_cache is False and any(one.expects for one in samples):
        return Finding(Cause.CACHE_OFF, "the engine's metrics say that its prefix cache is switched off")
    exact = next((one for one in reversed(samples) if one.counted), None)
    size = known.block_size
    if exact is None or size is None or size == 1 or exact.block == size:
        return None
    return Finding(
        Cause.BLOCK_SIZE, f"the engine caches blocks of {size} tokens, the model's block_size is {exact.block:.0f}"
    )


def _not_reporting(samples: Sequence[Sample], known: Known) -> Finding | None:
    if known.reports or sum(one.expects for one in samples) < _FEW:
        return None
    start = f"; start the engine with {known.flag}" if known.flag else ""
    return Finding(Cause.NOT_REPORTING, f"its answers do not tell how many prompt tokens were cached{start}")


def _blocks(samples: Sequence[Sample], known: Known) -> Finding | None:
    """Reported figures are multiples of the engine's block. Where those are multiples of another size than ours, many
    different ones are needed: few may have a common divisor by chance. 1: an engine that caches single tokens."""
    exact = [one for one in samples if one.counted and one.cached]
    figures = {one.cached for one in exact if one.cached}
    if len(figures) < MISSES:
        return None
    size = math.gcd(*figures)
    ours = exact[-1].block
    if size == 1 or size <= ours or all(one.cached == one.predicted for one in exact):
        return None
    return Finding(
        Cause.BLOCK_SIZE, f"reported cached tokens are multiples of {size}, the model's block_size is {ours:.0f}"
    )


def _template(samples: Sequence[Sample], known: Known) -> Finding | None:
    """With the engine's own tokenizer and template the counts are equal, always."""
    exact = [one for one in samples if one.counted and one.prompt]
    other = [one for one in exact if one.counted != one.prompt]
    if len(exact) < _FEW or len(other) < 0.8 * len(exact):
        return None
    last = other[-1]
    return Finding(
        Cause.TEMPLATE,
        f"{len(other)} of {len(exact)} prompts have another length there, the last one {last.prompt} tokens instead of"
        f" {last.counted:.0f}: chat template or tokenizer differ",
    )


def _alias(samples: Sequence[Sample], known: Known) -> Finding | None:
    """What one name has left in the cache is not there for another one."""
    certain = _certain(samples)
    for name in dict.fromkeys(one.model for one in certain):
        own = [one for one in certain if one.model == name]
        others = [one for one in certain if one.model != name]
        missed = sum(one.missed for one in own)
        if missed < _FEW - 1 or missed < len(own) / 3 or len(others) < _FEW - 1:
            continue
        if sum(one.missed for one in others) <= len(others) / 10:
            return Finding(
                Cause.MODEL_ALIAS,
                f"{missed} of {len(own)} requests to {name} found nothing cached, those to other names of the model"
                " did: the engine may take it for another model",
            )
    return None


def _misses(samples: Sequence[Sample], known: Known) -> Finding | None:
    if not persistent_misses(samples):
        return None
    certain = _certain(samples)
    recent = certain[-OF_LAST:]
    figure = f"{sum(one.missed for one in recent)} of {len(recent)} requests found nothing of what was predicted"
    if not known.has_hit:
        return Finding(Cause.CACHE_OFF, f"{figure}, and none ever has: is prefix caching switched off?")
    if _at_once(certain):
        return Finding(Cause.COLD_RESTART, f"{figure}, since one moment: its cache was emptied")
    return Finding(Cause.CAPACITY, f"{figure}: its cache holds less than it is taken to")


def _at_once(certain: Sequence[Sample]) -> bool:
    """Before these misses, predictions came true."""
    before = certain[:-OF_LAST]
    return sum(one.missed for one in before) <= 0.3 * len(before)

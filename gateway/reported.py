"""What the engine of one instance says it has cached, and what was sent there that it cannot have said yet.

While the engine is believed, a prediction lives only until its request's first token is out: then the engine has told.
It does not keep what the engine has dropped. While it is not, predictions are all there is, and they stay as those of
an engine without events do. Invariant: predictions are in holders of their own, never mixed with what was told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prefix_index.protocol import Holder, Tier
from vocabulary import KEY_BYTES, InstanceId

if TYPE_CHECKING:
    from collections.abc import Mapping

    from backends.instance import Instance
    from prefix_index.events.mirror import Mirror
    from prefix_index.protocol import PrefixIndex
    from vocabulary import BlockKeys

GRACE_S: Final = 1.0
"""For events to arrive after the first token."""


class ReportedCache:
    """`predicted`: the holder for what is sent there now. It changes with `rotate`."""

    __slots__ = (
        "_closed_s",
        "_former",
        "_index",
        "_instance",
        "_sample",
        "_sampled_s",
        "_tiers",
        "complete",
        "mirror",
        "predicted",
    )

    def __init__(self, index: PrefixIndex, instance: Instance, now_s: float) -> None:
        self._index = index
        self._instance = instance
        self._tiers = tuple(Holder(instance.id, tier) for tier in Tier)
        # numbers below zero are no instance's: so they can be cleared alone
        self.predicted = Holder(InstanceId(-2 * instance.id))
        self._former = Holder(InstanceId(-2 * instance.id - 1))
        self._closed_s = now_s
        self.mirror: Mirror | None = None
        """None while events are not believed."""
        self.complete = True
        """Nothing that the engine said is missing in the mirror."""
        self._sample: BlockKeys | None = None
        self._sampled_s = now_s

    def lookup(self, matches: Mapping[Holder, int]) -> tuple[int, int, int]:
        """Blocks of the prompt's head that are cached; of those, how many only in host memory, and only farther."""
        get = matches.get
        gpu, host, disk, external = self._tiers
        near = max(get(gpu, 0), get(self.predicted, 0), get(self._former, 0))
        middle = max(near, get(host, 0))
        far = max(middle, get(disk, 0), get(external, 0))
        return far, middle - near, far - middle

    # What was sent.

    def sent(self, keys: BlockKeys, now_s: float) -> None:
        """Some prompts are looked up again when the engine must have told of them."""
        if self._sample is None:
            self._sample, self._sampled_s = keys, now_s

    def failed(self, keys: BlockKeys) -> None:
        """It is not known how far the request came."""
        if self._sample is keys:
            self._sample = None

    def verdict(self, now_s: float) -> bool | None:
        """Whether the engine told of the prompt that was sampled; None while it need not have. At most one per sample.

        Half of it is enough: other requests may have pushed out the rest.
        """
        keys = self._sample
        if keys is None or now_s - self._sampled_s < GRACE_S or self._oldest_s(now_s) <= self._sampled_s:
            return None
        self._sample = None
        matches = self._index.match(keys)
        told = max((matches.get(tier, 0) for tier in self._tiers), default=0)
        return 2 * told * KEY_BYTES >= len(keys)

    @property
    def sampled_s(self) -> float:
        """When the last sample was sent."""
        return self._sampled_s

    # What becomes of predictions.

    def rotate(self, now_s: float) -> None:
        """Drop those that the engine has had the time to confirm; call it about once a second."""
        if now_s - self._closed_s < GRACE_S or self._oldest_s(now_s) <= self._closed_s:
            return
        self._index.clear(self._former.instance)
        self.predicted, self._former = self._former, self.predicted
        self._closed_s = now_s

    def purge(self) -> int:
        """Forget what was told: it is not complete until the engine starts over. Returns blocks."""
        self.complete = False
        return self.mirror.purge() if self.mirror is not None else 0

    def forget_predictions(self) -> int:
        self._sample = None
        return self._index.clear(self.predicted.instance) + self._index.clear(self._former.instance)

    def _oldest_s(self, now_s: float) -> float:
        """When the oldest request without a first token was sent."""
        pending = self._instance.pending
        return next(iter(pending)).sent_s if pending else now_s

"""Which keys an engine's events must get, so that they meet those of the prompts sent to it; or why none can.

Events name tokens, so parity of tokens is the condition (O30): one model, encoded as tokens. Whether block sizes agree
too is seen in the events.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from prefix_index.encoding.protocol import Namespace
from prefix_index.keys import root_state

if TYPE_CHECKING:
    from collections.abc import Callable

    from backends.backend import Backend
    from gateway.config import Config


@dataclass(frozen=True, slots=True)
class KeySpace:
    model: str
    """The canonical name, as it stands in the keys of prompts."""
    block_size: int
    """Tokens per block, the same as the engine's."""


class KeySpaces:
    """By the config that holds at the time."""

    def __init__(self, config: Callable[[], Config], secret: bytes) -> None:
        self._config = config
        self._secret = secret

    def of(self, backend: Backend) -> KeySpace | str | None:
        """A sentence says what is in the way. None: the backend's models are not known yet."""
        config, cards = self._config(), backend.model_cards
        names = [name for name in backend.models if not cards.get(name, {}).get("parent")]
        if not names:
            return None
        entries = {entry.name: entry for name in names if (entry := config.model(name)) is not None}
        found = [entry for entry in entries.values() if entry.encoding != "bytes"]
        if not found:
            return "its model is encoded as bytes; events need encoding: tokens"
        if len(found) > 1:
            return "more than one model of the config is served there"
        return KeySpace(found[0].name, found[0].block_size)

    def roots(self, space: KeySpace) -> Callable[[Namespace], bytes]:
        """The digest that starts a chain, for the namespace of an event: an adapter is a model of its own here, and
        the model stands for all names that it is served under."""
        config, secret = self._config(), self._secret

        @lru_cache(maxsize=1024)
        def root(namespace: Namespace) -> bytes:
            adapter = config.model(namespace.adapter) if namespace.adapter else None
            name = adapter.name if adapter is not None else namespace.adapter or space.model
            return root_state(secret, Namespace(name, cache_salt=namespace.cache_salt), space.block_size).digest

        return root

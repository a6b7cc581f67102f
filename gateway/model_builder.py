"""Builds the models of one config, and those that only backends name.

A builder for the next config is made from the one before: encoders whose files and settings are the same go on with
what they have learned, and so do the counts of the policies.
"""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING

from gateway import wiring
from gateway.models import Model
from routing import PolicyState

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.config import Config
    from gateway.config import Model as ModelConfig
    from prefix_index.encoding.protocol import Encoder
    from prefix_index.encoding.ratio import BytesPerToken

    EncoderKey = tuple[object, ...]


class ModelBuilder:
    def __init__(
        self,
        config: Config,
        secret: bytes,
        fallback: Encoder,
        ratios: BytesPerToken,
        on_mismatch: Callable[[str, str], None],
        before: ModelBuilder | None = None,
    ) -> None:
        """Loads vocabularies, which takes up to seconds: not on a loop that serves. Raises ConfigError.

        `fallback` encodes what has no tokenizer, as bytes, with `ratios`. `on_mismatch(model, reason)` is called from
        any thread.
        """
        self._config = config
        self._secret = secret
        self._fallback = fallback
        self._ratios = ratios
        self._on_mismatch = on_mismatch
        self._states: dict[str, PolicyState] = {} if before is None else before._states
        self._policies = {route.name: wiring.policy(route) for route in config.all_routes}
        known = {} if before is None else before._encoders
        self._encoders: dict[EncoderKey, Encoder] = {}
        for entry in config.models:
            if entry.encoding == "tokens":
                key = _encoder_key(entry)
                self._encoders[key] = known.get(key) or self._load(entry)

    def _load(self, entry: ModelConfig) -> Encoder:
        return wiring.tokens_encoder(entry, self._secret, partial(self._on_mismatch, entry.name))

    def configured(self) -> dict[str, Model]:
        """The models of the config by every name they have."""
        table: dict[str, Model] = {}
        for entry in self._config.models:
            table.update(dict.fromkeys((entry.name, *entry.aliases), self.build(entry.name)))
        return table

    def build(self, name: str) -> Model:
        """The model of that name, on the event loop."""
        config = self._config
        entry, route = config.model(name), config.route(name)
        encoder = self._fallback
        if entry is not None and entry.encoding == "tokens":
            encoder = self._encoders[_encoder_key(entry)]
        state = self._states.get(name)
        if state is None:
            state = self._states[name] = PolicyState(rng=random.Random(), config_id=config.id)
        state.config_id = config.id
        return Model(
            name=name,
            route=route.name,
            policy=self._policies[route.name],
            state=state,
            encoder=encoder,
            ratios=self._ratios if encoder is self._fallback else None,
        )

    def close(self, successor: ModelBuilder | None = None) -> None:
        """End the encoders that the successor does not go on with."""
        kept = () if successor is None else {id(encoder) for encoder in successor._encoders.values()}
        for encoder in self._encoders.values():
            if id(encoder) not in kept:
                encoder.close()


def _encoder_key(entry: ModelConfig) -> EncoderKey:
    """Equal while the same files have the same content, as far as their size and time tell."""
    files = [path for path in (entry.tokenizer, entry.chat_template) if path is not None]
    return (entry.name, entry.block_size, *map(wiring.fingerprint, files))

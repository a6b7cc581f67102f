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
from gateway.self_check import Subject
from prefix_index.encoding.tokens_encoder import TokensEncoder
from routing import PolicyState

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.config import Config
    from gateway.config import Model as ModelConfig
    from prefix_index.encoding.engine_encoder import TokenSource
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
        *,
        token_source: Callable[[tuple[str, ...]], TokenSource] | None = None,
    ) -> None:
        """Loads vocabularies, which takes up to seconds: not on a loop that serves. Raises ConfigError.

        `fallback` encodes what has no tokenizer, as bytes, with `ratios`. `on_mismatch(model, reason)` is called from
        any thread. `token_source` gives, for all names of a model, who asks its backends for tokens; without it
        `encoding: engine` is `bytes`.
        """
        self._config = config
        self._secret = secret
        self._fallback = fallback
        self._ratios = ratios
        self._on_mismatch = on_mismatch
        self._token_source = token_source
        self._states: dict[str, PolicyState] = {} if before is None else before._states
        self._policies = {route.name: wiring.policy(route) for route in config.all_routes}
        self._encoders: dict[str, tuple[EncoderKey, Encoder]] = {}
        """By model, with what the files were when they were read."""
        try:
            for entry in config.models:
                if entry.encoding == "tokens" or (entry.encoding == "engine" and token_source is not None):
                    self._encoders[entry.name] = self._encoder(entry, before)
        except BaseException:
            self.close_but(before)
            raise

    def _encoder(self, entry: ModelConfig, before: ModelBuilder | None) -> tuple[EncoderKey, Encoder]:
        key = wiring.encoder_key(entry)
        known = before._encoders.get(entry.name) if before is not None else None
        if known is not None and known[0] == key:
            return known
        if entry.encoding == "engine" and self._token_source is not None:
            return key, wiring.engine_encoder(entry, self._secret, self._token_source((entry.name, *entry.aliases)))
        return key, wiring.tokens_encoder(entry, self._secret, partial(self._on_mismatch, entry.name))

    def configured(self) -> dict[str, Model]:
        """The models of the config by every name they have."""
        table: dict[str, Model] = {}
        for entry in self._config.models:
            table.update(dict.fromkeys((entry.name, *entry.aliases), self.build(entry.name)))
        return table

    def subjects(self) -> list[Subject]:
        """The models whose tokens are to be compared with the engines'."""
        return [
            Subject(entry.name, (entry.name, *entry.aliases), encoder)
            for entry in self._config.models
            if entry.name in self._encoders and isinstance(encoder := self._encoders[entry.name][1], TokensEncoder)
        ]

    def build(self, name: str) -> Model:
        """The model of that name, on the event loop."""
        config = self._config
        entry, route = config.model(name), config.route(name)
        encoder = self._fallback
        if entry is not None and entry.name in self._encoders:
            _, encoder = self._encoders[entry.name]
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

    def close(self) -> None:
        """End the encoders."""
        self.close_but(None)

    def close_but(self, other: ModelBuilder | None) -> None:
        """End those that the other builder does not have: the one before, or the one after."""
        kept = () if other is None else {id(encoder) for _, encoder in other._encoders.values()}
        for _, encoder in self._encoders.values():
            if id(encoder) not in kept:
                encoder.close()

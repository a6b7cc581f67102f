"""From a request body to what routing knows of it before it looks at the fleet: parse, identify, encode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gateway import session_id
from gateway.body import Body, parse_body
from prefix_index.encoding.protocol import Encoded, Namespace, Prompt
from prefix_index.encoding.ratio import DEFAULT_BYTES_PER_TOKEN
from vocabulary import BlockKeys, TenantId

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from gateway.metrics import Metrics
    from gateway.models import Model, Models
    from vocabulary import InstanceId, SessionKey

EVERYONE: Final = TenantId("")
"""The one tenant there is."""
_NO_KEYS: Final = BlockKeys(b"")
_NO_HINTS: Final = (None, None, None, None)


@dataclass(slots=True)
class Prepared:
    """What routing knows of a request before it looks at the fleet."""

    route: str
    """The endpoint: `chat` or `completions`."""
    served_as: str
    """The model's name as the request has it."""
    model: Model
    streams: bool
    session: SessionKey | None
    lineage: bool
    """The session is found (or begun) by its prompt, not by an id: when the request is placed, for one before it in the
    same turn may be of it too."""
    keys: BlockKeys
    resumed_blocks: int
    prompt_id: int
    resumed_id: int
    units: int
    """Length in the encoding's units; 0 where it is not all that the engine counts: it teaches nothing of the ratio."""
    prompt_tokens: float
    tokens_per_block: float
    matched: bool
    home: InstanceId | None = None
    """Where the session's last turn went, as of the last look at the fleet."""


class Preparer:
    def __init__(self, models: Models, metrics: Metrics, secret: bytes, *, use_lineage: bool) -> None:
        self._models = models
        self._metrics = metrics
        self._secret = secret
        self._use_lineage = use_lineage

    def prepare(self, route: str, raw_body: bytes, raw_session: bytes | None) -> Prepared | Awaitable[Prepared]:
        """Raises ClientError or GatewayError. An awaitable where the prompt is encoded off the event loop.

        `raw_session`: the session id in the request's headers.
        """
        body = parse_body(raw_body)
        served_as, model = self._models.resolve(body.model)
        encoded: Encoded | Awaitable[Encoded | None] | None = None
        if not body.own_template:
            salt = body.cache_salt if isinstance(body.cache_salt, str) else ""
            prompt = Prompt(
                messages=bytes(body.messages) if body.messages and route == "chat" else None,
                prompt=bytes(body.prompt) if body.prompt and route == "completions" else None,
                tools=bytes(body.tools) if body.tools else None,
                template_arguments=bytes(body.chat_template_kwargs) if body.chat_template_kwargs else None,
            )
            try:
                encoded = model.encoder.encode(prompt, Namespace(model.name, cache_salt=salt))
            except Exception:  # a fault of the encoder costs the prediction, not the request
                self._metrics.encode_fallback("error").value += 1
        if encoded is None or isinstance(encoded, Encoded):
            return self._prepared(route, served_as, model, body, raw_session, len(raw_body), encoded)
        return self._prepare_later(route, served_as, model, body, raw_session, len(raw_body), encoded)

    async def _prepare_later(
        self,
        route: str,
        served_as: str,
        model: Model,
        body: Body,
        raw_session: bytes | None,
        size: int,
        encoding: Awaitable[Encoded | None],
    ) -> Prepared:
        encoded = None
        try:
            encoded = await encoding
        except Exception:
            self._metrics.encode_fallback("error").value += 1
        return self._prepared(route, served_as, model, body, raw_session, size, encoded)

    def _prepared(
        self,
        route: str,
        served_as: str,
        model: Model,
        body: Body,
        raw_session: bytes | None,
        size: int,
        encoded: Encoded | None,
    ) -> Prepared:
        raw_id = raw_session
        if raw_id is None:
            hints = body.session_id, body.metadata, body.conversation, body.prompt_cache_key
            if hints != _NO_HINTS:
                raw_id = session_id.from_body(*hints)
        session = session_id.derive(EVERYONE, raw_id, self._secret) if raw_id is not None else None
        streams = body.streams
        if encoded is None:
            # nothing could be read of it: the length of the body is the best guess, in bytes
            tokens = size / DEFAULT_BYTES_PER_TOKEN
            return Prepared(route, served_as, model, streams, session, False, _NO_KEYS, 0, 0, 0, 0, tokens, 0.0, False)
        keys, units, block_units, resumed_blocks, prompt_id, resumed_id = encoded
        tokens_per_unit = model.tokens_per_unit()
        return Prepared(
            route,
            served_as,
            model,
            streams,
            session,
            session is None and self._use_lineage and bool(keys),
            keys,
            resumed_blocks,
            prompt_id,
            resumed_id,
            units if route == "chat" or bytes(body.prompt).startswith(b'"') else 0,
            units * tokens_per_unit,
            block_units * tokens_per_unit,
            True,
        )

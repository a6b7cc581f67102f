"""From a request body to what routing knows of it before it looks at the fleet: parse, identify, encode."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from gateway import session_id
from gateway.body_rewrite import guard
from gateway.usage_ask import ask_of
from prefix_index.encoding.protocol import Encoded, Namespace
from prefix_index.encoding.ratio import DEFAULT_BYTES_PER_TOKEN
from vocabulary import BlockKeys
from vocabulary.errors import ModelNotAllowed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gateway.access.caller import Caller
    from gateway.body import Body
    from gateway.body_rewrite import Rewrite
    from gateway.endpoints import Endpoint
    from gateway.metrics import Metrics
    from gateway.models import Model, Models
    from gateway.usage_ask import Ask
    from vocabulary import InstanceId, SessionKey

_NO_KEYS: Final = BlockKeys(b"")
_NO_HINTS: Final = (None, None, None, None)
_ASKED: Final = frozenset({"chat", "completions"})
"""Endpoints whose streams tell their usage only when asked."""


@dataclass(slots=True)
class Prepared:
    """What routing knows of a request before it looks at the fleet."""

    caller: Caller
    rewrite: Rewrite | None
    """None: backends get the body as it is."""
    route: str
    """The name of the endpoint."""
    served_as: str
    """The model's name as the request has it. Empty: it names none, and any backend will do."""
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
    tied_to: InstanceId | None = None
    """It goes on with what only this one keeps."""
    home: InstanceId | None = None
    """Where the session's last turn went, as of the last look at the fleet."""
    usage_ask: Ask | None = None
    """How its stream may be asked for the usage. None: it tells it unasked, or the client has said its will."""


class Preparer:
    def __init__(self, models: Models, metrics: Metrics, secret: bytes, *, use_lineage: bool) -> None:
        self._models = models
        self._metrics = metrics
        self._secret = secret
        self.use_lineage = use_lineage
        self.ask_usage = True
        """Of streams whose clients did not ask."""

    def prepare(
        self,
        endpoint: Endpoint,
        raw_body: bytes,
        raw_session: bytes | None,
        caller: Caller,
        content_type: bytes | None = b"application/json",
    ) -> Prepared | Awaitable[Prepared]:
        """Raises ClientError or GatewayError. An awaitable where the prompt is encoded off the event loop.

        `raw_session`: the session id in the request's headers.
        """
        route = endpoint.name
        body = endpoint.read(raw_body, content_type)
        rewrite = guard(raw_body, caller) if caller.tenant else None
        if caller.models is None and not endpoint.any_backend:
            served_as, model = self._models.resolve(body.model)
        else:
            served_as, model = self._model(endpoint, body.model, caller)
        if endpoint.prompt is None:
            return self._by_load(endpoint, caller, rewrite, served_as, model, body, len(raw_body))
        encoded: Encoded | Awaitable[Encoded | None] | None = None
        if not body.own_template and (prompt := endpoint.prompt(body)) is not None:
            if rewrite is not None:
                salt = rewrite.salt.decode()
            else:
                salt = body.cache_salt if isinstance(body.cache_salt, str) else ""
            try:
                encoded = model.encoder.encode(prompt, Namespace(model.name, cache_salt=salt))
            except Exception:  # a fault of the encoder costs the prediction, not the request
                self._metrics.encode_fallback("error").value += 1
        known = caller, rewrite, route, served_as, model, body, raw_session, len(raw_body)
        if encoded is None or isinstance(encoded, Encoded):
            return self._prepared(*known, encoded)
        return self._prepare_later(encoded, partial(self._prepared, *known))

    def _model(self, endpoint: Endpoint, requested: object, caller: Caller) -> tuple[str, Model]:
        """(name as requested, model). A model that the caller may not use is refused before it is known to exist."""
        if caller.models is not None and isinstance(requested, str) and requested:
            _check_model(caller, requested)
        if endpoint.any_backend and requested is None:
            if caller.models is not None and not endpoint.stateful:
                raise ModelNotAllowed("this tenant must name one of its models", param="model")
            return "", self._models.any()
        served_as, model = self._models.resolve(requested)
        if caller.models is not None:
            _check_model(caller, served_as)
        return served_as, model

    def _by_load(
        self,
        endpoint: Endpoint,
        caller: Caller,
        rewrite: Rewrite | None,
        served_as: str,
        model: Model,
        body: Body,
        size: int,
    ) -> Prepared:
        """Nothing is matched and no session is touched: an embedding's id would move a chat's."""
        return Prepared(
            caller,
            rewrite,
            endpoint.name,
            served_as,
            model,
            body.streams,
            None,
            False,
            _NO_KEYS,
            0,
            0,
            0,
            0,
            size / DEFAULT_BYTES_PER_TOKEN if endpoint.is_text else 0.0,
            0.0,
            True,
        )

    async def _prepare_later(
        self, encoding: Awaitable[Encoded | None], prepared: Callable[[Encoded | None], Prepared]
    ) -> Prepared:
        encoded = None
        try:
            encoded = await encoding
        except TimeoutError:
            self._metrics.encode_fallback("timeout").value += 1
        except Exception:
            self._metrics.encode_fallback("error").value += 1
        return prepared(encoded)

    def _prepared(
        self,
        caller: Caller,
        rewrite: Rewrite | None,
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
        session = session_id.derive(caller.tenant, raw_id, self._secret) if raw_id is not None else None
        streams = body.streams
        ask = ask_of(bytes(body.stream_options)) if streams and self.ask_usage and route in _ASKED else None
        if encoded is None:
            # nothing could be read of it: the length of the body is the best guess, in bytes
            tokens = size / DEFAULT_BYTES_PER_TOKEN
            unread = (_NO_KEYS, 0, 0, 0, 0, tokens, 0.0, False)
            return Prepared(caller, rewrite, route, served_as, model, streams, session, False, *unread, usage_ask=ask)
        keys, units, block_units, resumed_blocks, prompt_id, resumed_id = encoded
        tokens_per_unit = model.tokens_per_unit()
        return Prepared(
            caller,
            rewrite,
            route,
            served_as,
            model,
            streams,
            session,
            session is None and self.use_lineage and bool(keys),
            keys,
            resumed_blocks,
            prompt_id,
            resumed_id,
            units if route != "completions" or bytes(body.prompt).startswith(b'"') else 0,
            units * tokens_per_unit,
            block_units * tokens_per_unit,
            True,
            usage_ask=ask,
        )


def _check_model(caller: Caller, name: str) -> None:
    if not caller.may_use(name):
        raise ModelNotAllowed("this tenant may not use this model; GET /v1/models lists those it may", param="model")

"""From the config's sections to the objects that work by them. Pure construction: nothing here keeps state."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from backends.backend import BackendSpec, EventSource
from backends.engine.setups import SETUPS
from backends.engines import EngineName
from backends.health import HealthPolicy
from backends.prober import ProbePolicy
from backends.tls import client_context
from backends.upstream import Endpoint, Timeouts
from gateway.limits import RequestLimits
from prefix_index.encoding.engine_encoder import EngineEncoder
from prefix_index.encoding.template import ChatTemplate
from prefix_index.encoding.template_files import beside, template_sources
from prefix_index.encoding.tokenizer import CheckedTokenizer
from prefix_index.encoding.tokens_encoder import TokensEncoder
from routing import Knobs, Policy, build, rates_of_coefficients
from vocabulary import BackendId
from vocabulary.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gateway.config import Backend, Config, Route
    from gateway.config import Model as ModelConfig
    from prefix_index.encoding.engine_encoder import TokenSource


def backend_spec(backend: Backend, config: Config) -> BackendSpec:
    """Raises ConfigError where the CA file is none."""
    p = q = None
    model = next((found for name in backend.models or () if (found := config.model(name)) is not None), None)
    if backend.setup is not None:
        setup = SETUPS[backend.setup]
        p, q = rates_of_coefficients(setup.prefill_ms_per_token, setup.attention_ms_per_token_ctx)
    elif model is not None:
        p, q = model.prefill_s_per_token, model.prefill_s_per_token2
    return BackendSpec(
        name=BackendId(backend.name),
        endpoint=endpoint(backend),
        models=backend.models or (),
        capacity_tokens=backend.capacity_tokens,
        prefill_cap_tokens=backend.prefill_cap_tokens,
        by_priority=backend.scheduling == "priority",
        prefill_s_per_token=p,
        prefill_s_per_token2=q,
        engine=engine_name(backend.engine),
        events=event_source(backend),
    )


def event_source(backend: Backend) -> EventSource | None:
    events = backend.kv_events
    if events is None:
        return None
    return EventSource(events.endpoint, events.replay_endpoint, events.topic or "", events.binds)


def engine_name(engine: str) -> EngineName | None:
    return None if engine == "auto" else EngineName(engine)


def endpoint(backend: Backend) -> Endpoint:
    parts = urlsplit(backend.url)
    tls = None
    if parts.scheme == "https":
        try:
            tls = client_context(
                backend.ca_file, verify=backend.tls_verify, cert_file=backend.cert_file, key_file=backend.key_file
            )
        except (OSError, ValueError) as error:
            message = f"backend {backend.name}: its certificate files cannot be used ({type(error).__name__})"
            raise ConfigError(message) from error
    credential = backend.credential
    return Endpoint(
        host=parts.hostname or "",
        port=parts.port or (443 if tls is not None else 80),
        tls=tls,
        authorization=f"Bearer {credential.get_secret_value()}" if credential is not None else None,
    )


def timeouts(config: Config) -> Timeouts:
    limits = config.limits
    return Timeouts(
        limits.connect_timeout_s,
        limits.first_byte_timeout_s,
        limits.idle_timeout_s,
        limits.keepalive_idle_s,
        limits.max_idle_connections,
    )


def request_limits(config: Config) -> RequestLimits:
    return RequestLimits(
        config.listen.max_body_bytes, config.limits.max_attempts, frozenset(config.limits.retry_statuses)
    )


def fingerprint(path: Path) -> tuple[object, ...]:
    """Changes with the file behind a path, also where the path leads over symlinks that are swapped."""
    try:
        found = path.stat()
    except OSError:
        return (str(path), None)
    return (str(path), found.st_ino, found.st_size, found.st_mtime_ns)


def health_policy(config: Config) -> HealthPolicy:
    health = config.health
    return HealthPolicy(health.fail_threshold, health.pass_threshold, health.eject_after_failures, health.eject_s)


def probe_policy(config: Config) -> ProbePolicy:
    health = config.health
    return ProbePolicy(health.path, health.interval_s, health.timeout_s, health.metrics_interval_s)


def policy(route: Route) -> Policy:
    chosen = route.policy
    knobs = Knobs(
        crowd_s=chosen.crowd_s,
        move_s=chosen.move_s,
        settle_share=chosen.settle_share,
        displace_threshold=chosen.displace_threshold,
        live_window_s=chosen.live_window_s,
    )
    return build(chosen.name, knobs)


def tokens_encoder(entry: ModelConfig, secret: bytes, on_mismatch: Callable[[str], None]) -> TokensEncoder:
    """Loads the vocabulary, which takes up to seconds. Raises ConfigError where a file is not what it should be."""
    assert entry.tokenizer is not None  # a rule of the config
    try:
        tokenizer = CheckedTokenizer(entry.tokenizer.read_text("utf-8"), on_mismatch=on_mismatch)
        sources = template_sources(entry.tokenizer, entry.chat_template)
        templates = [
            None if source is None else ChatTemplate(source, sources.special_tokens)
            for source in (sources.default, sources.tool_use)
        ]
    except (OSError, ValueError) as error:
        raise ConfigError(f"model {entry.name}: {error}") from error
    return TokensEncoder(
        secret,
        tokenizer,
        templates[0],
        tool_template=templates[1],
        on_mismatch=on_mismatch,
        block_tokens=entry.block_size,
    )


def engine_encoder(entry: ModelConfig, secret: bytes, source: TokenSource) -> EngineEncoder:
    return EngineEncoder(secret, source, block_tokens=entry.block_size, timeout_s=entry.encode_timeout_ms / 1000)


def encoder_key(entry: ModelConfig) -> tuple[object, ...]:
    """Equal while an encoder made of it would be the same, as far as the size and time of its files tell."""
    files: list[Path] = []
    if entry.tokenizer is not None:
        files += (entry.tokenizer, *beside(entry.tokenizer))
    if entry.chat_template is not None:
        files.append(entry.chat_template)
    settings = (entry.name, *sorted(entry.aliases), entry.encoding, entry.block_size, entry.encode_timeout_ms)
    return (*settings, *map(fingerprint, files))


def secret(config: Config) -> bytes | None:
    """The deployment secret as configured."""
    given = config.store.secret or config.store.secret_file
    return given.get_secret_value().encode() if given is not None else None

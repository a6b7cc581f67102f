"""From a `discovery` section to its source, and from what that finds to backends. Pure construction: no state, no I/O
but for certificate files."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from backends.backend import BackendSpec, EventSource
from backends.discovery.cluster import Cluster
from backends.discovery.dns import DnsSource
from backends.discovery.file import FileSource
from backends.discovery.kubernetes import SERVICE_LABEL, KubernetesSource
from backends.tls import client_context
from backends.upstream import Endpoint
from gateway import wiring
from vocabulary import BackendId
from vocabulary.errors import ConfigError

if TYPE_CHECKING:
    import random
    import ssl
    from collections.abc import Callable, Iterable, Mapping

    from backends.discovery.protocol import Found, Source
    from gateway.config import Config
    from gateway.config.discovery import Discovery

_MAX_NAME: Final = 64


@dataclass(frozen=True, slots=True)
class SourcePlan:
    """One section, with everything of it that can fail to be made."""

    section: Discovery
    key: tuple[object, ...]
    """Equal while the source and what it has found may stay as they are."""
    make_source: Callable[[], Source]
    """Anew for each task: a source keeps what it last saw."""
    tls: ssl.SSLContext | None
    rates: Mapping[str, tuple[float, float]]
    """Start values of prefill times by model."""

    @property
    def name(self) -> str:
        return self.section.name

    def spec(self, found: Found) -> BackendSpec:
        section, address = self.section, found.address
        models = found.models or section.models or ()
        p, q = next((self.rates[model] for model in models if model in self.rates), (None, None))
        credential = section.api_key or section.api_key_file
        return BackendSpec(
            name=backend_name(self.name, found.name),
            endpoint=Endpoint(
                host=address.host,
                port=address.port,
                tls=self.tls if address.scheme == "https" else None,
                authorization=f"Bearer {credential.get_secret_value()}" if credential is not None else None,
                server_hostname=found.server_hostname,
            ),
            models=models,
            prefill_s_per_token=p,
            prefill_s_per_token2=q,
            engine=wiring.engine_name(section.engine),
            events=self._events(address.host),
        )

    def _events(self, host: str) -> EventSource | None:
        events = self.section.kv_events
        if events is None:
            return None
        base = f"tcp://[{host}]" if ":" in host else f"tcp://{host}"
        replay = f"{base}:{events.replay_port}" if events.replay_port is not None else None
        return EventSource(f"{base}:{events.port}", replay, events.topic or "")


def plan_sources(config: Config, rng: random.Random, before: Iterable[SourcePlan] = ()) -> tuple[SourcePlan, ...]:
    """Plans of `before` that still hold are taken over as they are. Raises ConfigError."""
    rates = {
        name: (model.prefill_s_per_token, model.prefill_s_per_token2)
        for model in config.models
        for name in (model.name, *model.aliases)
    }
    known = {plan.name: plan for plan in before}
    plans = []
    for section in config.discovery:
        files = [path for path in (section.ca_file, section.kubeconfig) if path is not None]
        key = (section, tuple(sorted(rates.items())), *map(wiring.fingerprint, files))
        old = known.get(section.name)
        if old is not None and old.key == key:
            plans.append(old)
        else:
            plans.append(SourcePlan(section, key, _source(section, rng), _tls(section), rates))
    return tuple(plans)


def _source(section: Discovery, rng: random.Random) -> Callable[[], Source]:
    if section.kind == "file":
        path = section.path
        assert path is not None  # a rule of the config, as those below
        return lambda: FileSource(path, section.refresh_s, rng)
    if section.kind == "dns":
        host, port = section.host, section.port
        assert host is not None
        number = port if isinstance(port, int) else 0
        return lambda: DnsSource(host, number, section.scheme, section.refresh_s, rng)
    cluster = Cluster(os.environ, section.namespace, section.kubeconfig)
    selector = section.selector or f"{SERVICE_LABEL}={section.service}"
    return lambda: KubernetesSource(cluster, selector, section.port, section.scheme, rng)


def _tls(section: Discovery) -> ssl.SSLContext | None:
    if section.kind != "file" and section.scheme == "http":
        return None
    try:
        return client_context(section.ca_file, verify=True)
    except OSError as error:
        message = f"discovery {section.name}: ca_file cannot be used ({type(error).__name__})"
        raise ConfigError(message) from error


def backend_name(source: str, found: str) -> BackendId:
    """`<source>-<found>`; what does not fit the form of names ends in a digest instead, so that it stays unique."""
    whole = f"{source}-{found}"
    if re.fullmatch(r"[a-z0-9_.-]{1,64}", whole):
        return BackendId(whole)
    digest = hashlib.blake2b(whole.encode(), digest_size=4).hexdigest()
    plain = re.sub(r"[^a-z0-9_.-]", "-", whole.lower())
    return BackendId(f"{plain[: _MAX_NAME - len(digest) - 1]}-{digest}")

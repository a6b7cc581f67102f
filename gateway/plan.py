"""From one config to the next: what can fail is made first, then all is put in place in one step.

State that is not of the config stays: instances and their leases, the index, sessions, connections, streams.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gateway import wiring
from gateway.access.settings import access_settings
from gateway.connections import connection_limits, side_limits
from gateway.endpoints import Endpoints
from gateway.source_plan import plan_sources

if TYPE_CHECKING:
    import random

    from backends.backend import BackendSpec
    from gateway.access.settings import AccessSettings
    from gateway.app import Gateway
    from gateway.config import Backend, Config
    from gateway.model_builder import ModelBuilder
    from gateway.source_plan import SourcePlan
    from vocabulary import BackendId


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything of a config that can fail to be made."""

    config: Config
    builder: ModelBuilder
    specs: tuple[BackendSpec, ...]
    connections: dict[str, tuple[object, ...]]
    """By backend: equal while its connections may stay."""
    access: AccessSettings
    sources: tuple[SourcePlan, ...]


def first_plan(config: Config, builder: ModelBuilder, rng: random.Random) -> Plan:
    """Raises ConfigError."""
    return Plan(config, builder, *_backends(config, {}, {}), access_settings(config), plan_sources(config, rng))


async def next_plan(gateway: Gateway, config: Config) -> Plan:
    """Raises ConfigError; changes nothing."""
    before = gateway.plan
    builder = await asyncio.to_thread(gateway.next_builder, config)
    try:
        known = {spec.name: spec for spec in before.specs}
        access = await asyncio.to_thread(access_settings, config)
        sources = await asyncio.to_thread(plan_sources, config, gateway.rng, before.sources)
        return Plan(config, builder, *_backends(config, known, before.connections), access, sources)
    except BaseException:
        builder.close_but(before.builder)
        raise


def _backends(
    config: Config, known: dict[BackendId, BackendSpec], connections: dict[str, tuple[object, ...]]
) -> tuple[tuple[BackendSpec, ...], dict[str, tuple[object, ...]]]:
    specs, keys = [], {}
    for entry in config.backends:
        keys[entry.name] = key = _connection_key(entry)
        spec = wiring.backend_spec(entry, config)
        if connections.get(entry.name) == key:
            spec = replace(spec, endpoint=known[spec.name].endpoint)
        specs.append(spec)
    return tuple(specs), keys


def _connection_key(entry: Backend) -> tuple[object, ...]:
    files = [path for path in (entry.ca_file, entry.cert_file, entry.key_file) if path is not None]
    return (entry.url, entry.credential, entry.tls_verify, *map(wiring.fingerprint, files))


def apply(gateway: Gateway, plan: Plan) -> None:
    """One step of the event loop, in which nothing fails."""
    config, before = plan.config, gateway.plan
    gateway.config, gateway.plan = config, plan
    gateway.access.apply(plan.access)
    gateway.limits = wiring.request_limits(config)
    gateway.request_buffer.max_bytes = config.listen.max_buffered_bytes
    limits = connection_limits(config)
    gateway.connections.apply(limits)
    gateway.side_connections.apply(side_limits(limits))
    gateway.endpoints = Endpoints(config.listen.paths)
    gateway.metrics.set_config([route.name for route in config.all_routes], config.id)
    gateway.models.replace(plan.builder.configured(), plan.builder.build)
    gateway.self_check.apply(plan.builder.subjects())
    gateway.preparer.use_lineage = config.sessions.lineage
    gateway.preparer.ask_usage = config.telemetry.ask_usage
    sessions = config.sessions
    gateway.sessions.set_limits(sessions.idle_ttl_s, config.live_window_s, sessions.max_sessions)
    gateway.router.decision_headers = config.telemetry.decision_headers
    gateway.registry.set_health_policy(wiring.health_policy(config))
    gateway.prober.set_policy(wiring.probe_policy(config))
    gateway.fleet.set_slow_start(config.health.slow_start_s)
    gateway.router.fail_open = config.health.fail_open
    gateway.set_timeouts(wiring.timeouts(config))
    _apply_backends(gateway, before, plan)
    gateway.sources.apply(plan.sources)
    gateway.models_changed()
    gateway.retire(before.builder, plan.builder)


def _apply_backends(gateway: Gateway, before: Plan, plan: Plan) -> None:
    known = {spec.name: spec for spec in before.specs}
    for spec in plan.specs:
        if known.pop(spec.name, None) != spec:
            gateway.control.change(spec)
    for name in known:
        gateway.control.remove_later(name)

"""What `warmroute status` shows: the whole fleet as this gateway sees it, as plain JSON values."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from backends.engines.reader import contradiction
from backends.load import EngineLoad
from vocabulary import VERSION

if TYPE_CHECKING:
    from backends.backend import Backend
    from gateway.app import Gateway
    from gateway.fleet import InstanceState


def status(gateway: Gateway) -> dict[str, Any]:
    index = gateway.index.stats()
    blocks = {holder.instance: count for holder, count in index.holders.items()}
    sessions = gateway.sessions.stats()
    return {
        "version": VERSION,
        "config": gateway.config.id,
        "reload": gateway.reloader.status() if gateway.reloader is not None else None,
        "ready": gateway.ready,
        "draining": gateway.draining,
        "connections": len(gateway.connections),
        "backends": [
            backend_status(gateway, backend, blocks.get(backend.instance.id, 0)) for backend in gateway.registry
        ],
        "replaced": [{"name": backend.name, "in_flight": backend.in_flight} for backend in gateway.control.replaced],
        "discovery": gateway.sources.status(),
        "models": gateway.self_check.status(),
        "index": {
            "blocks": index.blocks,
            "entries": index.entries,
            "max_entries": gateway.config.store.max_entries,
            "evicted_total": index.evicted_total,
        },
        "sessions": asdict(sessions),
    }


def backend_status(gateway: Gateway, backend: Backend, blocks: int | None = None) -> dict[str, Any]:
    """`blocks`: what the index has of it; None: look."""
    if blocks is None:
        blocks = sum(
            count for holder, count in gateway.index.stats().holders.items() if holder.instance == backend.instance.id
        )
    instance = backend.instance
    state = gateway.fleet.of(instance)
    now_s = gateway.clock()
    return {
        "name": backend.name,
        "state": backend.health.state.value,
        "draining": list(backend.drain_reasons),
        "empty": backend.draining and backend.in_flight == 0,
        "slow_start": round(gateway.fleet.worth(instance.id, now_s), 2),
        "retry_in_s": round(backend.health.retry_in_s(now_s), 1),
        "last_error": backend.last_error,
        "instance": instance.id,
        "uptime_s": round(now_s - instance.started_s, 1),
        "models": list(backend.models),
        "trust": state.trust.value,
        "feed": gateway.feeds.status(instance),
        "in_flight": backend.in_flight,
        "pending": len(instance.pending),
        "pending_uncached_tokens": round(instance.pending_uncached_tokens),
        "indexed_blocks": blocks,
        "live_tokens": gateway.sessions.live_tokens(instance.id),
        "capacity_tokens": backend.capacity_tokens,
        "capacity_factor": round(state.capacity_factor, 3),
        "predictions": {"bias": round(state.record.bias, 3), "samples": state.record.weighed},
        "suspect": suspect_status(gateway, state, now_s),
        "prefill": {
            "s_per_token": state.fit.p,
            "s_per_token2": state.fit.q,
            "samples": state.fit.samples,
        },
        "engine": engine_status(backend),
    }


def suspect_status(gateway: Gateway, state: InstanceState, now_s: float) -> dict[str, Any] | None:
    """Why predictions of cached tokens do not come true there, as far as can be told. None: they do."""
    found = gateway.fleet.calibration.suspected(state, now_s)
    if found is None:
        return None
    return {"cause": found.cause.value, "since_s": round(now_s - found.since_s, 1), "detail": found.detail}


def engine_status(backend: Backend) -> dict[str, Any]:
    """`answers_as`: set where its answers name another engine than the config."""
    instance, other = backend.instance, contradiction(backend)
    load = instance.engine_load or EngineLoad()
    return {
        "name": instance.engine.name.value if instance.engine is not None else None,
        "from": "answers" if backend.spec.engine is None else "config",
        "answers_as": other.value if other is not None else None,
        "running": load.running,
        "waiting": load.waiting,
        "kv_usage": load.kv_usage,
        "block_size": load.block_size,
        "prefix_cache": load.prefix_cache,
    }

"""Tenants and their keys, and a gateway that knows them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from gateway.config import default_config
from gateway.plan import apply, next_plan
from tests.support.gateway import RawClient, RunningGateway, chat, running_gateway
from tests.support.upstream import ScriptedUpstream, answer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

KEY_A, KEY_A2, KEY_B = "sk-canary-of-tenant-a-1", "sk-canary-of-tenant-a-2", "sk-canary-of-tenant-b-1"


def tenant(name: str, *keys: str, **knobs: Any) -> dict[str, Any]:
    return {"name": name, "api_keys": list(keys), **knobs}


A, B = tenant("a", KEY_A, KEY_A2), tenant("b", KEY_B)


def bearer(key: str, **headers: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}", **{name.replace("_", "-"): value for name, value in headers.items()}}


@contextlib.asynccontextmanager
async def setting(
    *tenants: dict[str, Any], script: Any = answer, serves: tuple[str, ...] = ("m",), **sections: Any
) -> AsyncIterator[tuple[RunningGateway, ScriptedUpstream, RawClient]]:
    async with (
        ScriptedUpstream(script, models=serves) as upstream,
        running_gateway([upstream.url], tenants=list(tenants), **sections) as gw,
        gw.client() as client,
    ):
        yield gw, upstream, client


async def assert_works(client: RawClient, key: str = KEY_A) -> None:
    response = await client.ask(chat(), headers=bearer(key))
    assert response.status == 200, await response.read()
    await response.read()


async def reload(gw: RunningGateway, *tenants: dict[str, Any], **sections: Any) -> None:
    backends = [entry.model_dump() for entry in gw.gateway.config.backends]
    config = default_config(backends=backends, tenants=list(tenants), **sections)
    apply(gw.gateway, await next_plan(gw.gateway, config))

"""What `warmroute status` would show of a gateway."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gateway.status import status

if TYPE_CHECKING:
    from tests.support.gateway import RunningGateway


def shown(gw: RunningGateway, name: str) -> dict[str, Any]:
    """Of one backend."""
    return next(entry for entry in status(gw.gateway)["backends"] if entry["name"] == name)


async def compared(gw: RunningGateway) -> list[dict[str, Any]]:
    """What the self-check found of each backend, once it has looked at all."""

    def found() -> list[dict[str, Any]]:
        return [entry for model in status(gw.gateway)["models"] for entry in model["parity"]]

    await gw.until(lambda gateway: len(found()) == len(tuple(gateway.registry)), timeout_s=30)
    return found()

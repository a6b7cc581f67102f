"""The admin port's orders to the fleet: drain, undrain and flush. Each may be given any number of times."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.status import backend_status
from gateway.web import error_response

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

    from gateway.app import Gateway


def fleet_routes(gateway: Gateway, refusal: Callable[[Request], Response | None]) -> list[Route]:
    """All are POST and answer the status of the backend, or of all. `refusal`: the answer to a request that a foreign
    page could have sent."""

    def route(path: str, order: Callable[[str | None], object]) -> Route:
        async def give(request: Request) -> Response:
            if (refused := refusal(request)) is not None:
                return refused
            name = request.path_params.get("name")
            try:
                order(name)
            except KeyError:
                return error_response(404, "backend_not_found", "there is no backend of that name")
            found = [backend_status(gateway, one) for one in gateway.registry if name in (None, one.name)]
            return JSONResponse({"backends": found} if name is None else found[0])

        return Route(path, give, methods=["POST"])

    control = gateway.control
    return [
        route("/admin/v1/backends/{name}/drain", lambda name: control.drain(name or "")),
        route("/admin/v1/backends/{name}/undrain", lambda name: control.undrain(name or "")),
        route("/admin/v1/backends/{name}/flush", control.flush),
        route("/admin/v1/flush", control.flush),
    ]

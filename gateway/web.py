"""The traffic port beside the hot routes: model list, health, and JSON errors for everything else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.access.asgi import Door, caller_of
from gateway.endpoints import dialect_of
from vocabulary.errors import MethodNotAllowed, NoSuchPath

if TYPE_CHECKING:
    from starlette.requests import Request

    from gateway.app import Gateway
    from vocabulary.errors import RequestFailed


def health_routes(gateway: Gateway) -> list[Route]:
    """`/livez`: the process answers. `/readyz`: it should get traffic."""

    async def livez(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def readyz(request: Request) -> Response:
        if gateway.ready:
            return JSONResponse({"status": "ready"})
        reason = "draining" if gateway.draining else "no backend can be reached"
        return JSONResponse({"status": "not ready", "reason": reason}, 503, headers={"retry-after": "1"})

    return [Route("/livez", livez), Route("/readyz", readyz)]


def model_cards(gateway: Gateway) -> dict[str, dict[str, Any]]:
    """Models of all backends that can be reached, as the first of them describes each; from memory, never asked
    anew.
    """
    cards: dict[str, dict[str, Any]] = {}
    for backend in gateway.registry:
        if backend.health.reachable:
            for model in backend.models:
                card = backend.model_cards.get(model)
                cards.setdefault(model, card or {"id": model, "object": "model", "created": 0, "owned_by": "warmroute"})
    return cards


def error_response(status: int, code: str, message: str, headers: dict[str, str] | None = None) -> Response:
    kind = "invalid_request_error" if status < 500 else "server_error"
    body = {"error": {"message": message, "type": kind, "param": None, "code": code}}
    return JSONResponse(body, status, headers=headers)


async def http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    if error.status_code == 404:
        return error_response(404, "not_found", "there is no such path on this gateway", headers)
    if error.status_code == 405:
        return error_response(405, "method_not_allowed", "this path does not take that method", headers)
    return error_response(error.status_code, "http_error", error.detail, headers)


def traffic_app(gateway: Gateway) -> Starlette:
    async def list_models(request: Request) -> Response:
        caller = caller_of(request)
        cards = [card for name, card in model_cards(gateway).items() if caller.may_use(name)]
        return JSONResponse({"object": "list", "data": cards})

    async def one_model(request: Request) -> Response:
        name = request.path_params["model"]
        card = model_cards(gateway).get(name)
        if card is None or not caller_of(request).may_use(name):
            return error_response(404, "model_not_found", "no backend serves this model")
        return JSONResponse(card)

    async def unserved(request: Request, error: Exception) -> Response:
        """In the shape of the API that the path is of."""
        assert isinstance(error, HTTPException)
        if error.status_code not in (404, 405):
            return await http_exception(request, error)
        path = request.scope["raw_path"].partition(b"?")[0]
        headers = dict(error.headers or {})
        failure: RequestFailed = NoSuchPath("there is no such path on this gateway")
        if error.status_code == 405 or (taken := gateway.endpoints.methods(path)):
            failure = MethodNotAllowed("this path does not take that method")
            if error.status_code == 404:
                headers["allow"] = ", ".join(taken)
        body = dialect_of(path).error_body(failure)
        return Response(body, failure.status, headers=headers, media_type="application/json")

    routes = [
        Route("/v1/models", list_models),
        Route("/v1/models/{model:path}", one_model),
        *health_routes(gateway),
    ]
    return Starlette(
        routes=routes,
        middleware=[Middleware(Door, access=gateway.access, metrics=gateway.metrics.access)],
        exception_handlers={HTTPException: unserved},
    )

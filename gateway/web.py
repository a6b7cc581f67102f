"""The traffic port beside the hot routes: model list, health, and JSON errors for everything else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.hot import HOT_ROUTES

if TYPE_CHECKING:
    from starlette.requests import Request

    from gateway.app import Gateway


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
        return JSONResponse({"object": "list", "data": list(model_cards(gateway).values())})

    async def one_model(request: Request) -> Response:
        card = model_cards(gateway).get(request.path_params["model"])
        if card is None:
            return error_response(404, "model_not_found", "no backend serves this model")
        return JSONResponse(card)

    async def post_only(request: Request) -> Response:
        raise HTTPException(405, headers={"allow": "POST"})

    other_methods = ["GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS"]
    routes = [
        Route("/v1/models", list_models),
        Route("/v1/models/{model:path}", one_model),
        *(Route(path.decode(), post_only, methods=other_methods) for path in HOT_ROUTES),
        *health_routes(gateway),
    ]
    return Starlette(routes=routes, exception_handlers={HTTPException: http_exception})

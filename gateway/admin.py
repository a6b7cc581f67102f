"""The admin port: metrics, status, explain. Loopback only, and only for callers that mean it.

A browser page of anybody could reach a loopback port: so Host must be a loopback name, Origin (if sent) the same
host, and a POST must be `application/json`, which no plain form can send.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.body import check_content_type
from gateway.metrics import CONTENT_TYPE
from gateway.prepare import Prepared
from gateway.router import explain
from gateway.session_id import from_headers
from gateway.status import status
from gateway.web import error_response, health_routes, http_exception
from vocabulary.errors import RequestFailed

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

    from gateway.app import Gateway

_LOOPBACK: Final = frozenset(("localhost", "127.0.0.1", "::1"))
_EXPLAINED: Final = {"/v1/chat/completions": "chat", "/v1/completions": "completions"}


def _hostname(authority: str) -> str | None:
    try:
        return urlsplit(f"//{authority}").hostname
    except ValueError:
        return None


def _same_origin(origin: str, host: str) -> bool:
    try:
        return urlsplit(origin).netloc == host
    except ValueError:
        return False


class LoopbackCallers:
    """Refuses requests that a foreign web page could have caused."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = dict(scope["headers"])
            host = headers.get(b"host", b"").decode("latin-1")
            origin = headers.get(b"origin")
            if _hostname(host) not in _LOOPBACK:
                response = error_response(421, "wrong_host", "the admin port answers to loopback names only")
                await response(scope, receive, send)
                return
            if origin is not None and not _same_origin(origin.decode("latin-1"), host):
                response = error_response(403, "wrong_origin", "the admin port does not serve other origins")
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)


def admin_app(gateway: Gateway) -> Starlette:
    async def metrics(request: Request) -> Response:
        return Response(gateway.metrics.render(), headers={"content-type": CONTENT_TYPE})

    async def show_status(request: Request) -> Response:
        return JSONResponse(status(gateway))

    async def explain_request(request: Request) -> Response:
        path = request.query_params.get("path", "/v1/chat/completions")
        route = _EXPLAINED.get(path)
        if route is None:
            return error_response(400, "bad_path", f"path must be one of: {', '.join(_EXPLAINED)}")
        try:
            content_type = request.headers.get("content-type", "")
            check_content_type(content_type.encode("latin-1"))
            body = await request.body()
            gateway.limits.check_body_size(len(body))
            headers = [(name.lower(), value) for name, value in request.scope["headers"]]
            prepared = gateway.preparer.prepare(route, body, from_headers(headers))
            if not isinstance(prepared, Prepared):
                prepared = await prepared
        except RequestFailed as error:
            return error_response(error.status, error.code, str(error))
        return JSONResponse(explain(gateway.router, prepared, gateway.clock()))

    routes = [
        Route("/metrics", metrics),
        Route("/admin/v1/status", show_status),
        Route("/admin/v1/explain", explain_request, methods=["POST"]),
        *health_routes(gateway),
    ]
    return Starlette(
        routes=routes,
        middleware=[Middleware(LoopbackCallers)],
        exception_handlers={HTTPException: http_exception},
    )

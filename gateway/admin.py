"""The admin port: metrics, status, explain, reload, drain and flush. Only for callers that mean it.

A browser page of anybody could reach a loopback port: so Host must be a loopback name, one of `admin.hosts` or the
address that was called, Origin (if sent) the same host, and a POST must be `application/json`, which no plain form can
send. With `admin.token` every path but /livez and /readyz needs it; without one only loopback is bound.
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.admin_fleet import fleet_routes
from gateway.body import check_content_type
from gateway.explain import explain
from gateway.metrics import CONTENT_TYPE
from gateway.prepare import Prepared
from gateway.session_id import from_headers
from gateway.status import status
from gateway.web import error_response, health_routes, http_exception
from vocabulary.errors import RequestFailed

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

    from gateway.access.caller import Caller
    from gateway.app import Gateway

_LOOPBACK: Final = frozenset(("localhost", "127.0.0.1", "::1"))
_OPEN: Final = frozenset(("/livez", "/readyz"))


def _not_json(request: Request) -> Response | None:
    """A 415 for a POST that a plain form could send."""
    try:
        check_content_type(request.headers.get("content-type", "").encode("latin-1"))
    except RequestFailed as error:
        return error_response(error.status, error.code, str(error))
    return None


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


class KnownCallers:
    """Refuses requests that a foreign web page could have caused, and those without the token."""

    def __init__(self, app: ASGIApp, gateway: Gateway) -> None:
        self._app = app
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        await (self._app if refusal is None else refusal)(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        origin = headers.get(b"origin")
        admin = self._gateway.config.admin
        called = scope["server"][0] if scope.get("server") else None
        if _hostname(host) not in {*_LOOPBACK, *admin.hosts, called}:
            return error_response(421, "wrong_host", "the admin port does not answer to this name, see admin.hosts")
        if origin is not None and not _same_origin(origin.decode("latin-1"), host):
            return error_response(403, "wrong_origin", "the admin port does not serve other origins")
        if admin.credential is not None and scope["path"] not in _OPEN:
            expected = f"Bearer {admin.credential.get_secret_value()}".encode()
            if not hmac.compare_digest(headers.get(b"authorization", b""), expected):
                headers_out = {"www-authenticate": "Bearer"}
                return error_response(401, "invalid_token", "this needs the admin token", headers_out)
        return None


def metrics_app(gateway: Gateway) -> Starlette:
    """`admin.metrics_bind`: the metrics and nothing else."""

    async def metrics(request: Request) -> Response:
        return Response(gateway.metrics.render(), headers={"content-type": CONTENT_TYPE})

    return Starlette(routes=[Route("/metrics", metrics)], exception_handlers={HTTPException: http_exception})


def admin_app(gateway: Gateway) -> Starlette:
    async def metrics(request: Request) -> Response:
        return Response(gateway.metrics.render(), headers={"content-type": CONTENT_TYPE})

    async def show_status(request: Request) -> Response:
        return JSONResponse(status(gateway))

    def _asked_for(request: Request) -> Caller | None:
        name = request.query_params.get("tenant")
        if name is None:
            return gateway.access.everyone if gateway.access.open else None
        return gateway.access.tenant(name)

    async def explain_request(request: Request) -> Response:
        path = request.query_params.get("path", "/v1/chat/completions")
        endpoint = gateway.endpoints.find(b"POST", path.partition("?")[0].encode())
        if endpoint is None:
            return error_response(400, "bad_path", f"path must be one of: {', '.join(gateway.endpoints.paths)}")
        caller = _asked_for(request)
        if caller is None:
            return error_response(400, "unknown_tenant", "say whose request it is, by tenant=NAME of a tenant there is")
        if (wrong := _not_json(request)) is not None:
            return wrong
        try:
            body = await request.body()
            gateway.limits.check_body_size(len(body))
            headers = [(name.lower(), value) for name, value in request.scope["headers"]]
            prepared = gateway.preparer.prepare(endpoint, body, from_headers(headers), caller)
            if not isinstance(prepared, Prepared):
                prepared = await prepared
            if endpoint.stateful:
                prepared.tied_to = gateway.response_ids.holder(caller.tenant, path.encode(), body)
        except RequestFailed as error:
            return error_response(error.status, error.code, str(error))
        return JSONResponse(explain(gateway.router, prepared, gateway.clock()))

    async def reload(request: Request) -> Response:
        if (wrong := _not_json(request)) is not None:
            return wrong
        if gateway.reloader is None:
            return error_response(409, "no_reload", "this gateway was started without a config file")
        outcome = await gateway.reloader.reload("admin")
        if not outcome.applied:
            fields = {"message": "the config was refused; the running one goes on", "code": "config_refused"}
            return JSONResponse({"error": {**fields, "problems": list(outcome.problems)}}, 422)
        changed = [{"path": change.path, "needs_restart": change.needs_restart} for change in outcome.changes]
        return JSONResponse({"config": outcome.config_id, "changes": changed})

    routes = [
        Route("/metrics", metrics),
        Route("/admin/v1/status", show_status),
        Route("/admin/v1/reload", reload, methods=["POST"]),
        Route("/admin/v1/explain", explain_request, methods=["POST"]),
        *fleet_routes(gateway, _not_json),
        *health_routes(gateway),
    ]
    return Starlette(
        routes=routes,
        middleware=[Middleware(KnownCallers, gateway=gateway)],
        exception_handlers={HTTPException: http_exception},
    )

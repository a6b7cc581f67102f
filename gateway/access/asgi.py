"""The door for all paths that do not go to a backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from starlette.responses import Response

from gateway.access.credential import WANTED
from gateway.endpoints import dialect_of
from vocabulary.errors import Unauthenticated

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

    from gateway.access.access import Access
    from gateway.access.caller import Caller
    from gateway.access.metrics import AccessMetrics

_FOR_ALL: Final = frozenset(("/livez", "/readyz"))


class Door:
    """Lets nobody past without a credential but to the health checks; `caller_of` tells who came in."""

    def __init__(self, app: ASGIApp, access: Access, metrics: AccessMetrics) -> None:
        self._app = app
        self._access = access
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in _FOR_ALL:
            caller, _, refusal = self._access.identify(scope["headers"])
            if caller is None:
                if refusal is not None:
                    self._metrics.refused(refusal)
                body = dialect_of(scope["raw_path"]).error_body(Unauthenticated(WANTED))
                headers = {"www-authenticate": "Bearer"}
                await Response(body, 401, headers, "application/json")(scope, receive, send)
                return
            scope.setdefault("state", {})["caller"] = caller
        await self._app(scope, receive, send)


def caller_of(request: Request) -> Caller:
    caller: Caller = request.state.caller
    return caller

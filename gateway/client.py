"""Asks a running gateway over its admin port, for the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click
import httpx2

if TYPE_CHECKING:
    from collections.abc import Mapping

_TIMEOUT_S: Final = 30.0


class AdminClient:
    """Every failure is a click.ClickException with a text for the person at the terminal."""

    def __init__(self, base_url: str) -> None:
        self._base_url = base_url.rstrip("/")

    def status(self) -> dict[str, Any]:
        return self._call("GET", "/admin/v1/status")

    def explain(self, body: bytes, path: str, headers: Mapping[str, str]) -> dict[str, Any]:
        sent = {**headers, "content-type": "application/json"}
        return self._call("POST", "/admin/v1/explain", params={"path": path}, content=body, headers=sent)

    def _call(self, method: str, path: str, **request: Any) -> dict[str, Any]:
        try:
            response = httpx2.request(method, self._base_url + path, timeout=_TIMEOUT_S, trust_env=False, **request)
            answer: dict[str, Any] = response.json()
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise click.ClickException(f"no gateway answers at {self._base_url} ({type(error).__name__})") from error
        except ValueError as error:
            raise click.ClickException(f"{self._base_url} is not the admin port of a gateway") from error
        if response.status_code >= 400:
            message = answer.get("error", {}).get("message", "refused")
            raise click.ClickException(f"the gateway answered {response.status_code}: {message}")
        return answer

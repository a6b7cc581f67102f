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
        return self._call("GET", "/admin/v1/status", "backends")

    def explain(self, body: bytes, path: str, headers: Mapping[str, str]) -> dict[str, Any]:
        sent = {**headers, "content-type": "application/json"}
        call = {"params": {"path": path}, "content": body, "headers": sent}
        return self._call("POST", "/admin/v1/explain", "candidates", **call)

    def _call(self, method: str, path: str, expected: str, **request: Any) -> dict[str, Any]:
        """`expected`: a key that the answer has if it is a gateway's."""
        url = self._base_url
        try:
            response = httpx2.request(method, url + path, timeout=_TIMEOUT_S, trust_env=False, **request)
        except UnicodeEncodeError as error:
            raise click.ClickException("a header must be ASCII") from error
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise click.ClickException(f"no gateway answers at {url} ({type(error).__name__})") from error
        try:
            answer = response.json()
        except ValueError:
            answer = None
        if isinstance(answer, dict) and response.status_code < 400 and expected in answer:
            return answer
        error_fields = answer.get("error") if isinstance(answer, dict) else None
        if isinstance(error_fields, dict) and "message" in error_fields:
            raise click.ClickException(f"the gateway answered {response.status_code}: {error_fields['message']}")
        raise click.ClickException(f"{url} is not the admin port of a gateway (it answered {response.status_code})")

"""Asks a running gateway over its admin port, for the command line."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import click
import httpx2

if TYPE_CHECKING:
    from collections.abc import Mapping

_TIMEOUT_S: Final = 30.0
_POLL_S: Final = 0.5


class Refused(click.ClickException):
    """The gateway found the config bad: as `warmroute check` does."""

    exit_code = 2


class AdminClient:
    """Every failure is a click.ClickException with a text for the person at the terminal."""

    def __init__(self, base_url: str, token: str | None = None) -> None:
        self._base_url = base_url.rstrip("/")
        self._token = token

    def status(self) -> dict[str, Any]:
        return self._call("GET", "/admin/v1/status", "backends")

    def explain(self, body: bytes, path: str, headers: Mapping[str, str], tenant: str | None = None) -> dict[str, Any]:
        sent = {**headers, "content-type": "application/json"}
        params = {"path": path} if tenant is None else {"path": path, "tenant": tenant}
        call = {"params": params, "content": body, "headers": sent}
        return self._call("POST", "/admin/v1/explain", "candidates", **call)

    def drain(self, name: str) -> dict[str, Any]:
        """The backend's status, as for all orders."""
        return self._order(name, "drain")

    def undrain(self, name: str) -> dict[str, Any]:
        return self._order(name, "undrain")

    def flush(self, name: str | None) -> list[dict[str, Any]]:
        """Of all backends without a name. Their status."""
        if name is not None:
            return [self._order(name, "flush")]
        answer = self._call("POST", "/admin/v1/flush", "backends", json={})
        return list(answer["backends"])

    def reload(self) -> dict[str, Any]:
        """The config id that runs now, and what has changed."""
        return self._call("POST", "/admin/v1/reload", "config", json={})

    def until_empty(self, name: str, timeout_s: float) -> None:
        """Returns once nothing runs on it, or it is gone."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            found = next((one for one in self.status()["backends"] if one["name"] == name), None)
            if found is None or found["empty"]:
                return
            if not found["draining"]:
                raise click.ClickException(f"{name} takes requests again: somebody has ended the drain")
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise click.ClickException(f"{name} still runs {found['in_flight']} requests after {timeout_s:g} s")
            time.sleep(min(_POLL_S, left_s))

    def _order(self, name: str, order: str) -> dict[str, Any]:
        return self._call("POST", f"/admin/v1/backends/{quote(name, safe='')}/{order}", "instance", json={})

    def _call(self, method: str, path: str, expected: str, **request: Any) -> dict[str, Any]:
        """`expected`: a key that the answer has if it is a gateway's."""
        url = self._base_url
        if self._token is not None:
            request["headers"] = {**request.get("headers", {}), "authorization": f"Bearer {self._token}"}
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
        if isinstance(error_fields, dict) and "problems" in error_fields:
            raise Refused("\n".join([*map(str, error_fields["problems"]), str(error_fields.get("message"))]))
        if isinstance(error_fields, dict) and "message" in error_fields:
            raise click.ClickException(f"the gateway answered {response.status_code}: {error_fields['message']}")
        raise click.ClickException(f"{url} is not the admin port of a gateway (it answered {response.status_code})")

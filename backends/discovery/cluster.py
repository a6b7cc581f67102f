"""The way to a Kubernetes API server: credentials as a pod or a kubeconfig has them, and two calls.

Credentials are read for each connection and a connection ends after minutes: tokens that were rotated are picked up.
The client library is an extra and slow to import, so that is done in a thread, when it is first used.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from backends.discovery.protocol import DiscoveryError
from vocabulary.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping

    from kubernetes_asyncio.client import Configuration

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds its token, its CA certificate and its namespace."""
_PAGE: Final = 500
_CONNECT_TIMEOUT_S: Final = 10.0
_ANSWER_TIMEOUT_S: Final = 30.0
_SLACK_S: Final = 15.0
"""The server ends a watch; one that is still silent this long after is a dead connection."""


class ApiError(DiscoveryError):
    """The API server refused a call."""

    def __init__(self, status: int) -> None:
        hint = {401: ": the token is not valid", 403: ": the role lacks list and watch of endpointslices"}
        super().__init__(f"the API server answered {status}{hint.get(status, '')}")
        self.status = status


class NoCredentials(DiscoveryError):
    """Neither a pod's service account nor a usable kubeconfig."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """`environ` and `service_account` are what a pod has; `kubeconfig` goes before them."""

    environ: Mapping[str, str]
    namespace: str | None = None
    kubeconfig: Path | None = None
    service_account: Path = SERVICE_ACCOUNT

    def __post_init__(self) -> None:
        """Raises ConfigError where the extra is not installed."""
        if importlib.util.find_spec("kubernetes_asyncio") is None:
            raise ConfigError("discovery by kubernetes needs the extra: pip install 'warmroute[kubernetes]'")

    @contextlib.asynccontextmanager
    async def connect(self, selector: str) -> AsyncIterator[SliceApi]:
        """Raises DiscoveryError, OSError, and errors of the client library."""
        settings, namespace = await asyncio.to_thread(self._load)
        from kubernetes_asyncio.client import ApiClient, DiscoveryV1Api

        async with ApiClient(settings) as client:
            yield SliceApi(DiscoveryV1Api(client), namespace, selector)

    def _load(self) -> tuple[Configuration, str]:
        from kubernetes_asyncio.client import Configuration
        from kubernetes_asyncio.config import ConfigException, load_incluster_config, load_kube_config

        settings = Configuration()
        try:
            if self.kubeconfig is not None:
                # reads files and may run a program: a loop of its own, in this thread
                loader = asyncio.run(
                    load_kube_config(str(self.kubeconfig), client_configuration=settings, persist_config=False)
                )
                context = (loader.current_context or {}).get("context", {})
                return settings, self.namespace or context.get("namespace") or "default"
            load_incluster_config(  # type: ignore[no-untyped-call]
                settings,
                try_refresh_token=False,
                token_filename=str(self.service_account / "token"),
                cert_filename=str(self.service_account / "ca.crt"),
                environ=dict(self.environ),
            )
            settings.api_key["BearerToken"] = settings.api_key["BearerToken"].strip()
            return settings, self.namespace or (self.service_account / "namespace").read_text("utf-8").strip()
        except ConfigException as error:
            raise NoCredentials("no service account of a pod, and no usable kubeconfig") from error


class SliceApi:
    """EndpointSlices of one namespace that a selector picks, as plain JSON values: the library's models refuse what a
    newer server adds, and its watch hides errors behind retries of its own."""

    def __init__(self, api: Any, namespace: str, selector: str) -> None:
        self._api = api
        self._namespace = namespace
        self._selector = selector

    async def list(self) -> tuple[list[dict[str, Any]], str]:
        """(slices, resource version)."""
        slices: list[dict[str, Any]] = []
        token: str | None = None
        while True:
            more = {"_continue": token} if token else {}
            async with self._get(_ANSWER_TIMEOUT_S, limit=_PAGE, **more) as response:
                page = json.loads(await response.read())
            slices += page["items"]
            token = page["metadata"].get("continue")
            if not token:
                return slices, str(page["metadata"]["resourceVersion"])

    async def watch(self, resource_version: str, length_s: int) -> AsyncGenerator[dict[str, Any]]:
        """Events after that version, until the server ends the watch."""
        async with self._get(
            length_s + _SLACK_S,
            watch=True,
            allow_watch_bookmarks=True,
            resource_version=resource_version,
            timeout_seconds=length_s,
        ) as response:
            while line := await response.content.readline():
                yield json.loads(line)

    @contextlib.asynccontextmanager
    async def _get(self, silence_s: float, **query: Any) -> AsyncIterator[Any]:
        response = await self._api.list_namespaced_endpoint_slice(
            self._namespace,
            label_selector=self._selector,
            _preload_content=False,
            _request_timeout=(_CONNECT_TIMEOUT_S, silence_s),
            **query,
        )
        try:
            if response.status != 200:
                raise ApiError(response.status)
            yield response
        finally:
            response.close()

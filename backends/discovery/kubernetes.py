"""Backends from the EndpointSlices of a Kubernetes service: one list, then a watch that follows it.

Invariant: what is reported is the last list with all events since applied. A watch that breaks goes on from its last
version; only a version that the server has forgotten (410) costs a new list.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final

from backends.discovery.backoff import Backoff
from backends.discovery.cluster import ApiError
from backends.discovery.endpoint_slices import read_slices
from backends.discovery.protocol import AddressRefused, UnusableEndpoints

if TYPE_CHECKING:
    import random

    from backends.discovery.cluster import Cluster, SliceApi
    from backends.discovery.protocol import Failed, Report, Sleep

SERVICE_LABEL: Final = "kubernetes.io/service-name"
_EXPIRED: Final = 410
_SHORT_S: Final = 1.0
_MALFORMED: Final = (ValueError, KeyError, TypeError, AttributeError)


class KubernetesSource:
    """`selector` picks EndpointSlices by label; `SERVICE_LABEL=name` those of a service."""

    def __init__(
        self,
        cluster: Cluster,
        selector: str,
        port: int | str | None,
        scheme: str,
        rng: random.Random,
        watch_s: int = 120,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """`watch_s`: the server is asked to end each watch after this, so that a connection that died in silence is
        noticed."""
        self._cluster = cluster
        self._selector = selector
        self._port = port
        self._scheme = scheme
        self._rng = rng
        self._watch_s = watch_s
        self._sleep = sleep
        self._backoff = Backoff(rng)
        self._slices: dict[str, dict[str, Any]] = {}
        self._version: str | None = None
        """None: a list is needed."""

    async def run(self, report: Report, failed: Failed) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            try:
                await self._follow(report, failed)
            except Exception as error:  # the root of this task: the client library has errors of many kinds
                if isinstance(error, _MALFORMED):
                    self._version = None
                if not self._expired(error):
                    failed(error)
            else:
                if loop.time() - began_s >= _SHORT_S:
                    self._backoff.reset()
                    continue
            await self._sleep(self._backoff.next_s())

    def _expired(self, error: Exception) -> bool:
        """The usual fate of a watch that was away for long; the next list makes up for what it missed."""
        if not isinstance(error, ApiError) or error.status != _EXPIRED:
            return False
        expected = self._version is not None
        self._version = None
        return expected

    async def _follow(self, report: Report, failed: Failed) -> None:
        """Returns when the server ended the watch."""
        async with self._cluster.connect(self._selector) as api:
            if self._version is None:
                slices, version = await api.list()
                self._slices = {_key(one): one for one in slices}
                self._tell(report, failed)
                self._version = version
            await self._watch(api, self._version, report, failed)

    async def _watch(self, api: SliceApi, version: str, report: Report, failed: Failed) -> None:
        length_s = max(1, round(self._watch_s * self._rng.uniform(0.75, 1.0)))
        async with contextlib.aclosing(api.watch(version, length_s)) as events:
            async for event in events:
                kind, item = event["type"], event["object"]
                if kind == "ERROR":
                    raise ApiError(int(item["code"]))
                if kind == "DELETED":
                    self._slices.pop(_key(item), None)
                elif kind in ("ADDED", "MODIFIED"):
                    self._slices[_key(item)] = item
                if kind != "BOOKMARK":
                    self._tell(report, failed)
                self._version = str(item["metadata"]["resourceVersion"])
                self._backoff.reset()

    def _tell(self, report: Report, failed: Failed) -> None:
        endpoints = read_slices(self._slices.values(), self._port, self._scheme)
        if endpoints.found or not (endpoints.unusable or endpoints.refused):
            report(endpoints.found)
        if endpoints.refused:
            failed(AddressRefused(f"{len(endpoints.refused)} pods are refused: {endpoints.refused[0]}"))
        if endpoints.unusable:
            failed(UnusableEndpoints(endpoints.unusable[0]))


def _key(item: dict[str, Any]) -> str:
    metadata = item["metadata"]
    return f"{metadata.get('namespace', '')}/{metadata['name']}"

"""What is counted of callers. Invariant: labels are refusals and the names of configured tenants, nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client.core import GaugeMetricFamily

from gateway.instruments import CounterFamily

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from prometheus_client.metrics_core import Metric

    from gateway.access.caller import Caller
    from gateway.access.credential import Refusal

_CLASSES: Final = {2: "2xx", 3: "3xx", 4: "4xx", 5: "5xx"}
_OTHER: Final = "other"


class AccessMetrics:
    def __init__(self) -> None:
        self._unauthenticated = CounterFamily(
            "warmroute_unauthenticated_total", "Requests answered with 401, by cause.", ("reason",)
        )
        self._requests = CounterFamily(
            "warmroute_tenant_requests_total",
            "Answered requests of a tenant, by class of status.",
            ("tenant", "status"),
        )
        self._keys_failed = CounterFamily(
            "warmroute_jwks_failures_total", "Key sets of auth.jwt.jwks_url that could not be fetched or used."
        )
        self._tenants: frozenset[Caller] = frozenset()

    def set_tenants(self, tenants: Collection[Caller]) -> None:
        """Those there are now. Series of others vanish."""
        now = frozenset(tenants)
        for gone in self._tenants - now:
            self._requests.forget("tenant", gone.tenant)
        self._tenants = now

    def refused(self, refusal: Refusal) -> None:
        self._unauthenticated.child(refusal.value).value += 1

    def answered(self, caller: Caller, status: int) -> None:
        """`caller` is a tenant."""
        if caller in self._tenants:  # not one that a reload took away
            self._requests.child(caller.tenant, _CLASSES.get(status // 100, _OTHER)).value += 1

    def key_set_failed(self) -> None:
        self._keys_failed.child().value += 1

    def collect(self) -> Iterator[Metric]:
        yield self._unauthenticated.collect()
        yield self._requests.collect()
        yield self._keys_failed.collect()
        in_flight = GaugeMetricFamily("warmroute_tenant_inflight", "Requests under way.", labels=("tenant",))
        for caller in self._tenants:
            if caller.quota is not None:
                in_flight.add_metric((caller.tenant,), caller.quota.in_flight)
        yield in_flight

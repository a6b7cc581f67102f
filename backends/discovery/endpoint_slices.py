"""EndpointSlices (discovery.k8s.io/v1) as JSON -> endpoints. Pure.

One pod is one engine: its entries in several slices, and its IPv4 and IPv6 addresses, are one endpoint. Conditions as
the API defines them: `ready` unset means ready; a pod that is `terminating` takes nothing new, whatever else is said.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from backends.addresses import Address, unsafe
from backends.discovery.protocol import Found, opaque_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(slots=True)
class Endpoints:
    found: tuple[Found, ...] = ()
    refused: list[str] = field(default_factory=list)
    """Pods whose address nothing is sent to, and why."""
    unusable: list[str] = field(default_factory=list)
    """Slices that the settings do not fit, and why."""


def read_slices(slices: Iterable[Mapping[str, Any]], port: int | str | None, scheme: str) -> Endpoints:
    """`port`: a number is taken as it is, a name is looked up, None takes the only one that there is. Raises KeyError,
    TypeError, AttributeError or ValueError where these are no EndpointSlices.
    """
    result = Endpoints()
    by_pod: dict[str, Found] = {}
    for one in sorted(slices, key=lambda item: str(item["metadata"]["name"])):
        endpoints = one.get("endpoints") or []
        if not endpoints:
            continue
        name = str(one["metadata"]["name"])
        if one["addressType"] not in ("IPv4", "IPv6"):
            result.unusable.append(f"{name}: addresses of type {one['addressType']}")
            continue
        number = port if isinstance(port, int) else _port(one.get("ports") or [], port)
        if number is None:
            which = "not exactly one port: say which" if port is None else f"no port named {port}"
            result.unusable.append(f"{name}: {which}")
            continue
        for endpoint in endpoints:
            _take(endpoint, number, scheme, by_pod, result)
    result.found = tuple(by_pod[pod] for pod in sorted(by_pod))
    return result


def _port(ports: list[Mapping[str, Any]], wanted: str | None) -> int | None:
    numbers = {
        int(port["port"])
        for port in ports
        if port.get("port") and port.get("protocol", "TCP") == "TCP" and wanted in (None, port.get("name"))
    }
    return numbers.pop() if len(numbers) == 1 else None


def _take(endpoint: Mapping[str, Any], port: int, scheme: str, by_pod: dict[str, Found], result: Endpoints) -> None:
    # the API takes all addresses of one endpoint for the same: the first does
    host = str(endpoint["addresses"][0])
    target = endpoint.get("targetRef") or {}
    address = Address(scheme, host, port)
    name = str(target.get("name") or opaque_name(address))
    reason = unsafe(host)
    if reason is not None:
        result.refused.append(f"{name}: {reason}")
        return
    conditions = endpoint.get("conditions") or {}
    found = Found(
        name, address, ready=conditions.get("ready") is not False, terminating=conditions.get("terminating") is True
    )
    pod = f"{target.get('namespace', '')}/{name}"
    by_pod[pod] = _merge(by_pod[pod], found) if pod in by_pod else found


def _merge(first: Found, second: Found) -> Found:
    """While a pod moves between slices it stands in two, and one of them is stale: a pod that terminates never comes
    back, so that word holds; readiness that one of them saw is believed.
    """
    address = min(first.address, second.address, key=lambda a: (":" in a.host, a.host))
    return replace(
        first,
        address=address,
        ready=first.ready or second.ready,
        terminating=first.terminating or second.terminating,
    )

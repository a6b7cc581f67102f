"""EndpointSlices to endpoints: conditions, ports, duplicates, both IP families."""

from __future__ import annotations

from typing import Any

import pytest

from backends.discovery.endpoint_slices import Endpoints, read_slices
from tests.support.api_server import endpoint_slice, pod


def read(*slices: dict[str, Any], port: int | str | None = None) -> Endpoints:
    return read_slices(slices, port, "http")


def shown(endpoints: Endpoints) -> dict[str, tuple[str, bool]]:
    return {found.name: (str(found.address), found.takes_traffic) for found in endpoints.found}


@pytest.mark.parametrize(
    ("conditions", "takes"),
    [
        ({}, True),
        ({"ready": None}, True),
        ({"ready": True}, True),
        ({"ready": False}, False),
        ({"ready": False, "serving": True, "terminating": True}, False),
        ({"ready": False, "serving": False, "terminating": True}, False),
        # a service that publishes addresses which are not ready
        ({"ready": True, "serving": True, "terminating": True}, False),
        ({"ready": True, "serving": None, "terminating": None}, True),
    ],
)
def test_conditions(conditions: dict[str, bool | None], takes: bool) -> None:
    (found,) = read(endpoint_slice("s", pod("a", "10.0.0.1", **conditions))).found
    assert found.takes_traffic is takes


def test_a_pod_in_several_slices_is_one_endpoint() -> None:
    first = endpoint_slice("s-1", pod("a", "10.0.0.1", ready=False), pod("b", "10.0.0.2"))
    second = endpoint_slice("s-2", pod("a", "10.0.0.1", ready=True), pod("b", "10.0.0.2", terminating=True))
    expected = {"a": ("http://10.0.0.1:8000", True), "b": ("http://10.0.0.2:8000", False)}
    assert shown(read(first, second)) == shown(read(second, first)) == expected


def test_both_ip_families_are_one_engine() -> None:
    v6 = endpoint_slice("a-v6", pod("a", "fd00::1"), pod("c", "fd00::3"), kind="IPv6")
    v4 = endpoint_slice("b-v4", pod("a", "10.0.0.1"), pod("b", "10.0.0.2"))
    assert shown(read(v6, v4)) == {
        "a": ("http://10.0.0.1:8000", True),
        "b": ("http://10.0.0.2:8000", True),
        "c": ("http://[fd00::3]:8000", True),
    }


def test_endpoints_without_a_pod_are_named_by_their_address() -> None:
    bare = {"addresses": ["10.0.0.9", "10.0.0.10"]}
    (found,) = read(endpoint_slice("s", bare)).found
    assert found.address.host == "10.0.0.9", "further addresses are the same endpoint"
    assert "10" not in found.name.split(".")
    assert read(endpoint_slice("other", bare)).found == (found,)


@pytest.mark.parametrize(
    ("ports", "wanted", "number"),
    [
        ({"": 8000}, None, 8000),
        ({"http": 8000, "metrics": 9090}, "http", 8000),
        ({"http": 8000}, 8123, 8123),
        ({"http": 8000, "metrics": 9090}, None, None),
        ({"http": 8000}, "web", None),
    ],
)
def test_ports(ports: dict[str, int], wanted: int | str | None, number: int | None) -> None:
    result = read(endpoint_slice("s", pod("a", "10.0.0.1"), ports=ports), port=wanted)
    assert [found.address.port for found in result.found] == ([number] if number else [])
    assert len(result.unusable) == (0 if number else 1)


def test_slices_without_endpoints_are_no_problem() -> None:
    empty: list[Any] | None
    for empty in ([], None):
        item = {**endpoint_slice("s"), "endpoints": empty, "ports": None}
        assert read(item, port="http") == Endpoints()


def test_other_protocols_and_names_are_left_aside() -> None:
    item = endpoint_slice("s", pod("a", "10.0.0.1"))
    item["ports"] = [{"name": "x", "port": 53, "protocol": "UDP"}, {"name": "http", "port": 8000}, {"port": None}]
    assert shown(read(item)) == {"a": ("http://10.0.0.1:8000", True)}
    names = {**endpoint_slice("s", pod("a", "example.test")), "addressType": "FQDN"}
    assert read(names).unusable == ["s: addresses of type FQDN"]


def test_o74_refused_addresses() -> None:
    v6 = endpoint_slice("v6", pod("b", "fe80::1"), pod("c", "fd00:ec2::254"), kind="IPv6")
    result = read(endpoint_slice("v4", pod("a", "169.254.169.254"), pod("d", "10.0.0.4")), v6)
    assert list(shown(result)) == ["d"]
    assert len(result.refused) == 3


@pytest.mark.parametrize(
    "broken", [{}, {"metadata": {}}, {"metadata": {"name": "s"}, "endpoints": [{}]}, {"metadata": 1}]
)
def test_what_is_no_slice(broken: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError, AttributeError, ValueError)):
        read(broken)

"""Rules of discovery: what each kind needs, and what has no effect."""

from __future__ import annotations

import pytest

from gateway.config import ConfigErrors, loads

BACKENDS = "backends: [{name: a, url: 'http://h:1'}]\n"


def problems(*entries: str, head: str = BACKENDS) -> list[str]:
    listed = "".join(f"- {{{entry}}}\n" for entry in entries)
    try:
        config = loads(f"{head}discovery:\n{listed}", "f", environ={"K": "k"})
    except ConfigErrors as error:
        return [str(problem) for problem in error.problems]
    assert len(config.discovery) == len(entries)
    return []


@pytest.mark.parametrize(
    "entry",
    [
        "kind: dns, host: h, port: 8000, refresh_s: 5, scheme: https, api_key: '${K}'",
        "kind: dns, host: _http._tcp.vllm.internal",
        "kind: file, path: b.yaml, refresh_s: 1",
        "kind: kubernetes, service: vllm, namespace: n, port: http",
        "kind: kubernetes, selector: 'app=vllm,tier in (a, b)', port: 8000",
    ],
)
def test_good_ones(entry: str) -> None:
    assert problems(f"name: d, {entry}") == []


def test_one_is_enough_without_any_backend() -> None:
    assert problems("name: d, kind: dns, host: h, port: 1", head="") == []


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("kind: dns", "[0].kind: kind: dns needs host"),
        ("kind: dns, host: h", "[0].host: needs port: A and AAAA"),
        ("kind: dns, host: _x._tcp.h, port: 1", "[0].port: has no effect: SRV"),
        ("kind: dns, host: 10.0.0.1, port: 1", "[0].host: is an address and no name"),
        ("kind: dns, host: h, port: http", "[0].port: must be a number with kind: dns"),
        ("kind: dns, host: h, port: 1, service: s", "[0].service: has no effect with kind: dns (it is of kubernetes)"),
        ("kind: file", "[0].kind: kind: file needs path"),
        ("kind: file, path: b.yaml, port: 1", "[0].port: has no effect with kind: file (it is of dns or kubernetes)"),
        ("kind: file, path: b.yaml, scheme: https", "[0].scheme: has no effect with kind: file"),
        ("kind: file, path: no/such/folder.yaml", "[0].path: its folder does not exist"),
        ("kind: kubernetes", "[0].kind: kind: kubernetes needs service or selector"),
        ("kind: kubernetes, service: s, selector: a=b", "[0].selector: service and selector are both given"),
        ("kind: kubernetes, service: s, refresh_s: 1", "[0].refresh_s: has no effect with kind: kubernetes"),
        ("kind: kubernetes, service: s, host: h", "[0].host: has no effect with kind: kubernetes (it is of dns)"),
        ("kind: static, host: h", "[0].kind: must be one of: dns, file, kubernetes"),
        ("kind: dns, host: h, port: 0", "[0].port: must be a number from 1 to 65535, or the name of a port"),
        ("kind: dns, host: h, port: true", "[0].port: must be a number from 1 to 65535"),
        ("kind: dns, host: h, port: '80'", "[0].port: must be a number from 1 to 65535"),
        ("kind: dns, host: h, port: 1, api_key: x", "[0].api_key: secrets do not stand in the config"),
    ],
)
def test_knobs_of_a_kind(entry: str, expected: str) -> None:
    (problem,) = problems(f"name: d, {entry}")
    assert f"discovery{expected}" in problem


def test_both_credentials() -> None:
    found = problems("name: d, kind: dns, host: h, port: 1, api_key: '${K}', api_key_file: f")
    assert "discovery[0].api_key_file: api_key and api_key_file are both given" in "\n".join(found)


def test_certificates_without_https() -> None:
    found = problems("name: d, kind: dns, host: h, port: 1, ca_file: f")
    assert "discovery[0].ca_file: has no effect with scheme: http" in "\n".join(found)


def test_names_are_unique_and_apart_from_those_of_backends() -> None:
    entry = "kind: dns, host: h, port: 1"
    (problem,) = problems(f"name: d, {entry}", f"name: d, {entry}")
    assert "discovery[1].name: duplicate name (also discovery[0])" in problem
    (problem,) = problems(f"name: d, {entry}", head="backends: [{name: d-1, url: 'http://h:1'}]\n")
    assert "discovery[0].name: backends[0] has a name like those of what is found here" in problem
    assert problems(f"name: d, {entry}", head="backends: [{name: d1, url: 'http://h:1'}]\n") == []

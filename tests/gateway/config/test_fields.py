"""Single values: what each kind takes, and that messages never repeat what was written."""

from __future__ import annotations

from typing import get_args

import pytest

from gateway.config import Config, ConfigErrors, default_config, loads
from gateway.config.addresses import is_loopback
from gateway.config.fleet import PolicyName
from routing.policies import POLICY_NAMES

BACKENDS = "backends: [{name: a, url: 'http://h:1'}]\n"


def problems(text: str, **environ: str) -> list[str]:
    with pytest.raises(ConfigErrors) as caught:
        loads(text, "f", environ=environ)
    return [str(problem) for problem in caught.value.problems]


def backend(**fields: object) -> Config:
    return default_config(backends=[{"name": "a", "url": "http://h:1"} | fields])


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("http://h", "http://h"),
        ("HTTP://Host:80/", "http://host:80"),
        ("https://10.0.0.1:8443", "https://10.0.0.1:8443"),
        ("http://[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_backend_urls_are_kept_as_scheme_host_and_port(written: str, kept: str) -> None:
    assert backend(url=written).backends[0].url == kept


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("localhost:8000", "must start with http"),
        ("h", "must start with http"),
        ("", "not a readable URL"),
        ("file:///etc/passwd", "must start with http"),
        ("http://", "must start with http"),
        ("http://h:99999", "not a readable URL"),
        ("http://h:0", "port 0"),
        ("http://[::1", "not a readable URL"),
        ("http://h:1/v1", "write http://h:1"),
        ("http://h:1?x=1", "only scheme, host and port"),
        ("http://h:1#x", "only scheme, host and port"),
        ("http://h\n:1", "not a readable URL"),
        ("http://h :1", "not a readable URL"),
        ("http://u:hunter2@h:1", "no credentials"),
        ("http://h\\@evil", "not a readable URL"),
        ("http://h,x:1", "not a readable URL"),
    ],
)
def test_other_urls_are_refused(url: str, message: str) -> None:
    with pytest.raises(ConfigErrors, match=message) as caught:
        backend(url=url)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254",
        "http://169.254.169.254:80/",
        "https://[fe80::1]:8000",
        "http://[::ffff:169.254.169.254]",
        "http://2852039166",
        "http://0xa9fea9fe",
        "http://169.254.43518",
        "http://169.254.169.254.",
        "http://0.0.0.0:8000",
        "http://[::]:8000",
        "http://224.0.0.1",
        "http://[ff02::1]",
        "http://[fd00:ec2::254]",
    ],
)
def test_o74_addresses_of_metadata_services_are_refused_however_they_are_written(url: str) -> None:
    (problem,) = problems(f"backends: [{{name: a, url: '{url}'}}]")
    assert problem.startswith("f:1:27: backends[0].url: not an address of a backend: ")
    assert "169" not in problem


@pytest.mark.parametrize("url", ["http://10.0.0.1:1", "http://gpu-1.inference.svc:8000", "http://[fd00::1]:1"])
def test_private_addresses_are_what_backends_have(url: str) -> None:
    assert backend(url=url).backends[0].url == url


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://login.example.com/jwks", "must be https"),
        ("ftp://login.example.com/jwks", "must be https"),
        ("https://u:hunter2@login.example.com/jwks", "credentials"),
        ("https://login.example.com/jwks#x", "fragment"),
        ("https://login.example.com:0/jwks", "not a readable URL"),
        ("https://[::1", "not a readable URL"),
        ("https://169.254.169.254/jwks", "not an address of a signer"),
        ("/jwks", "not a readable URL"),
    ],
)
def test_o74_the_signers_keys_come_from_a_place_that_nobody_can_imitate(url: str, message: str) -> None:
    (problem,) = problems(
        f"{BACKENDS}tenants: [{{name: t}}]\nauth: {{jwt: {{jwks_url: '{url}', issuer: i, audience: a}}}}"
    )
    assert problem.startswith("f:3:24: auth.jwt.jwks_url: ")
    assert message in problem
    assert "hunter2" not in problem


@pytest.mark.parametrize("url", ["https://login.example.com/jwks?x=1", "http://127.0.0.1:1/jwks", "http://[::1]/jwks"])
def test_urls_of_a_signer(url: str) -> None:
    jwt = {"jwks_url": url, "issuer": "i", "audience": "a"}
    config = default_config(auth={"jwt": jwt}, tenants=[{"name": "t"}])
    assert config.auth.jwt is not None
    assert config.auth.jwt.jwks_url == url


@pytest.mark.parametrize("name", ["", "A", "a b", "ä", "a" * 65, "a/b", "a\n"])
def test_backend_names_have_a_small_alphabet(name: str) -> None:
    with pytest.raises(ConfigErrors, match="1 to 64"):
        backend(name=name)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)


def test_names_of_the_admin_port_are_kept_as_host_headers_are_compared() -> None:
    admin = default_config(admin={"hosts": ["Gateway.Internal", "[FD00::1]"]}).admin
    assert admin.hosts == ("gateway.internal", "fd00::1")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", "localhost.example.org", ""])
def test_not_loopback(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('listen: {port: "8000"}', "expected a whole number, got text (write it without quotes)"),
        ("listen: {port: 8000.5}", "expected a whole number, got a number with a fraction"),
        ("listen: {port: true}", "expected a whole number, got true or false"),
        ("listen: {port: 70000}", "must be at most 65535"),
        ("listen: {port: -1}", "must be at least 0"),
        ("listen: {port: }", "expected a whole number, got nothing (remove the key to keep its default)"),
        ("limits: {idle_timeout_s: 10s}", "expected a number, got text (a plain number: the unit stands in the key)"),
        ("limits: {idle_timeout_s: 0}", "must be more than 0"),
        ("limits: {idle_timeout_s: .nan}", "must be a finite number"),
        ("telemetry: {log_level: INFO}", "must be one of: debug, info, warning, error (did you mean info?)"),
        ("telemetry: {decision_headers: yes}", "expected true or false, got text (write true or false, in lower case"),
        ("health: {path: health}", "must be a path that starts with /"),
        ("health: [1]", "expected a mapping of keys, got a list"),
        ("models: {name: m}", "expected a list, got a mapping (put it behind a dash"),
        ("models: [{name: 7}]", "expected text, got a whole number (put it in quotes)"),
        ("listen: {trusted_proxies: [10.0.0.1/8]}", "must be a network, like 10.0.0.0/8 or 10.0.0.7"),
        ("listen: {trusted_proxies: [proxy]}", "must be a network, like 10.0.0.0/8 or 10.0.0.7"),
        ("listen: {trusted_proxies: 10.0.0.0/8}", "expected a list, got text (put it behind a dash, or in [ ])"),
        ("listen: {paths: [/v1/*]}", "must be a path below /v1/"),
        ("listen: {paths: [/v1/a/../b]}", "must be a path below /v1/"),
        ("listen: {paths: [/metrics]}", "must be a path below /v1/"),
        ("listen: {paths: [/v1/*/b]}", "must be a path below /v1/"),
        ("listen: {max_connections: 0}", "must be at least 1"),
        ("admin: {metrics_bind: 9100}", "expected text, got a whole number"),
        ("admin: {metrics_bind: '9100'}", "must be HOST:PORT"),
        ("admin: {metrics_bind: '::1:9100'}", "must be HOST:PORT"),
        ("admin: {metrics_bind: '127.0.0.1:70000'}", "must be HOST:PORT"),
        ("admin: {hosts: ['a:1/']}", "must be a host name or an IP address, without port"),
        ("admin: {tls: true}", "expected a mapping of keys, got true or false"),
        ("health: {fail_open: 1}", "expected true or false, got a whole number"),
        ("listen: {host: 'a b', allow_unauthenticated: true}", "must be a host name or an IP address"),
    ],
)
def test_messages_speak_yaml(text: str, expected: str) -> None:
    (problem,) = problems(BACKENDS + text)
    assert expected in problem
    assert problem.startswith("f:2:")


def test_whole_numbers_pass_for_seconds() -> None:
    assert loads(BACKENDS + "limits: {idle_timeout_s: 3}").limits.idle_timeout_s == 3.0


def test_set_ups_are_known_by_name() -> None:
    assert backend(setup="llama-3.1-8b").backends[0].setup == "llama-3.1-8b"
    with pytest.raises(ConfigErrors, match=r"no such set-up \(did you mean llama-3.1-8b\?\)"):
        backend(setup="llama3.1-8b")


def test_policies_are_those_that_routing_has() -> None:
    assert set(get_args(PolicyName)) == set(POLICY_NAMES)

"""Rules of listen and admin."""

from __future__ import annotations

import pytest

from gateway.config import ConfigErrors, default_config, loads

BACKENDS = "backends: [{name: a, url: 'http://h:1', models: [m]}]\n"
KEYS = "tenants: [{name: t, api_keys: ['${K}']}]\n"
ENVIRON = {"K": "k" * 16, "L": "l" * 16}


def problems(text: str, head: str = BACKENDS) -> list[str]:
    with pytest.raises(ConfigErrors) as caught:
        loads(head + text, "f", environ=ENVIRON)
    return [str(problem) for problem in caught.value.problems]


def warnings(text: str, head: str = BACKENDS) -> list[str]:
    return [str(problem) for problem in loads(head + text, "f", environ=ENVIRON).warnings]


def test_off_loopback_needs_keys_or_a_word_and_the_message_names_both() -> None:
    (problem,) = problems("listen: {host: 0.0.0.0}")
    assert problem.startswith("f:2:16: listen.host: ")
    assert "give tenants keys" in problem
    assert "listen.allow_unauthenticated: true" in problem
    assert warnings("listen: {host: 0.0.0.0, allow_unauthenticated: true}") == []


def test_with_keys_off_loopback_is_fine_but_asks_for_https() -> None:
    (warning,) = warnings(KEYS + "listen: {host: 0.0.0.0}")
    assert warning.startswith("f:3:16: listen.host: keys and prompts cross the network unencrypted")
    assert warnings(KEYS + "listen: {host: 0.0.0.0, trusted_proxies: [10.0.0.0/8]}") == []
    assert warnings(KEYS + "listen: {host: 127.0.0.1}") == []


def test_signed_tokens_are_keys_too() -> None:
    text = (
        "auth: {jwt: {jwks_url: 'https://h/k', issuer: i, audience: a}}\ntenants: [{name: t}]\n"
        "listen: {host: 0.0.0.0, trusted_proxies: [10.0.0.7]}"
    )
    assert warnings(text) == []


def test_a_tenant_without_a_key_opens_nothing() -> None:
    found = problems("tenants: [{name: t, api_keys: []}]\nlisten: {host: 0.0.0.0}")
    assert ["listen.host" in problem for problem in found] == [False, True]


def test_the_word_has_no_effect_beside_keys() -> None:
    (warning,) = warnings(KEYS + "listen: {allow_unauthenticated: true}")
    assert "f:3:10: listen.allow_unauthenticated: has no effect: there are keys" in warning


def test_admin_off_loopback_needs_a_token() -> None:
    (problem,) = problems("admin: {host: 0.0.0.0}")
    assert problem.startswith("f:2:15: admin.host: not a loopback address, and callers need no token")
    found = warnings("admin: {host: 0.0.0.0, token: '${K}'}")
    assert "callers that use a name and not the address are refused" in found[0]
    assert "set admin.tls" in found[1]
    assert len(warnings("admin: {host: 0.0.0.0, token: '${K}', hosts: [gateway.internal]}")) == 1
    (problem,) = problems("admin: {token: '${K}', token_file: /dev/null}")[:1]
    assert "admin.token_file: token and token_file are both given" in problem


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("admin: {port: 8000}", "f:2:15: admin.port: listen.port and admin.port are the same"),
        ("listen: {port: 8001}", "f:2:16: listen.port: listen.port and admin.port are the same"),
        ("admin: {metrics_bind: '127.0.0.1:8001'}", "f:2:23: admin.metrics_bind: admin.port and admin.metrics_bind"),
        ("admin: {metrics_bind: '0.0.0.0:8000'}", "f:2:23: admin.metrics_bind: listen.port and admin.metrics_bind"),
        ("admin: {metrics_bind: '[::]:8000'}", "f:2:23: admin.metrics_bind: listen.port and admin.metrics_bind"),
        ("admin: {host: localhost, port: 8000}", "f:2:32: admin.port: listen.port and admin.port are the same"),
    ],
)
def test_listeners_at_one_address(text: str, place: str) -> None:
    (problem,) = problems(text)
    assert problem.startswith(place)


def test_listeners_at_different_addresses() -> None:
    assert default_config(listen={"port": 0}, admin={"port": 0, "metrics_bind": "127.0.0.1:0"}).admin.port == 0
    assert warnings("admin: {metrics_bind: '10.0.0.1:8000'}") == []
    assert warnings("listen: {port: 9}\nadmin: {host: '::1', port: 9}") == []


def test_everybody_as_a_trusted_proxy_is_a_warning() -> None:
    for network in ("0.0.0.0/0", "'::/0'"):
        (warning,) = warnings(f"listen: {{trusted_proxies: [10.0.0.0/8, {network}]}}")
        assert "listen.trusted_proxies[1]: every client is believed to be a proxy" in warning


def test_paths() -> None:
    (warning,) = warnings("listen: {paths: [/v1/pooling, /v1/chat/completions]}")
    assert warning.startswith("f:2:31: listen.paths[1]: this path is built in")
    found = problems("listen: {paths: [/v1/a, /v1/a, '/v1/b/*', /v1/b/c, '/v1/b/*']}")
    assert [problem.split(": ")[1] for problem in found] == ["listen.paths[1]", "listen.paths[3]", "listen.paths[4]"]
    assert all("already covered" in problem for problem in found)


def test_a_body_must_fit_into_memory() -> None:
    (problem,) = problems("listen: {max_body_mb: 64, max_buffered_mb: 32}")
    assert problem.startswith("f:2:44: listen.max_buffered_mb: max_body_mb is more than max_buffered_mb")
    (problem,) = problems("listen: {max_body_mb: 2000}")
    assert problem.startswith("f:2:23: listen.max_body_mb: ")


def test_long_keep_alive_is_a_warning() -> None:
    assert warnings("listen: {keep_alive_s: 120}") == []
    (warning,) = warnings("listen: {keep_alive_s: 121}")
    assert warning.startswith("f:2:24: listen.keep_alive_s: idle connections are held for long")

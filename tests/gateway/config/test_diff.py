"""What differs between two configs, what a reload applies, and that no secret is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trustme

from gateway.config import Change, Config, changes, default_config, loads
from gateway.config.diff import RESTART
from gateway.config.schema import knobs

if TYPE_CHECKING:
    from pathlib import Path

BACKENDS = "backends: [{name: a, url: 'http://h:1'}]\n"
ENVIRON = {"K": "key-of-the-first-", "L": "key-of-the-second"}


def config(text: str, base: Path | None = None) -> Config:
    return loads(text if "backends" in text else BACKENDS + text, environ=ENVIRON, base=base)


def lines(old: Config, new: Config) -> list[str]:
    return [str(change) for change in changes(old, new)]


def test_equal_configs_do_not_differ() -> None:
    text = "limits: {max_attempts: 2}\nroutes: [{name: r, models: [m]}]\nmodels: [{name: m}]\nadmin: {token: '${K}'}"
    assert changes(config(text), config(text)) == ()
    assert changes(default_config(), default_config(listen={"port": 8000})) == ()


def test_knobs_with_before_and_after() -> None:
    old = config("limits: {idle_timeout_s: 10, retry_statuses: [503]}")
    new = config("limits: {idle_timeout_s: 12.5}\ntelemetry: {decision_headers: false}\nlisten: {max_connections: 5}")
    assert lines(old, new) == [
        "listen.max_connections: unset -> 5",
        "limits.idle_timeout_s: 10 -> 12.5",
        "limits.retry_statuses: [503] -> [502, 503]",
        "telemetry.decision_headers: true -> false",
    ]
    assert not any(change.needs_restart for change in changes(old, new))


def test_numbers_that_differ_little_are_shown_apart() -> None:
    (line,) = lines(config("listen: {max_body_mb: 0.1234567}"), config("listen: {max_body_mb: 0.1234568}"))
    assert line == "listen.max_body_mb: 0.1234567 -> 0.1234568"


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("", "listen: {port: 9}", "listen.port: 8000 -> 9 (needs a restart)"),
        ("", "listen: {host: '::1'}", "listen.host: 127.0.0.1 -> ::1 (needs a restart)"),
        ("", "admin: {port: 9}", "admin.port: 8001 -> 9 (needs a restart)"),
        ("", "admin: {metrics_bind: 'h:9'}", "admin.metrics_bind: unset -> h:9 (needs a restart)"),
        ("", "store: {max_entries: 9}", "store.max_entries: 2000000 -> 9 (needs a restart)"),
        ("", "store: {secret: '${K}'}", "store.secret: changed (needs a restart)"),
        ("store: {secret: '${L}'}", "store: {secret: '${K}'}", "store.secret: changed (needs a restart)"),
        ("", "telemetry: {log_format: console}", "telemetry.log_format: json -> console (needs a restart)"),
        ("", "listen: {keep_alive_s: 9}", "listen.keep_alive_s: 75 -> 9"),
        ("", "sessions: {max_sessions: 9}", "sessions.max_sessions: 200000 -> 9"),
        ("admin: {token: '${L}'}", "admin: {token: '${K}'}", "admin.token: changed"),
        ("admin: {token: '${L}'}", "", "admin.token: changed"),
    ],
)
def test_what_a_reload_applies(old: str, new: str, line: str) -> None:
    assert lines(config(old), config(new)) == [line]


def test_the_knobs_that_need_a_restart_exist() -> None:
    assert {path for _, path in knobs(Config)} >= RESTART


def test_https_on_and_off_needs_a_restart_its_files_do_not(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    for name in ("one", "two"):
        issued = authority.issue_cert("localhost")
        issued.cert_chain_pems[0].write_to_path(tmp_path / f"{name}.pem")
        issued.private_key_pem.write_to_path(tmp_path / f"{name}.key")
    text = "listen: {tls: {cert_file: one.pem, key_file: one.key}}"
    off, one = config(""), config(text, tmp_path)
    two = config(text.replace("one.", "two.").replace("}}", ", client_ca_file: ca.pem}}"), tmp_path)
    assert lines(off, one) == ["listen.tls: unset -> given (needs a restart)"]
    assert lines(one, off) == ["listen.tls: given -> unset (needs a restart)"]
    assert [(change.path, change.needs_restart) for change in changes(one, two)] == [
        ("listen.tls.cert_file", False), ("listen.tls.key_file", False), ("listen.tls.client_ca_file", False),
    ]  # fmt: skip


def test_backends_by_name() -> None:
    old = config("backends: [{name: a, url: 'http://a'}, {name: b, url: 'http://b'}, {name: c, url: 'http://c'}]")
    new = config(
        "backends: [{name: d, url: 'http://d'}, {name: b, url: 'http://x', capacity_tokens: 9, api_key: '${K}'},"
        " {name: a, url: 'http://a'}]"
    )
    assert lines(old, new) == [
        "backends[c]: removed (drained; its sessions move)",
        "backends[d]: added (probed, then it gets requests)",
        "backends[b].url: http://b -> http://x"
        " (at another address it is another backend: the old one finishes its requests, sessions move)",
        "backends[b].api_key: changed (for new connections; its cache stays known)",
        "backends[b].capacity_tokens: unset -> 9",
    ]


def test_tenants_by_name_and_keys_only_as_changed() -> None:
    old = config("tenants: [{name: t, api_keys: ['${K}']}, {name: u, api_keys: ['${L}']}]")
    new = config("tenants: [{name: t, api_keys: ['${K}', '${L}'], requests_per_min: 9}]")
    assert lines(old, new) == [
        "tenants[u]: removed (its keys are refused)",
        "tenants[t].api_keys: changed",
        "tenants[t].requests_per_min: unset -> 9",
    ]
    shown = str([(change.before, change.after) for change in changes(old, new)])
    for digest in old.tenants[0].api_keys + new.tenants[0].api_keys:
        assert repr(digest) not in shown
        assert digest.hex() not in shown


def test_routes_keep_their_order_and_the_default_one_may_be_written_down() -> None:
    models = "models: [{name: m}, {name: n}]\n"
    one = config(models + "routes: [{name: r, models: [m]}, {name: s, models: [n]}]")
    two = config(models + "routes: [{name: s, models: [n]}, {name: r, models: [m], policy: lmetric}]")
    assert lines(one, two) == [
        "routes[r].policy.name: warm -> lmetric",
        "routes: r, s, default -> s, r, default (the first that matches counts)",
    ]
    assert lines(config(""), config("routes: [{name: default}]")) == []


def test_models_and_sources() -> None:
    source = "discovery: [{name: d, kind: dns, host: h, port: 1}]"
    assert lines(config(""), config(source)) == ["discovery[d]: added (what it finds is probed, then it gets requests)"]
    assert lines(config(source), config("")) == ["discovery[d]: removed (what it found is drained)"]
    assert lines(config("models: [{name: m}]"), config("")) == ["models[m]: removed (its prompts are encoded as bytes)"]


def test_as_data() -> None:
    assert changes(config(""), config("listen: {port: 9}")) == (Change("listen.port", "8000", "9", needs_restart=True),)

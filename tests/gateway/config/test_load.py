"""The whole: everything reported in one run, places, hints, and the id."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from gateway.config import Config, ConfigErrors, Policy, default_config, load, loads
from vocabulary.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SEEDED = """\
listen:
  host: 0.0.0.0
  port: "8000"
  interval_s: 3
  tls: {cert_file: server.pem, key_file: server.key, version: 1.3}
  trusted_proxies: [10.0.0.1/8]
  paths: [/v1/a, /v1/a, /metrics]
admin:
  host: 10.0.0.1
  metrics_bind: "9100"
auth:
  jwt: {issuer: i, audience: a, algorithms: [HS256]}
tenants:
  - {name: t, api_keys: ["${SHARED}", hunter2-hunter2-hunter2]}
  - {name: t, api_keys: ["${SHARED}"], models: [mm], cache_salt: none}
limits:
  conect_timeout_s: 5
  max_attempts: 0
  first_byte_timeout_s: 10s
  first_byte_timeout_s: 11
secret: x
backend: []
store: {url: "redis://x", secret: hunter2}
models:
  - {name: m, encoding: token, tokenizer: nope.json}
  - {name: m}
backends:
  - name: A b
    url: http://u:hunter2@x:1
  - name: a
    url: http://169.254.169.254
  - name: a
    url: http://h:1
    api_key: ${NOPE}
    engine: vlm
discovery:
  - {name: d, kind: dns, path: backends.yaml}
  - {name: d, kind: kubernetes}
routes:
  - name: r
    policy: wram
    models: [mm]
sessions: {lineage: yes}
health: {path: health, fail_open: 1}
telemetry: {log_level: loud}
"""
SHARED = "a-key-of-two-tenants"
EXPECTED = [
    "f:3:9: listen.port",
    "f:4:3: listen.interval_s",
    "f:5:20: listen.tls.cert_file",
    "f:5:42: listen.tls.key_file",
    "f:5:54: listen.tls.version",
    "f:6:21: listen.trusted_proxies[0]",
    "f:7:18: listen.paths[1]",
    "f:7:25: listen.paths[2]",
    "f:9:9: admin.host",
    "f:10:17: admin.metrics_bind",
    "f:12:3: auth.jwt",
    "f:12:46: auth.jwt.algorithms[0]",
    "f:14:39: tenants[0].api_keys[1]",
    "f:15:12: tenants[1].name",
    "f:15:26: tenants[1].api_keys[0]",
    "f:15:49: tenants[1].models[0]",
    "f:15:66: tenants[1].cache_salt",
    "f:17:3: limits.conect_timeout_s",
    "f:18:17: limits.max_attempts",
    "f:19:25: limits.first_byte_timeout_s",
    "f:20:3: limits.first_byte_timeout_s",
    "f:21:1: secret",
    "f:22:1: backend",
    "f:23:14: store.url",
    "f:23:35: store.secret",
    "f:25:25: models[0].encoding",
    "f:25:43: models[0].tokenizer",
    "f:26:12: models[1].name",
    "f:28:11: backends[0].name",
    "f:29:10: backends[0].url",
    "f:31:10: backends[1].url",
    "f:32:11: backends[2].name",
    "f:34:14: backends[2].api_key",
    "f:35:13: backends[2].engine",
    "f:37:21: discovery[0].kind",
    "f:37:26: discovery[0].path",
    "f:38:12: discovery[1].name",
    "f:38:21: discovery[1].kind",
    "f:41:13: routes[0].policy.name",
    "f:42:14: routes[0].models[0]",
    "f:43:21: sessions.lineage",
    "f:44:16: health.path",
    "f:44:35: health.fail_open",
    "f:45:24: telemetry.log_level",
]


def problems(text: str, environ: Mapping[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigErrors) as caught:
        loads(text, "f", environ=environ)
    assert isinstance(caught.value, ConfigError)
    assert str(caught.value) == "\n".join(map(str, caught.value.problems))
    return [str(problem) for problem in caught.value.problems]


def test_twenty_mistakes_and_more_over_all_sections_are_located_in_one_run() -> None:
    found = problems(SEEDED, {"SHARED": SHARED})
    assert [":".join(problem.split(":")[:4]) for problem in found] == EXPECTED
    assert {problem.split(": ")[1].split("[")[0].split(".")[0] for problem in found} > set(Config.model_fields)
    for secret in ("hunter2", SHARED, "169.254"):
        assert secret not in "\n".join(found)


def test_o68_a_bad_file_does_not_stay_bad(tmp_path: Path) -> None:
    path = tmp_path / "w.yaml"
    good = "backends: [{name: a, url: 'http://h:1'}]\n"
    path.write_text(good)
    first = load(path, {})
    for bad, place in (
        ("backends: [{name: a, url: 'http://h:1'}\nlisten: {", "2:1"),
        (good + "listen: {prt: 1}", "2:10"),
    ):
        path.write_text(bad)
        with pytest.raises(ConfigErrors) as caught:
            load(path, {})
        assert str(caught.value).startswith(f"{path}:{place}")
        path.write_text(good)
        assert load(path, {}) == first
    path.write_text(good + "listen: {port: 1}\n")
    assert load(path, {}).listen.port == 1


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("limits: {conect_timeout_s: 1}", "did you mean connect_timeout_s?"),
        ("connect_timeout_s: 1", "did you mean limits.connect_timeout_s?"),
        ("health: {connect_timeout: 1}", "did you mean limits.connect_timeout_s?"),
        ("limits: {port: 1}", "did you mean listen.port or admin.port or discovery[].port?"),
        ("backend: []", "did you mean backends?"),
        ("admission: {}", "known here: listen, admin, auth, tenants, store, models"),
        ("auth: {jwks_url: 'https://h'}", "did you mean auth.jwt.jwks_url?"),
        ("auth: {qqqqqq: 1}", "known here: forward_credentials, jwt"),
        ("routes: [{name: r, policy: {name: warm, crowd: 1}}]", "did you mean crowd_s?"),
        ("routes: [{name: r, crowd_s: 1}]", "did you mean routes[].policy.crowd_s?"),
        ("sessions: {qqqqqq: 1}", "known here: idle_ttl_s, max_sessions, lineage"),
    ],
)
def test_unknown_keys_are_errors_with_a_hint(text: str, hint: str) -> None:
    (problem,) = problems(f"backends: [{{name: a, url: 'http://h:1'}}]\n{text}")
    assert "unknown key (" in problem
    assert hint in problem


@pytest.mark.parametrize("text", ["", "7", "[]", "text", "# only a comment"])
def test_a_file_that_is_no_config(text: str) -> None:
    assert len(problems(text)) == 1


def test_a_section_whose_keys_are_commented_out_has_its_defaults() -> None:
    config = loads("backends: [{name: a, url: 'http://h:1'}]\nlimits:\n  # nothing\nmodels:\n")
    assert config.limits == default_config().limits
    assert config.models == ()


def test_o75_defaults_are_long_for_reads_and_separate() -> None:
    limits = default_config().limits
    assert limits.connect_timeout_s == 5
    assert limits.first_byte_timeout_s == limits.idle_timeout_s == 600


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigErrors, match=r"none.yaml:1:1: cannot be read: No such file"):
        load(tmp_path / "none.yaml", {})
    (tmp_path / "latin.yaml").write_bytes(b"a: 1\nb: \xff\n")
    with pytest.raises(ConfigErrors, match=r"latin.yaml:2:4: not UTF-8"):
        load(tmp_path / "latin.yaml", {})


def test_a_byte_order_mark_is_no_problem(tmp_path: Path) -> None:
    (tmp_path / "bom.yaml").write_bytes(b"\xef\xbb\xbfbackends: [{name: a, url: 'http://h:1'}]\n")
    assert load(tmp_path / "bom.yaml", {}).backends[0].name == "a"


def test_a_config_is_immutable() -> None:
    config = default_config()
    with pytest.raises(ValueError, match="frozen"):
        config.listen = config.listen


def test_id_names_the_settings_without_secrets(tmp_path: Path) -> None:
    text = "backends: [{name: a, url: 'http://h:1', api_key: '${K}'}]\nstore: {secret: '${K}'}\n"
    first, second = (loads(text, environ={"K": value}) for value in ("one", "two"))
    assert first.id == second.id
    assert re.fullmatch(r"[0-9a-f]{12}", first.id)
    assert first.id != loads(text + "listen: {port: 1}", environ={"K": "one"}).id
    assert first.id == loads(text + "listen: {port: 8000}", environ={"K": "one"}).id
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "t.json").write_text("{}")
    tokens = text + "models: [{name: m, encoding: tokens, tokenizer: t.json}]"
    ids = {loads(tokens, environ={"K": "one"}, base=tmp_path / folder).id for folder in ("x", "y")}
    assert len(ids) == 1


def test_routes_are_found_by_name_and_alias() -> None:
    config = default_config(
        models=[{"name": "m", "aliases": ["m-alias"]}, {"name": "n"}],
        routes=[{"name": "one", "models": ["m-alias"], "policy": "lmetric"}],
    )
    assert config.route("m").name == config.route("m-alias").name == "one"
    assert config.route("m").policy == Policy(name="lmetric")
    assert config.route("n").name == config.route("never-heard-of").name == "default"
    assert config.route("n").policy.name == "warm"
    assert config.model("m-alias") is config.models[0]
    assert config.model("x") is None
    assert [route.name for route in config.all_routes] == ["one", "default"]


def test_the_live_window_is_one_for_all_routes() -> None:
    assert default_config().live_window_s == 300
    assert default_config(routes=[{"name": "r", "policy": {"live_window_s": 60}}]).live_window_s == 60


def test_code_may_pass_sections_as_models_and_secrets_as_they_are() -> None:
    parts = default_config(backends=[{"name": "a", "url": "http://h:1", "api_key": "plain"}], listen={"port": 0})
    again = default_config(backends=parts.backends, listen=parts.listen)
    assert again == parts
    assert again.backends[0].credential == parts.backends[0].credential is not None

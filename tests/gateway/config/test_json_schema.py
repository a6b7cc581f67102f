"""The JSON Schema agrees with the loader on good files and on single values that are wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from ruamel.yaml import YAML

from gateway.config import Config, ConfigErrors, loads
from gateway.config.json_schema import json_schema
from gateway.config.schema import knobs

CONFIGS = Path(__file__).parents[3] / "configs"
BACKENDS = "backends: [{name: a, url: 'http://h:1'}]\n"
SCHEMA = json_schema()
VALIDATOR = Draft202012Validator(SCHEMA)
GOOD = (
    "listen:\nbackends: [{name: a, url: 'HTTPS://h', api_key: '${K}', models: [m], setup: llama-3.1-8b}]\n",
    BACKENDS + "routes: [{name: r, policy: random}, {name: s, policy: {name: warm, crowd_s: 1}}]",
    BACKENDS + "listen: {port: 0, trusted_proxies: [10.0.0.0/8, '::1'], paths: ['/v1/x/*'], max_connections: null}",
    BACKENDS + "listen: {tls: {cert_file: a.pem, key_file: a.key}}\nadmin: {metrics_bind: '[::1]:9100', hosts: [h]}",
    BACKENDS + "auth: {jwt: {jwks_url: 'https://h/k', issuer: i, audience: a, algorithms: [ES256]}}",
    BACKENDS + f"tenants: [{{name: t, api_keys: ['${{K}}', 'sha256:{'aB' * 32}'], api_keys_file: f}}]",
    "discovery: [{name: d, kind: kubernetes, service: s, port: http}, {name: e, kind: dns, host: h, port: 1}]",
)


def plain(text: str) -> Any:
    return YAML(typ="safe", pure=True).load(text)


def errors(text: str) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in VALIDATOR.iter_errors(plain(text))]


def test_it_is_a_schema() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"


@pytest.mark.parametrize("name", ["full.yaml", "minimal.yaml", "tenants.yaml"])
def test_files_in_configs_validate(name: str) -> None:
    assert errors((CONFIGS / name).read_text()) == []


@pytest.mark.parametrize("text", GOOD)
def test_good_configs_validate(text: str) -> None:
    assert errors(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "backend: []",
        "limits: {conect_timeout_s: 5}",
        "limits: {max_attempts: 0}",
        "listen: {port: '8000'}",
        "listen: {port: 70000}",
        "listen: {port: null}",
        "listen: {trusted_proxies: [proxy]}",
        "listen: {paths: [/metrics]}",
        "listen: {tls: {cert_file: a.pem}}",
        "admin: {token: hunter2}",
        "admin: {metrics_bind: '9100'}",
        "auth: {jwt: {issuer: i, audience: a, algorithms: [HS256]}}",
        "auth: {jwt: {issuer: i, audience: a, algorithms: []}}",
        "tenants: [{name: T, api_keys: ['${K}']}]",
        "tenants: [{name: t, api_keys: [hunter2-hunter2-hunter2]}]",
        "tenants: [{name: t, api_keys: ['sha256:12']}]",
        "models: [{name: m, encoding: token}]",
        "backends: [{name: a}]",
        "backends: [{name: a, url: 'ftp://h'}]",
        "backends: [{name: a, url: 'http://h', setup: h100}]",
        "discovery: [{name: d, kind: static}]",
        "discovery: [{name: d, kind: dns, host: h, port: 0}]",
        "routes: [{name: r, policy: wram}]",
        "routes: [{name: r, policy: {crowd: 1}}]",
        "routes: {name: r}",
        "telemetry: {log_level: loud}",
    ],
)
def test_what_the_loader_refuses_in_single_values_the_schema_refuses(text: str) -> None:
    whole = text if text.startswith("backends") else BACKENDS + text
    with pytest.raises(ConfigErrors):
        loads(whole, environ={"K": "a-key-of-a-client"})
    assert errors(whole)


def test_every_knob_is_described_and_defaults_are_kept() -> None:
    def walk(schema: dict[str, Any], path: str) -> None:
        found = resolve(schema)
        for key, value in found.get("properties", {}).items():
            here = f"{path}.{key}" if path else key
            seen[here] = value
            assert "description" in value or "$ref" in str(value), here
            assert found["additionalProperties"] is False
            for inner in (value, *value.get("anyOf", ())):
                walk(inner, here)
                walk(inner.get("items", {}), f"{here}[]")

    def resolve(schema: dict[str, Any]) -> dict[str, Any]:
        reference = schema.get("$ref")
        return definitions[reference.rpartition("/")[2]] if reference else schema

    definitions = SCHEMA["$defs"]
    seen: dict[str, dict[str, Any]] = {}
    walk(SCHEMA, "")
    assert {path for _, path in knobs(Config)} <= set(seen)
    assert seen["listen.port"]["default"] == 8000
    assert seen["limits.retry_statuses"]["default"] == [502, 503]
    assert seen["store.secret"]["description"].startswith("Deployment secret")
    text = str(SCHEMA)
    assert "commented" not in text
    assert "shown" not in text.replace("Logged and shown", "")

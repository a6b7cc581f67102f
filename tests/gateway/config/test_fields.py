"""Single values: what each kind takes, and that messages never repeat what was written."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

import pytest

from gateway.config import Config, ConfigErrors, default_config, loads
from gateway.config.fields import is_loopback
from gateway.config.fleet import PolicyName
from routing.policies import POLICY_NAMES

if TYPE_CHECKING:
    from pathlib import Path

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
    ],
)
def test_other_urls_are_refused(url: str, message: str) -> None:
    with pytest.raises(ConfigErrors, match=message) as caught:
        backend(url=url)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "A", "a b", "ä", "a" * 65, "a/b", "a\n"])
def test_backend_names_have_a_small_alphabet(name: str) -> None:
    with pytest.raises(ConfigErrors, match="1 to 64"):
        backend(name=name)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", "localhost.example.org", ""])
def test_not_loopback(host: str) -> None:
    assert not is_loopback(host)


def test_secrets_come_from_the_environment() -> None:
    text = "backends: [{name: a, url: 'http://h:1', api_key: '${KEY}'}]\nstore: {secret: '${S}'}\n"
    config = loads(text, environ={"KEY": "sk-1", "S": "s-2"})
    credential = config.backends[0].credential
    assert credential is not None
    assert credential.get_secret_value() == "sk-1"
    assert config.store.secret is not None
    assert config.store.secret.get_secret_value() == "s-2"
    assert "sk-1" not in repr(config)
    assert "s-2" not in repr(config)


def test_o73_missing_environment_variable_is_an_error_at_its_place() -> None:
    text = "backends:\n  - name: a\n    url: http://h:1\n    api_key: ${KEY}\n"
    assert problems(text) == ["f:4:14: backends[0].api_key: environment variable KEY is not set"]
    assert problems(text, KEY="") == ["f:4:14: backends[0].api_key: environment variable KEY is empty"]


@pytest.mark.parametrize("secret", ["with space", "line\nbreak", "a\r\nx-evil: 1", "ümlaut"])
def test_secrets_are_safe_in_a_header(secret: str) -> None:
    (problem,) = problems("backends: [{name: a, url: 'http://h:1', api_key: '${KEY}'}]", KEY=secret)
    assert problem.startswith("f:1:50: backends[0].api_key: must be printable ASCII")
    assert secret not in problem


def test_literal_secrets_are_refused_and_not_repeated() -> None:
    (problem,) = problems("backends: [{name: a, url: 'http://h:1', api_key: hunter2}]")
    assert "secrets do not stand in the config" in problem
    assert "hunter2" not in problem


def test_secrets_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sk-file\n")
    (tmp_path / "empty").write_text("\n")
    text = BACKENDS.replace("'}", "', api_key_file: {}}}")
    config = loads(text.replace("{}", "key").replace("}}", "}"), base=tmp_path)
    credential = config.backends[0].credential
    assert credential is not None
    assert credential.get_secret_value() == "sk-file"
    with pytest.raises(ConfigErrors, match="the file is empty"):
        loads(text.replace("{}", "empty").replace("}}", "}"), base=tmp_path)


def test_files_are_relative_to_the_config_and_must_exist(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text("{}")
    text = BACKENDS + "models: [{name: m, encoding: tokens, tokenizer: t.json}]\n"
    assert loads(text, base=tmp_path).models[0].tokenizer == tmp_path / "t.json"
    for wrong, message in (("nope.json", "no such file"), (".", "is a folder")):
        with pytest.raises(ConfigErrors, match=message):
            loads(text.replace("t.json", wrong), base=tmp_path)


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

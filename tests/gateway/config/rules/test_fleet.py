"""Rules of models and backends."""

from __future__ import annotations

import pytest

from gateway.config import ConfigErrors, loads

BACKENDS = "backends: [{name: a, url: 'http://h:1', models: [m]}]\n"


def problems(text: str, *, head: str = BACKENDS) -> list[str]:
    with pytest.raises(ConfigErrors) as caught:
        loads(head + text, "f")
    return [str(problem) for problem in caught.value.problems]


def warnings(text: str, *, head: str = BACKENDS) -> list[str]:
    return [str(problem) for problem in loads(head + text, "f").warnings]


def test_duplicate_backends() -> None:
    head = "backends:\n- {name: a, url: 'http://h:80'}\n- {name: a, url: 'http://H/'}\n- {name: b, url: 'https://h'}\n"
    assert problems("", head=head) == [
        "f:3:10: backends[1].name: duplicate name (also backends[0])",
        "f:3:18: backends[1].url: duplicate url (also backends[0])",
    ]


def test_no_backend_at_all() -> None:
    for head in ("", "backends:\n", "backends: []\n", "listen: {port: 1}\n"):
        assert "backends: at least one backend is needed" in problems("", head=head)[0]


def test_model_names_and_aliases_clash() -> None:
    found = problems("models: [{name: m, aliases: [x]}, {name: x}, {name: y, aliases: [m, y]}]")
    assert [problem.split(": ", 1)[1] for problem in found] == [
        "models[1].name: this name or alias is already taken (by models[0])",
        "models[2].aliases[0]: this name or alias is already taken (by models[0])",
        "models[2].aliases[1]: this name or alias is already taken (by models[2])",
    ]


def test_tokens_need_a_tokenizer() -> None:
    assert "needs a tokenizer" in problems("models: [{name: m, encoding: tokens}]")[0]


@pytest.mark.parametrize(
    ("encoding", "knob", "hint"),
    [
        ("bytes", "block_size: 32", "write encoding: tokens or engine"),
        ("bytes", "encode_timeout_ms: 100", "write encoding: engine"),
        ("tokens, tokenizer: /dev/null", "encode_timeout_ms: 100", "write encoding: engine"),
        ("engine", "tokenizer: /dev/null", "write encoding: tokens"),
        ("engine", "chat_template: /dev/null", "write encoding: tokens"),
    ],
)
def test_knobs_of_another_encoding_have_no_effect(encoding: str, knob: str, hint: str) -> None:
    found = problems(f"models: [{{name: m, encoding: {encoding}, {knob}}}]")
    place, kind = knob.split(":")[0], encoding.split(",")[0]
    assert any(f"models[0].{place}: has no effect with encoding: {kind}" in one and hint in one for one in found)


def test_tokens_that_a_backend_gives_need_no_files() -> None:
    config = loads(BACKENDS + "models: [{name: m, encoding: engine, block_size: 32, encode_timeout_ms: 80}]", "f")
    assert (config.models[0].encoding, config.models[0].encode_timeout_ms) == ("engine", 80)
    assert "models[0].encode_timeout_ms" in problems("models: [{name: m, encoding: engine, encode_timeout_ms: 0}]")[0]
    assert "models[0].encoding" in problems("models: [{name: m, encoding: [engine], block_size: 1}]")[0]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("url: 'http://h', tls_verify: false", "tls_verify: has no effect on an http url"),
        ("url: 'https://h', tls_verify: false, ca_file: /dev/null", "ca_file: has no effect with tls_verify: false"),
        ("url: 'http://h', api_key: '${A}', api_key_file: b", "api_key and api_key_file are both given"),
    ],
)
def test_knobs_of_a_backend_that_contradict(fields: str, message: str) -> None:
    assert any(message in problem for problem in problems("", head=f"backends: [{{name: a, {fields}}}]"))


@pytest.mark.parametrize("key", ["ca_file", "cert_file", "key_file"])
def test_certificates_have_no_effect_without_https(key: str) -> None:
    found = problems("", head=f"backends: [{{name: a, url: 'http://h', {key}: /dev/null}}]")
    assert any(f"f:1:39: backends[0].{key}: has no effect on an http url" in problem for problem in found)


@pytest.mark.parametrize(("key", "other"), [("cert_file", "key_file"), ("key_file", "cert_file")])
def test_a_certificate_needs_its_key_and_the_key_its_certificate(key: str, other: str) -> None:
    found = problems("", head=f"backends: [{{name: a, url: 'https://h', {key}: /dev/null}}]")
    assert f"f:1:40: backends[0].{key}: needs {other} (add {other}: FILE)" in found


def test_any_certificate_is_a_warning() -> None:
    (warning,) = warnings("", head="backends: [{name: a, url: 'https://h', tls_verify: false}]")
    assert "any certificate is accepted" in warning

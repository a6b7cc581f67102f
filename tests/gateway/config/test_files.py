"""Files that the config names: that they are there, hold what they should, and are noted for a reload."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from gateway.config import ConfigErrors, load, loads
from prefix_index.encoding.template_files import beside

BACKENDS = "backends: [{name: a, url: 'http://h:1'}]\n"


def problems(text: str, base: Path) -> list[str]:
    with pytest.raises(ConfigErrors) as caught:
        loads(text, "f", base=base)
    return [str(problem) for problem in caught.value.problems]


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ca.pem, one.pem with one.key, other.pem with other.key, locked.key (of one.pem, with a password)."""
    folder = tmp_path_factory.mktemp("pki")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    for name in ("one", "other"):
        issued = authority.issue_cert("localhost")
        issued.cert_chain_pems[0].write_to_path(folder / f"{name}.pem")
        issued.private_key_pem.write_to_path(folder / f"{name}.key")
    key = load_pem_private_key((folder / "one.key").read_bytes(), None)
    locked = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"pass"))
    (folder / "locked.key").write_bytes(locked)
    (folder / "text").write_text("hunter2")
    return folder


def test_files_are_relative_to_the_config_and_must_exist(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text("{}")
    text = BACKENDS + "models: [{name: m, encoding: tokens, tokenizer: t.json}]\n"
    assert loads(text, base=tmp_path).models[0].tokenizer == tmp_path / "t.json"
    for wrong, message in (("nope.json", "no such file"), (".", "is a folder")):
        with pytest.raises(ConfigErrors, match=message):
            loads(text.replace("t.json", wrong), base=tmp_path)


@pytest.mark.parametrize("section", ["listen", "admin"])
def test_certificates_of_a_listener(section: str, pki: Path) -> None:
    text = f"{BACKENDS}{section}: {{tls: {{cert_file: one.pem, key_file: one.key, client_ca_file: ca.pem}}}}"
    config = loads(text, base=pki)
    tls = getattr(config, section).tls
    assert (tls.cert_file, tls.key_file, tls.client_ca_file) == (pki / "one.pem", pki / "one.key", pki / "ca.pem")


@pytest.mark.parametrize(
    ("cert", "key", "expected"),
    [
        ("one.pem", "other.key", "f:2:46: listen.tls.key_file: is not the key of the certificate in cert_file"),
        ("one.pem", "ca.pem", "f:2:46: listen.tls.key_file: holds no private key in PEM form"),
        ("one.pem", "text", "f:2:46: listen.tls.key_file: holds no private key in PEM form"),
        ("one.pem", "locked.key", "f:2:46: listen.tls.key_file: is protected by a password"),
        ("text", "one.key", "f:2:27: listen.tls.cert_file: holds no certificate in PEM form"),
        ("one.key", "one.key", "f:2:27: listen.tls.cert_file: holds no certificate in PEM form"),
        ("nope", "one.key", "f:2:27: listen.tls.cert_file: no such file"),
    ],
)
def test_certificates_that_cannot_be_used(cert: str, key: str, expected: str, pki: Path) -> None:
    line = f"listen: {{tls: {{cert_file: {cert}, key_file: {key}}}}}"
    expected = expected.replace(":46:", f":{line.index('key_file: ') + 11}:")
    (problem,) = problems(BACKENDS + line, pki)
    assert problem.startswith(expected)
    assert "hunter2" not in problem


def test_a_clients_own_certificate_is_no_authority(pki: Path) -> None:
    tls = "cert_file: one.pem, key_file: one.key, client_ca_file: other.pem"
    (problem,) = problems(f"{BACKENDS}listen: {{tls: {{{tls}}}}}", pki)
    assert "listen.tls.client_ca_file: holds no certificate of a CA" in problem


def test_certificates_towards_a_backend(pki: Path) -> None:
    head = "backends: [{name: a, url: 'https://h', ca_file: CA, cert_file: one.pem, key_file: KEY}]"
    good = loads(head.replace("CA", "ca.pem").replace("KEY", "one.key"), base=pki).backends[0]
    assert (good.ca_file, good.key_file) == (pki / "ca.pem", pki / "one.key")
    found = problems(head.replace("CA", "text").replace("KEY", "other.key"), pki)
    assert [problem.split(": ", 1)[1] for problem in found] == [
        "backends[0].ca_file: holds no certificate in PEM form",
        "backends[0].key_file: is not the key of the certificate in cert_file",
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("hunter2", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "is not a JWK set"),
        ('{"keys": []}', "is not a JWK set"),
        ('{"keys": ["hunter2"]}', "is not a JWK set"),
        ('{"keys": [{"kty": "oct", "k": "hunter2"}]}', "holds private or symmetric keys"),
        ('{"keys": [{"kty": "RSA", "n": "x", "e": "AQAB", "d": "hunter2"}]}', "holds private or symmetric keys"),
        (" " * 1_000_001, "is too large"),
    ],
)
def test_key_sets_of_a_signer(tmp_path: Path, content: str, message: str) -> None:
    text = f"{BACKENDS}tenants: [{{name: t}}]\nauth: {{jwt: {{jwks_file: k, issuer: i, audience: a}}}}"
    (tmp_path / "k").write_text(json.dumps({"keys": [{"kty": "RSA", "n": "x", "e": "AQAB"}]}))
    assert loads(text, base=tmp_path).files == (tmp_path / "k",)
    (tmp_path / "k").write_text(content)
    (problem,) = problems(text, tmp_path)
    assert f"f:3:25: auth.jwt.jwks_file: {message}" in problem
    assert "hunter2" not in problem


def test_all_files_that_a_reload_would_read(tmp_path: Path, pki: Path) -> None:
    for name in ("t.json", "chat.jinja", "kubeconfig"):
        (tmp_path / name).write_text("x")
    for name in ("secret", "token", "key", "pool-key"):
        (tmp_path / name).write_text(f"{name}-of-16-characters")
    (tmp_path / "keys").write_text("key-of-16-characters")
    (tmp_path / "jwks").write_text('{"keys": [{"kty": "RSA"}]}')
    path = tmp_path / "w.yaml"
    path.write_text(f"""
listen: {{tls: {{cert_file: {pki}/one.pem, key_file: {pki}/one.key, client_ca_file: {pki}/ca.pem}}}}
admin: {{token_file: token, tls: {{cert_file: {pki}/one.pem, key_file: {pki}/one.key}}}}
auth: {{jwt: {{jwks_file: jwks, issuer: i, audience: a}}}}
tenants: [{{name: t, api_keys_file: keys}}]
store: {{secret_file: secret}}
models: [{{name: m, encoding: tokens, tokenizer: t.json, chat_template: chat.jinja}}]
backends: [{{name: a, url: 'https://h', api_key_file: key, ca_file: {pki}/other.pem}}]
discovery:
- {{name: f, kind: file, path: backends.yaml}}
- {{name: k, kind: kubernetes, service: s, kubeconfig: kubeconfig, api_key_file: pool-key}}
""")
    config = load(path, {})
    names = [file.name for file in config.files]
    assert names[0] == "w.yaml"
    assert config.source == path
    assert set(names[1:]) == {
        "one.pem", "one.key", "ca.pem", "token", "jwks", "keys", "secret", "t.json", "chat.jinja", "key", "other.pem",
        "kubeconfig", "pool-key", *(file.name for file in beside(Path("t.json"))),
    }  # fmt: skip
    assert len(set(config.files)) == len(names)
    assert all(file.is_absolute() for file in config.files)


def test_a_bad_config_tells_its_files_so_that_it_can_become_good(tmp_path: Path) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(BACKENDS + "store: {secret_file: not-yet-there}\n")
    with pytest.raises(ConfigErrors) as caught:
        load(path, {})
    assert caught.value.files == (tmp_path / "not-yet-there",)


def test_a_text_has_no_file_of_its_own() -> None:
    config = loads(BACKENDS)
    assert config.source is None
    assert config.files == ()


@pytest.mark.parametrize("name", ["'\\0'", "''", "7", "[]"])
def test_what_is_no_path(name: str, tmp_path: Path) -> None:
    yaml_name = name.replace("'\\0'", '"\\0"')
    (problem,) = problems(f"{BACKENDS}store: {{secret_file: {yaml_name}}}", tmp_path)
    assert "store.secret_file: must be the path of a file" in problem


TOKENS = BACKENDS + "models: [{name: m, encoding: tokens, tokenizer: tokenizer.json}]\n"


def test_what_is_read_beside_a_tokenizer_is_noted_there_or_not(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "x"}')
    (tmp_path / "config.yaml").write_text(TOKENS)
    config = load(tmp_path / "config.yaml", {})
    assert {path.name for path in config.files} >= {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
    assert config.warnings == ()


def test_a_tokenizer_without_a_template_beside_it_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    (warning,) = map(str, loads(TOKENS, "f", base=tmp_path).warnings)
    assert warning.startswith("f:2:30: models[0].encoding: without a chat template chats are routed by load alone")


@pytest.mark.parametrize("content", ["no json", "[]", '{"chat_template": 5}', '{"chat_template": []}'])
def test_what_is_beside_a_tokenizer_is_good(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "tokenizer_config.json").write_text(content)
    (problem,) = problems(TOKENS, tmp_path)
    assert problem.startswith("f:2:49: models[0].tokenizer: ")
    assert "tokenizer_config.json" in problem

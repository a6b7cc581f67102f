"""Secrets and keys: where they come from, what they may be, and that messages never hold them."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import TYPE_CHECKING

import pytest

from gateway.config import Config, ConfigErrors, default_config, loads
from gateway.config.schema import secrecy, section_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gateway.config.fields import Section

BACKENDS = "backends: [{name: a, url: 'http://h:1'}]\n"
KEY = "a-key-of-a-client"
DIGEST = sha256(KEY.encode()).hexdigest()


def problems(text: str, base: Path | None = None, **environ: str) -> list[str]:
    with pytest.raises(ConfigErrors) as caught:
        loads(text, "f", environ=environ, base=base)
    return [str(problem) for problem in caught.value.problems]


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


@pytest.mark.parametrize(
    "section",
    [
        "admin: {token: '${KEY}'}",
        "tenants: [{name: t, api_keys: ['sha256:DIGEST', '${KEY}']}]",
        "discovery: [{name: d, kind: dns, host: h, port: 1, api_key: '${KEY}'}]",
    ],
)
def test_o73_a_missing_variable_is_an_error_wherever_a_secret_may_stand(section: str) -> None:
    text = f"{BACKENDS}{section.replace('DIGEST', DIGEST)}"
    column = text.splitlines()[1].index("'${KEY}'") + 1
    (problem,) = problems(text)
    assert problem.startswith(f"f:2:{column}: ")
    assert problem.endswith("environment variable KEY is not set")


def keys(text: str, base: Path | None = None, **environ: str) -> frozenset[bytes]:
    return loads(f"{BACKENDS}tenants: [{{name: t, {text}}}]", environ=environ, base=base).tenants[0].key_digests


def test_of_keys_only_digests_are_kept(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(f"# the old one\n  {KEY}  \r\n\nsha256:{'0' * 64}\n")
    assert keys("api_keys: ['${K}']", K=KEY) == keys(f"api_keys: ['sha256:{DIGEST}']") == {bytes.fromhex(DIGEST)}
    assert keys("api_keys_file: keys", tmp_path) == {bytes.fromhex(DIGEST), bytes(32)}
    config = loads(f"{BACKENDS}tenants: [{{name: t, api_keys: ['${{K}}']}}]", environ={"K": KEY})
    assert KEY not in repr(config)
    assert config.secrets == ()


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (KEY, "secrets do not stand in the config"),
        ("sha256:abc", "sha256: takes 64 hex digits"),
        ("${SHORT}", "a key must be 16 to 512 printable ASCII characters without spaces"),
        ("${SPACED}", "a key must be 16 to 512 printable ASCII characters without spaces"),
    ],
)
def test_what_is_no_key(key: str, message: str) -> None:
    environ = {"SHORT": "hunter2", "SPACED": "hunter2 hunter2 hunter2"}
    (problem, *_) = problems(f"{BACKENDS}tenants: [{{name: t, api_keys: ['{key}']}}]", None, **environ)
    assert problem.startswith("f:2:32: tenants[0].api_keys[0]: ")
    assert message in problem
    assert "hunter2" not in problem
    assert KEY not in problem


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"# nothing\n", "the file holds no key"),
        (b"# one\nhunter2\n", "line 2 of the file: a key must be 16"),
        (b"\n\nsha256:12\n", "line 3 of the file: sha256: takes 64 hex digits"),
        ("ümlaut-ümlaut-ümlaut".encode(), "the file does not hold printable ASCII"),
        (b"k" * 70_000, "the file is too large"),
    ],
)
def test_files_without_keys(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "keys").write_bytes(content)
    (problem,) = problems(f"{BACKENDS}tenants: [{{name: t, api_keys_file: keys}}]", tmp_path)
    assert problem.startswith("f:2:36: tenants[0].api_keys_file: ")
    assert message in problem
    assert "hunter2" not in problem


def test_secrets_of_all_sections_are_known_so_that_logs_can_mask_them(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("of-a-file")
    text = """
store: {secret: '${A}'}
admin: {token: '${B}'}
backends: [{name: a, url: 'http://h:1', api_key: '${C}'}, {name: b, url: 'http://h:2', api_key_file: file}]
discovery: [{name: d, kind: dns, host: h, port: 1, api_key: '${D}'}]
"""
    config = loads(text, environ={"A": "of-a", "B": "of-b", "C": "of-c", "D": "of-d"}, base=tmp_path)
    assert sorted(config.secrets) == ["of-a", "of-a-file", "of-b", "of-c", "of-d"]


def test_code_may_pass_keys_as_they_are() -> None:
    first = default_config(tenants=[{"name": "t", "api_keys": [KEY]}])
    assert first.tenants[0].key_digests == {bytes.fromhex(DIGEST)}
    assert default_config(tenants=first.tenants) == first


def test_secrets_and_keys_do_not_enter_the_id() -> None:
    def of(value: str) -> Config:
        return loads(
            f"{BACKENDS}tenants: [{{name: t, api_keys: ['${{K}}']}}]\nadmin: {{token: '${{T}}'}}\n"
            "discovery: [{name: d, kind: dns, host: h, port: 1, api_key: '${K}'}]",
            environ={"K": value * 16, "T": value * 20},
        )

    assert of("a") != of("b")
    assert of("a").id == of("b").id


def test_every_field_that_holds_a_secret_is_marked() -> None:
    def walk(section: type[Section]) -> Iterator[tuple[str, bool]]:
        for key, info in section.model_fields.items():
            below = section_of(info.annotation)
            if below is not None:
                yield from walk(below)
            elif re.search(r"SecretStr|\bbytes\b(?!')", str(info.annotation)):
                yield f"{section.__name__}.{key}", secrecy(info) is not None

    assert sorted(walk(Config)) == [
        (name, True)
        for name in (
            "Admin.token", "Admin.token_file", "Backend.api_key", "Backend.api_key_file", "Discovery.api_key",
            "Discovery.api_key_file", "Store.secret", "Store.secret_file", "Tenant.api_keys", "Tenant.api_keys_file",
        )
    ]  # fmt: skip

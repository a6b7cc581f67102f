"""Rules of auth and tenants."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

import pytest

from gateway.config import ConfigErrors, loads

if TYPE_CHECKING:
    from pathlib import Path

BACKENDS = "backends: [{name: a, url: 'http://h:1', models: [m]}]\n"
ENVIRON = {"K": "key-of-the-first", "L": "key-of-the-second"}
JWT = "jwks_url: 'https://h/k', issuer: i, audience: a"
TENANTS = "tenants: [{name: t, api_keys: ['${K}']}]\n"


def problems(text: str, base: Path | None = None) -> list[str]:
    with pytest.raises(ConfigErrors) as caught:
        loads(BACKENDS + text, "f", environ=ENVIRON, base=base)
    return [str(problem) for problem in caught.value.problems]


def warnings(text: str) -> list[str]:
    return [str(problem) for problem in loads(BACKENDS + text, "f", environ=ENVIRON).warnings]


def test_names_are_unique() -> None:
    (problem,) = problems("tenants: [{name: t, api_keys: ['${K}']}, {name: t, api_keys: ['${L}']}]")
    assert problem == "f:2:49: tenants[1].name: duplicate name (also tenants[0])"


def test_a_tenant_needs_a_way_in() -> None:
    (problem,) = problems("tenants: [{name: t}]")
    assert problem.startswith("f:2:11: tenants[0]: nobody can come in as this tenant")
    assert warnings(f"auth: {{jwt: {{{JWT}}}}}\ntenants: [{{name: t}}]") == []


def test_models_of_a_tenant_are_known() -> None:
    (problem,) = problems("tenants: [{name: t, api_keys: ['${K}'], models: [m, mm]}]")
    assert problem == "f:2:53: tenants[0].models[1]: unknown model (did you mean m?)"


def test_models_of_discovery_are_known() -> None:
    text = "discovery: [{name: d, kind: dns, host: h, port: 1, models: [n]}]\n"
    assert warnings(text + "tenants: [{name: t, api_keys: ['${K}'], models: [n]}]") == []


def test_a_key_belongs_to_one_tenant_however_it_is_written(tmp_path: Path) -> None:
    digest = sha256(ENVIRON["K"].encode()).hexdigest()
    (tmp_path / "keys").write_text(f"# rotated in May\n\n{ENVIRON['L']}\nsha256:{digest.upper()}\n")
    text = f"""tenants:
- {{name: one, api_keys: ['${{K}}', '${{K}}']}}
- {{name: two, api_keys: ['${{L}}', 'sha256:{digest}']}}
- {{name: three, api_keys_file: keys}}
"""
    found = problems(text, tmp_path)
    assert [problem.split(": ", 1)[1] for problem in found] == [
        "tenants[1].api_keys[1]: this key is another tenant's too (also tenants[0])",
        "tenants[2].api_keys_file: this key is another tenant's too (also tenants[1])",
        "tenants[2].api_keys_file: this key is another tenant's too (also tenants[0])",
    ]
    for secret in (*ENVIRON.values(), digest, digest[:8]):
        assert secret not in "\n".join(found)


def test_shared_keys_are_found_beside_other_mistakes() -> None:
    text = "tenants: [{name: A, api_keys: ['${K}', '${NOPE}', 7]}, {name: b, api_keys: ['${K}']}]"
    assert [problem.split(": ")[1] for problem in problems(text)] == [
        "tenants[0].name", "tenants[0].api_keys[1]", "tenants[0].api_keys[2]", "tenants[1].api_keys[0]",
    ]  # fmt: skip


def test_the_admin_token_is_no_tenants_key() -> None:
    (problem,) = problems("admin: {token: '${K}'}\n" + TENANTS)
    assert "f:3:32: tenants[0].api_keys[0]: this key is the admin token too" in problem


def test_clients_that_choose_the_salt_are_a_warning_from_two_tenants_on() -> None:
    one = "tenants: [{name: t, api_keys: ['${K}'], cache_salt: client}"
    assert warnings(f"{one}]") == []
    (warning,) = warnings(f"{one}, {{name: u, api_keys: ['${{L}}'], cache_salt: client}}]")[:1]
    assert warning.startswith("f:2:53: tenants[0].cache_salt: clients choose the salt")


def test_salts_that_no_secret_makes_last_are_a_warning() -> None:
    one = "tenants: [{name: t, api_keys: ['${K}']}"
    two = f"{one}, {{name: u, api_keys: ['${{L}}']}}]"
    assert warnings(f"{one}]") == [], "one tenant has no salt"
    (warning,) = warnings(two)
    assert warning.startswith("f:2:1: tenants: the tenants' cache salts are new at each start")
    assert warnings("store: {secret: '${K}'}\n" + two) == []
    (owned,) = warnings(f"{one[:-1]}, cache_salt: gateway}}]")
    assert "cache salts" in owned


def test_credentials_that_go_on_are_a_warning() -> None:
    (warning,) = warnings("auth: {forward_credentials: true}")
    assert warning.startswith("f:2:29: auth.forward_credentials: ")


@pytest.mark.parametrize(
    ("jwt", "expected"),
    [
        ("issuer: i, audience: a", "f:3:8: auth.jwt: the signer's keys are missing (add jwks_url or jwks_file)"),
        (f"{JWT}, jwks_file: jwks.json", "auth.jwt.jwks_file: no such file"),
        (
            "issuer: i, audience: a, jwks_file: f, jwks_refresh_s: 1",
            "auth.jwt.jwks_refresh_s: has an effect only with jwks_url",
        ),
        ("jwks_url: 'https://h/k', audience: a", "f:3:13: auth.jwt.issuer: missing: this key has no default"),
        (f"{JWT}, algorithms: [HS256]", "auth.jwt.algorithms[0]: must be one of: RS256"),
        (f"{JWT}, algorithms: []", "auth.jwt.algorithms: must not be empty"),
        (JWT.replace("issuer: i", "issuer: ''"), "auth.jwt.issuer: must be printable ASCII, and not empty"),
    ],
)
def test_jwt(jwt: str, expected: str, tmp_path: Path) -> None:
    assert any(expected in problem for problem in problems(f"{TENANTS}auth: {{jwt: {{{jwt}}}}}", tmp_path))


def test_jwks_from_one_place() -> None:
    found = problems(f"{TENANTS}auth: {{jwt: {{{JWT}, jwks_file: nope}}}}")
    assert "f:3:14: auth.jwt.jwks_url: jwks_file and jwks_url are both given (keep one)" in found


def test_tokens_name_tenants_so_there_must_be_one() -> None:
    (problem,) = problems(f"auth: {{jwt: {{{JWT}}}}}")
    assert problem.startswith("f:2:8: auth.jwt: every token is refused")

"""From a credential to a tenant, over reloads."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from gateway.access.access import Access, cache_salt
from gateway.access.credential import Refusal
from gateway.access.metrics import AccessMetrics
from gateway.access.settings import access_settings
from gateway.config import default_config
from tests.support.tokens import AUDIENCE, ISSUER, Signer
from vocabulary.errors import ConfigError, TooManyRequests

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from prometheus_client.metrics_core import Metric

KEY_A, KEY_A2, KEY_B = "key-of-tenant-a-one", "key-of-tenant-a-two", "key-of-tenant-b-one"
A = {"name": "a", "api_keys": [KEY_A, KEY_A2]}
B = {"name": "b", "api_keys": [KEY_B]}
SECRET = b"deployment secret"


@dataclass
class Setting:
    failures: list[Exception] = field(default_factory=list)
    metrics: AccessMetrics = field(default_factory=AccessMetrics)

    def make(self, *tenants: dict[str, Any], **sections: Any) -> Access:
        settings = access_settings(default_config(tenants=list(tenants), **sections))
        return Access(settings, SECRET, self.metrics, self.failures.append)


def apply(access: Access, *tenants: dict[str, Any], **sections: Any) -> None:
    access.apply(access_settings(default_config(tenants=list(tenants), **sections)))


def name(access: Access, key: str) -> str | None:
    caller = access.caller(key.encode()).caller
    return caller.tenant if caller is not None else None


def bearer(key: str) -> list[tuple[bytes, bytes]]:
    return [(b"authorization", b"Bearer " + key.encode())]


def test_without_tenants_all_are_everyone() -> None:
    access = Setting().make()
    assert access.open
    for headers in ([], bearer("whatever"), [(b"authorization", b"Basic x")]):
        identity = access.identify(headers)
        assert identity.caller is access.everyone
        assert identity.refusal is None
    everyone = access.everyone
    assert (everyone.tenant, everyone.quota, everyone.models, everyone.salt) == ("", None, None, None)
    assert everyone.sees_decisions


def test_every_key_of_a_tenant_is_its_own() -> None:
    access = Setting().make(A, B)
    assert not access.open
    assert [name(access, key) for key in (KEY_A, KEY_A2, KEY_B)] == ["a", "a", "b"]
    assert access.identify(bearer(KEY_A)).caller is access.identify([(b"x-api-key", KEY_A2.encode())]).caller
    assert access.identify(bearer("no such key at all")).refusal is Refusal.UNKNOWN
    assert access.identify([]).refusal is Refusal.MISSING
    assert access.identify([]).caller is None


def test_keys_may_be_given_as_digests_or_in_a_file(tmp_path: Path) -> None:
    from hashlib import sha256

    path = tmp_path / "keys"
    path.write_text(f"# old\n{KEY_A}\nsha256:{sha256(KEY_A2.encode()).hexdigest()}\n")
    digest = "sha256:" + sha256(KEY_B.encode()).hexdigest()
    access = Setting().make({"name": "a", "api_keys": [digest], "api_keys_file": str(path)})
    assert [name(access, key) for key in (KEY_A, KEY_A2, KEY_B)] == ["a", "a", "a"]


def test_a_reload_changes_keys_and_keeps_callers() -> None:
    access = Setting().make(A, B)
    before = access.caller(KEY_A.encode()).caller
    assert before is not None
    assert before.quota is not None
    before.quota.admit(0.0)
    generation = access.generation
    apply(access, {"name": "a", "api_keys": [KEY_A2], "max_concurrent_requests": 1, "sees_decisions": True})
    assert access.generation > generation
    assert name(access, KEY_A) is None
    assert name(access, KEY_B) is None
    after = access.caller(KEY_A2.encode()).caller
    assert after is before
    assert after.sees_decisions
    with pytest.raises(TooManyRequests):
        before.quota.admit(0.0)
    apply(access)
    assert access.open
    assert access.caller(KEY_A2.encode()).caller is None
    assert access.identify([]).caller is access.everyone


def test_a_salt_is_owned_as_soon_as_there_are_two_tenants() -> None:
    access = Setting().make(A)
    assert access.tenant("a") is not None
    assert salts(access) == {"a": None}
    apply(access, A, B)
    found = salts(access)
    assert found == {"a": cache_salt("a", SECRET), "b": cache_salt("b", SECRET)}
    assert found["a"] != found["b"]
    apply(access, {**A, "cache_salt": "client"}, {**B, "cache_salt": "gateway"})
    assert salts(access) == {"a": None, "b": cache_salt("b", SECRET)}
    apply(access, {**A, "cache_salt": "gateway"})
    assert salts(access) == {"a": cache_salt("a", SECRET)}


def salts(access: Access) -> dict[str, bytes | None]:
    return {caller.tenant: caller.salt for caller in access.tenants}


def test_a_salt_is_32_hex_digits_that_only_the_secret_gives() -> None:
    salt = cache_salt("a", SECRET)
    assert len(salt) == 32
    assert int(salt, 16) >= 0
    assert len({salt, cache_salt("b", SECRET), cache_salt("a", b"other"), cache_salt("", SECRET)}) == 4
    assert cache_salt("a", SECRET) == salt


def test_a_tenants_models_are_allowed_by_any_of_their_names() -> None:
    models = [{"name": "llama", "aliases": ["l", "large"]}, {"name": "qwen", "aliases": ["q"]}]
    backends = [{"name": "x", "url": "http://x", "models": ["llama", "phi", "qwen"]}]
    access = Setting().make({**A, "models": ["l", "phi"]}, B, models=models, backends=backends)
    tenant, other = access.tenant("a"), access.tenant("b")
    assert tenant is not None
    assert other is not None
    assert tenant.models == frozenset({"llama", "l", "large", "phi"})
    assert tenant.may_use("large")
    assert not tenant.may_use("qwen")
    assert other.may_use("qwen")


def jwt_section(path: Path, **fields: Any) -> dict[str, Any]:
    return {"jwt": {"jwks_file": str(path), "issuer": ISSUER, "audience": AUDIENCE, **fields}}


def test_tokens_name_their_tenant(tmp_path: Path) -> None:
    signer = Signer()
    path = tmp_path / "jwks.json"
    path.write_bytes(signer.jwks)
    access = Setting().make(A, {"name": "c"}, auth=jwt_section(path))
    assert name(access, signer.token("c")) == "c"
    assert name(access, signer.token("a")) == "a"
    assert name(access, KEY_A) == "a", "keys work beside tokens"
    identity = access.caller(signer.token("c", exp=4e9).encode())
    assert identity.until_s == 4e9 + 30
    assert access.caller(KEY_A.encode()).until_s == float("inf")
    assert access.caller(signer.token("nobody").encode()).refusal is Refusal.UNKNOWN
    assert access.caller(signer.token("").encode()).refusal is Refusal.UNKNOWN
    assert access.caller(signer.token("c", exp=1.0).encode()).refusal is Refusal.EXPIRED
    assert access.caller(Signer().token("c").encode()).refusal is Refusal.INVALID
    assert access.caller(b"no token and no key").refusal is Refusal.UNKNOWN


def test_a_reload_reads_the_key_file_again(tmp_path: Path) -> None:
    signer, other = Signer(), Signer()
    path = tmp_path / "jwks.json"
    path.write_bytes(signer.jwks)
    auth = jwt_section(path)
    access = Setting().make({"name": "c"}, auth=auth)
    token = signer.token("c")
    assert name(access, token) == "c"
    path.write_bytes(other.jwks)
    generation = access.generation
    apply(access, {"name": "c"}, auth=auth)
    assert name(access, token) is None
    assert name(access, other.token("c")) == "c"
    assert access.generation > generation


@pytest.mark.parametrize("content", [b"", b"{}", json.dumps({"keys": [{"kty": "oct", "k": "canary"}]}).encode()])
def test_a_key_file_without_keys_is_a_config_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "jwks.json"
    path.write_bytes(Signer().jwks)
    config = default_config(tenants=[{"name": "c"}], auth=jwt_section(path))
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"auth\.jwt\.jwks_file: ") as caught:
        access_settings(config)
    assert "canary" not in str(caught.value)


def test_a_key_file_that_is_gone_is_a_config_error(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    path.write_bytes(Signer().jwks)
    config = default_config(tenants=[{"name": "c"}], auth=jwt_section(path))
    path.unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        access_settings(config)


async def test_a_url_that_does_not_answer_stops_nothing_but_tokens() -> None:
    setting = Setting()
    auth = {"jwt": {"jwks_url": "http://127.0.0.1:1/keys", "issuer": ISSUER, "audience": AUDIENCE}}
    access = setting.make(A, auth=auth)
    try:
        await access.start()
        assert setting.failures
        assert name(access, KEY_A) == "a"
        assert access.caller(Signer().token("a").encode()).refusal is Refusal.INVALID
        other = {"jwt": {**auth["jwt"], "jwks_url": "http://127.0.0.1:2/keys"}}
        apply(access, A, auth=other)
        apply(access, A)
    finally:
        await access.stop()


def samples(metrics: Iterable[Metric]) -> dict[tuple[str, ...], float]:
    return {(s.name, *s.labels.values()): s.value for family in metrics for s in family.samples}


def test_metrics_are_of_tenants_that_there_are() -> None:
    setting = Setting()
    access = setting.make(A, B)
    first, second = access.tenant("a"), access.tenant("b")
    assert first is not None
    assert second is not None
    assert first.quota is not None
    first.quota.admit(0.0)
    for status in (200, 204, 404, 429, 503, 799):
        setting.metrics.answered(first, status)
    setting.metrics.answered(second, 200)
    setting.metrics.refused(Refusal.MISSING)
    found = samples(setting.metrics.collect())
    assert found["warmroute_tenant_requests_total", "a", "2xx"] == 2
    assert found["warmroute_tenant_requests_total", "a", "4xx"] == 2
    assert found["warmroute_tenant_requests_total", "a", "5xx"] == 1
    assert found["warmroute_tenant_requests_total", "a", "other"] == 1
    assert found["warmroute_tenant_inflight", "a"] == 1
    assert found["warmroute_tenant_inflight", "b"] == 0
    assert found["warmroute_unauthenticated_total", "missing"] == 1
    apply(access, A)
    setting.metrics.answered(second, 200)
    left = samples(setting.metrics.collect())
    assert all("b" not in labels for labels in left)
    assert left["warmroute_tenant_requests_total", "a", "2xx"] == 2


def test_no_key_is_held_anywhere() -> None:
    access = Setting().make({"name": "a", "api_keys": ["canary-key-canary"]})
    with contextlib.suppress(TypeError):
        assert "canary" not in repr(vars(access))
    assert name(access, "canary-key-canary") == "a"

"""One pass over a request's headers, remembered per connection as long as what access said of them holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gateway.access.access import Access
from gateway.access.credential import Refusal
from gateway.access.metrics import AccessMetrics
from gateway.access.settings import access_settings
from gateway.config import default_config
from gateway.request_head import RequestHead, RequestHeadReader, read_request_head
from tests.support.tokens import AUDIENCE, ISSUER, Signer

if TYPE_CHECKING:
    from pathlib import Path

HEADERS = [(b"accept", b"*/*"), (b"content-type", b"application/json"), (b"x-session-id", b"s"), (b"cookie", b"c")]
LINES = b"accept: */*\r\ncontent-type: application/json\r\nx-session-id: s\r\n"
KEY = "key-of-tenant-a-one"
TENANT = {"name": "a", "api_keys": [KEY]}


def make(now_s: list[float] | None = None, **sections: Any) -> Access:
    settings = access_settings(default_config(**sections))
    return Access(settings, b"secret", AccessMetrics(), lambda error: None, lambda: (now_s or [0.0])[0])


def test_everything_is_found_in_one_pass() -> None:
    access = make()
    headers = [*HEADERS, (b"x-request-id", b"r-1")]
    head = read_request_head(headers, access)
    assert head == RequestHead(LINES, b"r-1", b"application/json", b"s", access.everyone)


def test_an_unfit_request_id_is_none() -> None:
    assert read_request_head([(b"x-request-id", b"a b")], make()).request_id is None


def test_equal_headers_are_read_once() -> None:
    for access in (make(), make(tenants=[TENANT])):
        reader = RequestHeadReader(access, None)
        headers = [*HEADERS, (b"x-api-key", KEY.encode())]
        first = reader.read(list(headers))
        assert reader.read(list(headers)) is first


def test_other_headers_are_never_taken_for_the_last_ones() -> None:
    access = make()
    reader = RequestHeadReader(access, None)
    reader.read(list(HEADERS))
    for changed in (HEADERS[:-1], HEADERS[1:], [*HEADERS[:2], (b"x-session-id", b"t")], []):
        assert reader.read(list(changed)) == read_request_head(list(changed), access)


def test_a_reload_is_seen_by_the_next_request() -> None:
    access = make(tenants=[TENANT])
    reader = RequestHeadReader(access, None)
    headers = [(b"x-api-key", KEY.encode())]
    known = reader.read(headers)
    assert known.caller is access.tenant("a")
    access.apply(access_settings(default_config(tenants=[{**TENANT, "api_keys": ["another-key-another"]}])))
    gone = reader.read(headers)
    assert (gone.caller, gone.refusal) == (None, Refusal.UNKNOWN)
    access.apply(access_settings(default_config()))
    assert reader.read(headers).caller is access.everyone


def test_a_refusal_is_not_remembered(tmp_path: Path) -> None:
    reader = RequestHeadReader(make(tenants=[TENANT]), None)
    headers = [(b"x-api-key", b"unknown")]
    assert reader.read(headers).caller is None
    assert reader.read(headers) is not reader.read(headers)


def test_a_token_ends_on_a_kept_connection(tmp_path: Path) -> None:
    signer, now_s = Signer(), [1000.0]
    path = tmp_path / "jwks.json"
    path.write_bytes(signer.jwks)
    jwt = {"jwks_file": str(path), "issuer": ISSUER, "audience": AUDIENCE, "leeway_s": 0}
    access = make(now_s, tenants=[TENANT], auth={"jwt": jwt})
    token = signer.token("a", exp=1100.0, iat=None)
    reader = RequestHeadReader(access, None)
    headers = [(b"authorization", b"Bearer " + token.encode())]
    first = reader.read(headers)
    assert first.caller is access.tenant("a")
    now_s[0] = 1099.9
    assert reader.read(headers) is first
    now_s[0] = 1100.0
    ended = reader.read(headers)
    assert (ended.caller, ended.refusal) == (None, Refusal.EXPIRED)


@pytest.mark.parametrize("tenants", [[], [TENANT]])
def test_credentials_are_kept_only_when_asked_for(tenants: list[dict[str, Any]]) -> None:
    headers = [(b"authorization", b"Bearer x"), (b"x-api-key", b"x"), (b"cookie", b"c"), (b"api-key", b"k")]
    assert read_request_head(headers, make(tenants=tenants)).credentials == b""
    head = read_request_head(headers, make(tenants=tenants, auth={"forward_credentials": True}))
    assert head.credentials == b"authorization: Bearer x\r\nx-api-key: x\r\n"
    assert head.lines == b""


def test_forwarded_headers_are_believed_of_trusted_peers_only() -> None:
    access = make(listen={"trusted_proxies": ["10.0.0.0/8"]})
    headers = [(b"x-forwarded-for", b"192.0.2.1"), (b"x-forwarded-proto", b"https"), (b"forwarded", b"for=192.0.2.1")]
    for peer in ("192.0.2.9", None):
        assert read_request_head(headers, access, peer).lines == b""
    assert read_request_head(headers, access, "10.1.1.1").lines == (
        b"x-forwarded-proto: https\r\nforwarded: for=192.0.2.1\r\nx-forwarded-for: 192.0.2.1, 10.1.1.1\r\n"
    )
    reader = RequestHeadReader(access, "10.1.1.1")
    assert b"10.1.1.1" in reader.read(headers).lines
    access.apply(access_settings(default_config()))
    assert reader.read(headers).lines == b""


@pytest.mark.parametrize("value", [b"gzip, br", b"", b"a\rb"])
def test_the_same_lines_for_an_answer_that_must_be_readable(value: bytes) -> None:
    headers = [(b"accept", b"*/*"), (b"accept-encoding", value), (b"x-accept-encoding", b"kept"), (b"b", b"c")]
    head = read_request_head(headers, make())
    assert head.lines.count(b"accept-encoding: ") == 2
    assert head.uncoded_lines == b"accept: */*\r\nx-accept-encoding: kept\r\nb: c\r\n"
    assert read_request_head(HEADERS, make()).uncoded_lines is None

from __future__ import annotations

import pytest

from gateway.strict import check_head, origin_form
from vocabulary.errors import BadHttp, HeadTooLarge, RequestFailed, UnsupportedCoding

HOST = (b"host", b"gateway:8000")


@pytest.mark.parametrize(
    ("target", "path"),
    [
        (b"/v1/models?a=b", b"/v1/models?a=b"),
        (b"//e/a", b"//e/a"),
        (b"http://gateway/v1/models?a=b", b"/v1/models?a=b"),
        (b"HTTPS://u:p@gateway:1/v1", b"/v1"),
        (b"http://gateway", b"/"),
        (b"http://gateway?a", b"/?a"),
    ],
)
def test_every_form_of_a_target_is_brought_to_its_path(target: bytes, path: bytes) -> None:
    assert origin_form(target, b"POST") == path


@pytest.mark.parametrize(
    "target", [b"*", b"/a#b", b"http://g/a#b", b"ftp://g/a", b"g:80", b"a/b", b"http://", b"javascript:x", b""]
)
def test_other_targets_are_refused(target: bytes) -> None:
    with pytest.raises(BadHttp):
        origin_form(target, b"POST")


def test_the_server_itself_may_be_asked_for_its_options() -> None:
    assert origin_form(b"*", b"OPTIONS") == b"*"


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ([], BadHttp),
        ([HOST, HOST], BadHttp),
        ([HOST, (b"host", b"other")], BadHttp),
        ([(b"host", b"a, b")], BadHttp),
        ([(b"host", b"a b")], BadHttp),
        ([HOST, (b"transfer-encoding", b"gzip, chunked")], UnsupportedCoding),
        ([HOST, (b"transfer-encoding", b"identity"), (b"transfer-encoding", b"chunked")], UnsupportedCoding),
        ([HOST, (b"transfer-encoding", b"chunked"), (b"transfer-encoding", b"chunked")], BadHttp),
        ([HOST, (b"x", b"y" * 999)], HeadTooLarge),
        ([HOST, *[(b"x", b"")] * 30], HeadTooLarge),
    ],
)
def test_heads_that_are_ambiguous_or_too_large_are_refused(
    fields: list[tuple[bytes, bytes]], error: type[RequestFailed]
) -> None:
    with pytest.raises(error):
        check_head(fields, http10=False, max_bytes=1000)


@pytest.mark.parametrize(
    "fields",
    [
        [HOST],
        [(b"host", b"")],
        [(b"host", b"[::1]:80")],
        [HOST, (b"transfer-encoding", b"Chunked")],
        [HOST, (b"x", b"y" * 800)],
    ],
)
def test_others_pass(fields: list[tuple[bytes, bytes]]) -> None:
    check_head(fields, http10=False, max_bytes=1000)


def test_http_1_0_has_no_chunks_and_needs_no_host() -> None:
    check_head([], http10=True, max_bytes=1000)
    with pytest.raises(BadHttp):
        check_head([(b"transfer-encoding", b"chunked")], http10=True, max_bytes=1000)

"""One pass over a request's headers, remembered per connection."""

from __future__ import annotations

from gateway.request_head import RequestHead, RequestHeadReader, read_request_head

HEADERS = [(b"accept", b"*/*"), (b"content-type", b"application/json"), (b"x-session-id", b"s"), (b"cookie", b"c")]
LINES = b"accept: */*\r\ncontent-type: application/json\r\nx-session-id: s\r\n"


def test_everything_is_found_in_one_pass() -> None:
    headers = [*HEADERS, (b"x-request-id", b"r-1")]
    assert read_request_head(headers) == RequestHead(LINES, b"r-1", b"application/json", b"s")


def test_an_unfit_request_id_is_none() -> None:
    assert read_request_head([(b"x-request-id", b"a b")]).request_id is None


def test_equal_headers_are_read_once() -> None:
    reader = RequestHeadReader()
    first = reader.read(list(HEADERS))
    assert reader.read(list(HEADERS)) is first


def test_other_headers_are_never_taken_for_the_last_ones() -> None:
    reader = RequestHeadReader()
    reader.read(list(HEADERS))
    for changed in (HEADERS[:-1], HEADERS[1:], [*HEADERS[:2], (b"x-session-id", b"t")], []):
        assert reader.read(list(changed)) == read_request_head(list(changed))

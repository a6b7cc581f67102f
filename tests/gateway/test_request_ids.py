from __future__ import annotations

import pytest

from gateway.request_ids import RequestIds, fit_request_id


def test_new_ids_are_unique_and_begin_alike() -> None:
    ids = RequestIds(b"abc")
    made = [ids.new() for _ in range(1000)]
    assert len(set(made)) == 1000
    assert all(one.startswith(b"abc-") for one in made)


@pytest.mark.parametrize("given", [b"x", b"req-1.2_3:4/5+6=7", b"a" * 128])
def test_the_clients_id_is_kept(given: bytes) -> None:
    assert fit_request_id(given) == given


@pytest.mark.parametrize("given", [b"", b"a b", b"a\nb", b"a" * 129, b"\xc3\xa9", b'"', b"{x}", b"a\n"])
def test_an_id_that_is_not_fit_for_a_log_is_not(given: bytes) -> None:
    assert fit_request_id(given) is None

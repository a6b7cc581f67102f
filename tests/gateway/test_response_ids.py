"""Which instance keeps which answer."""

from __future__ import annotations

import pytest

from gateway.access.caller import EVERYONE
from gateway.response_ids import ResponseIds
from vocabulary import InstanceId, TenantId
from vocabulary.errors import ResponseNotFound

A, B = InstanceId(1), InstanceId(2)
POST = b"/v1/responses"


def test_what_was_learned_is_found_by_either_name() -> None:
    ids = ResponseIds(b"secret")
    ids.learn(EVERYONE, "resp_1", A)
    ids.learn(EVERYONE, "resp_2", B)
    assert ids.holder(EVERYONE, POST, b'{"previous_response_id": "resp_1"}') == A
    assert ids.holder(EVERYONE, b"/v1/responses/resp_2?stream=true", b"") == B
    assert ids.holder(EVERYONE, b"/v1/responses/resp_2/cancel", b"") == B
    assert ids.holder(EVERYONE, b"/v1/responses/resp_3", b"") is None
    assert not any(b"resp" in digest for digest in ids._holders)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b'{"previous_response_id": null}',
        b'{"previous_response_id": 5}',
        b'{"input": "\\"previous_response_id\\": \\"resp_1\\""}',
        b'{"metadata": {"previous_response_id": "resp_1"}}',
        b'"previous_response_id"',
    ],
)
def test_bodies_that_name_none(body: bytes) -> None:
    ids = ResponseIds(b"secret")
    ids.learn(EVERYONE, "resp_1", A)
    assert ids.holder(EVERYONE, POST, body) is None
    assert ids.holder(TenantId("a"), POST, body) is None


def test_one_tenant_never_reaches_what_another_made() -> None:
    ids = ResponseIds(b"secret")
    ids.learn(TenantId("a"), "resp_1", A)
    assert ids.holder(TenantId("a"), b"/v1/responses/resp_1", b"") == A
    for tenant, target, body in (
        (TenantId("b"), b"/v1/responses/resp_1", b""),
        (TenantId("b"), POST, b'{"previous_response_id": "resp_1"}'),
        (TenantId("a"), b"/v1/responses/resp_9", b""),
    ):
        with pytest.raises(ResponseNotFound) as caught:
            ids.holder(tenant, target, body)
        assert "resp" not in str(caught.value).replace("response", "")


def test_the_least_recently_named_goes_first() -> None:
    ids = ResponseIds(b"secret", max_ids=2)
    for answer in ("1", "2"):
        ids.learn(EVERYONE, answer, A)
    assert ids.find(EVERYONE, "1") == A
    ids.learn(EVERYONE, "3", B)
    assert len(ids) == 2
    assert ids.find(EVERYONE, "2") is None
    ids.learn(EVERYONE, "1", B)
    assert ids.find(EVERYONE, "1") == B
    assert len(ids) == 2

from __future__ import annotations

import json

import pytest

from gateway.session_id import derive, from_body, from_headers, lineage_key, lineage_owner
from vocabulary import BlockKeys, TenantId

SECRET = b"deployment secret"
ACME, OTHER = TenantId("acme"), TenantId("other")

CLAUDE = (b"x-claude-code-session-id", b"claude")
AGENT = (b"x-claude-code-agent-id", b"agent-7")
AFFINITY = (b"x-session-affinity", b"opencode")


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([], None),
        ([(b"accept", b"*/*"), (b"x-session-id", b"mine")], b"mine"),
        ([AFFINITY, CLAUDE, (b"x-session-id", b"mine")], b"mine"),
        ([AFFINITY, CLAUDE], b"claude"),
        ([AGENT, CLAUDE], b"claude\0agent-7"),
        ([AGENT], None),
        ([(b"session-id", b"s"), (b"thread-id", b"t")], b"s\0t"),
        ([(b"session-id", b"s"), (b"thread-id", b"s")], b"s"),
        ([(b"session-id", b"s")], b"s"),
        ([(b"thread-id", b"t")], b"t"),
        ([(b"session-id", b"s"), (b"x-codex-parent-thread-id", b"p"), (b"thread-id", b"t")], b"s\0t"),
        ([(b"x-codex-parent-thread-id", b"p")], None),
        ([(b"x-parent-session-id", b"p"), (b"x-claude-code-parent-agent-id", b"p")], None),
        ([(b"x-dynamo-session-id", b"d"), AFFINITY], b"opencode"),
        ([(b"x-dynamo-session-id", b"d")], b"d"),
        ([(b"x-session-id", b"first"), (b"x-session-id", b"second")], b"first"),
        ([(b"x-session-id", b"  padded\t")], b"padded"),
    ],
)
def test_precedence_of_headers(headers: list[tuple[bytes, bytes]], expected: bytes | None) -> None:
    assert from_headers(headers) == expected


@pytest.mark.parametrize("bad", [b"", b"   ", b"a\nb", b"a\0b", b"a\x7f", b"x" * 1025])
def test_o55_invalid_ids_count_as_absent(bad: bytes) -> None:
    assert from_headers([(b"x-session-id", bad)]) is None
    assert from_headers([(b"x-session-id", bad), CLAUDE]) == b"claude"
    assert from_headers([CLAUDE, (b"x-claude-code-agent-id", bad)]) == b"claude"
    assert from_body(session_id=bad.decode(), prompt_cache_key="k") == b"k"


@pytest.mark.parametrize("good", ["🧵", "x" * 1024, "with spaces", "a/b?c=d", "\ud83d"])
def test_o55_odd_ids_are_ids(good: str) -> None:
    raw = good.encode("utf-8", "surrogatepass")
    assert from_headers([(b"x-session-id", raw)]) == raw
    assert from_body(session_id=good) == raw


def test_precedence_of_body_fields() -> None:
    metadata = {"user_id": "user_0a_account_1b_session_2c-3d"}
    assert from_body("s", metadata, "c", "k") == b"s"
    assert from_body(None, metadata, "c", "k") == b"2c-3d"
    assert from_body(None, None, "c", "k") == b"c"
    assert from_body(None, None, {"id": "conv"}, "k") == b"conv"
    assert from_body(None, None, None, "k") == b"k"
    assert from_body() is None


@pytest.mark.parametrize(
    ("user_id", "expected"),
    [
        (json.dumps({"device_id": "d", "account_uuid": "a", "session_id": "2c"}), b"2c"),
        (json.dumps({"device_id": "d"}), None),
        ("{not json", None),
        ("{" * 100_000, None),
        ("somebody", None),
        ("user_0a_account__session_", None),
        (7, None),
        (None, None),
    ],
)
def test_a_person_is_no_session(user_id: object, expected: bytes | None) -> None:
    assert from_body(metadata={"user_id": user_id}) == expected


@pytest.mark.parametrize("odd", [0, 1.5, True, [], ["s"], {}, {"id": 3}, {"id": None}])
def test_odd_shapes_are_no_ids(odd: object) -> None:
    assert from_body(odd, odd, odd, odd) is None


def test_keys_depend_on_tenant_id_and_secret() -> None:
    key = derive(ACME, b"s", SECRET)
    assert len(key) == 16
    assert derive(ACME, b"s", SECRET) == key
    others = [derive(OTHER, b"s", SECRET), derive(ACME, b"t", SECRET), derive(ACME, b"s", b"another")]
    assert key not in others
    assert derive(TenantId("ab"), b"c", SECRET) != derive(TenantId("a"), b"bc", SECRET)
    assert derive(TenantId("1"), b":x", SECRET) != derive(TenantId("1:"), b"x", SECRET)


def test_lineage_keys_are_named_by_the_first_prompt() -> None:
    keys = BlockKeys(b"A" * 8 + b"B" * 8)
    first = lineage_key(lineage_owner(ACME, SECRET), keys, 5)
    assert lineage_key(lineage_owner(ACME, SECRET), keys, 5) == first
    assert lineage_key(lineage_owner(ACME, SECRET), keys, 6) != first
    assert lineage_key(lineage_owner(OTHER, SECRET), keys, 5) != first
    unnamed = lineage_key(lineage_owner(ACME, SECRET), keys)
    assert lineage_key(lineage_owner(ACME, SECRET), BlockKeys(keys[:8])) != unnamed


@pytest.mark.parametrize("secret", [b"", b"x" * 65])
def test_secrets_that_cannot_be_a_key_are_refused(secret: bytes) -> None:
    with pytest.raises(ValueError):
        derive(ACME, b"s", secret)

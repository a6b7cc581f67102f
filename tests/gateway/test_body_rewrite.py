"""What a known caller's body may hold, and what its backend gets instead: the salt is ours, all else is as it came."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.access.caller import Caller
from gateway.body_rewrite import guard
from vocabulary import TenantId
from vocabulary.errors import FieldNotAllowed, InvalidJson

SALT = b"0123456789abcdef" * 2
OWN = b'"cache_salt":"' + SALT + b'"'


def caller(salt: bytes | None = SALT, models: frozenset[str] | None = None) -> Caller:
    return Caller(TenantId("a"), b"owner", salt=salt, models=models)


def salted(body: bytes, *, takes_salt: bool = True) -> bytes:
    rewrite = guard(body, caller())
    assert rewrite is not None
    return rewrite.apply(body, takes_salt=takes_salt)


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m"}',
        b'{"a": 1e-7, "b": 1.0, "c": 12345678901234567890123, "d": -0}',
        '{"text": "größe 😀", "esc": "\\u00e9\\n"}'.encode(),
        b'{ "a" : [ 1 , 2 ] }\n',
        b'{"a":1,"a":2}',
        b'{"nested":{"cache_salt":"mine"},"text":"cache_salt"}',
        b'{"x":"\xff"}',
    ],
)
def test_a_salt_is_put_in_front_and_not_a_byte_is_changed(body: bytes) -> None:
    assert salted(body) == b"{" + OWN + b"," + body[1:]
    assert salted(body, takes_salt=False) is body


@pytest.mark.parametrize(
    ("body", "with_salt", "without"),
    [
        (b"{}", b"{" + OWN + b"}", b"{}"),
        (b" \r\n{\t} ", b"{" + OWN + b"} ", b" \r\n{\t} "),
        (b'\t{\n"a":1}', b"{" + OWN + b',"a":1}', b'\t{\n"a":1}'),
    ],
)
def test_space_and_empty_objects(body: bytes, with_salt: bytes, without: bytes) -> None:
    assert json.loads(salted(body)) == json.loads(with_salt)
    assert salted(body, takes_salt=False) == without


CLIENT_SALTS = [
    b'{"cache_salt":"theirs","a":1e-7}',
    b'{"a":1e-7,"cache_salt":"theirs"}',
    b'{"cache_salt" : null , "a" : 1e-7}',
    b'{"cache_salt":["theirs"],"a":1e-7}',
    b'{"cache_salt":{"x":[{}]},"a":1e-7}',
    b'{"cache_salt":"one","a":1e-7,"cache_salt":"theirs"}',
    rb'{"cache\u005fsalt":"theirs","a":1e-7}',
    rb'{"\u0063\u0061che_sal\u0074":"theirs","a":1e-7}',
    rb'{"cache_salt":"one","a":1e-7,"c\u0061che_salt":null}',
    b'{"cache_salt":NaN,"a":1e-7}',
    b'{"cache_salt":"\\ud83d","a":1e-7}',
]


@pytest.mark.parametrize("body", CLIENT_SALTS)
def test_o33_the_clients_salt_is_removed_however_it_is_spelled(body: bytes) -> None:
    assert salted(body) == b"{" + OWN + b',"a":1e-7}'
    assert salted(body, takes_salt=False) == b'{"a":1e-7}'


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be", "utf-8-sig"])
def test_o33_no_encoding_of_json_hides_a_salt(encoding: str) -> None:
    body = '{"cache_salt": "theirs", "a": "größe 😀", "b": 1e-7}'.encode(encoding)
    assert salted(body) == b"{" + OWN + ',"a":"größe 😀","b":1e-7}'.encode()
    assert salted(body, takes_salt=False) == '{"a":"größe 😀","b":1e-7}'.encode()
    plain = '{"a": 1}'.encode(encoding)
    assert json.loads(salted(plain)) == {"cache_salt": SALT.decode(), "a": 1}
    assert salted(plain, takes_salt=False) is plain


def test_what_only_the_slow_way_can_read() -> None:
    body = b'{"a":NaN,"b":[-Infinity,{"c":"\\ud83d"}],"\\ud83d":1,"n":' + b"9" * 5000 + b',"cache_salt":1}'
    rest = b'"a":NaN,"b":[-Infinity,{"c":"\\ud83d"}],"\\ud83d":1,"n":' + b"9" * 5000 + b"}"
    assert salted(body) == b"{" + OWN + b"," + rest
    assert salted(b'{"a":NaN}') == b"{" + OWN + b',"a":NaN}'


def test_without_a_salt_of_its_own_the_clients_passes() -> None:
    for body in CLIENT_SALTS:
        assert guard(body, caller(salt=None)) is None


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'"x"', b"5", b"--boundary\r\n{}", b"RIFF{}", b"\x00\x01\x02\x03{", b"\xff\xfe\x00\xd8{"]
)
def test_what_is_no_object_passes(body: bytes) -> None:
    assert guard(body, caller()) is None


@pytest.mark.parametrize("body", [b"{", b'{"a":1}x', b'{"a" 1}', b'{"a":1,}', b'{"a":1 "b":2}', b"{,}", b"{5:1}"])
def test_half_an_object_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidJson):
        guard(body, caller())


INTERNAL = [
    "kv_transfer_params",
    "bootstrap_host",
    "bootstrap_port",
    "bootstrap_room",
    "disagg_prefill_dp_rank",
    "routed_dp_rank",
    "data_parallel_rank",
]


@pytest.mark.parametrize("name", INTERNAL)
@pytest.mark.parametrize("value", [None, 5, "canary-value", {"remote_host": "10.0.0.1"}])
def test_fields_of_the_engines_inside_are_refused(name: str, value: Any) -> None:
    escaped = "".join(f"\\u{ord(letter):04x}" for letter in name)
    for body in (
        json.dumps({"model": "m", name: value}).encode(),
        f'{{"{escaped}": {json.dumps(value)}}}'.encode(),
        json.dumps({"model": "m", name: value}).encode("utf-16"),
    ):
        for salt in (SALT, None):
            with pytest.raises(FieldNotAllowed, match=name) as caught:
                guard(body, caller(salt))
            assert (caught.value.status, caught.value.code) == (400, "field_not_allowed")
            assert caught.value.param == name
            assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    ("field", "found"),
    [
        ({"vllm_xargs": {"kv_transfer_params": "x"}}, "vllm_xargs.kv_transfer_params"),
        ({"nvext": {"agent_hints": {}, "backend_instance_id": 5}}, "nvext.backend_instance_id"),
        ({"nvext": {"prefill_worker_id": 5}}, "nvext.prefill_worker_id"),
    ],
)
def test_fields_within_fields_are_refused(field: dict[str, Any], found: str) -> None:
    with pytest.raises(FieldNotAllowed) as caught:
        guard(json.dumps(field).encode(), caller())
    assert caught.value.param == found


@pytest.mark.parametrize(
    "field",
    [
        {"vllm_xargs": {"my_arg": 1}},
        {"vllm_xargs": None},
        {"vllm_xargs": [{"kv_transfer_params": 1}]},
        {"nvext": {"agent_hints": {"backend_instance_id": 5}}},
        {"messages": [{"kv_transfer_params": {}}]},
        {"kv_transfer": 1, "data_parallel_ranks": 1},
        {"lora_path": "x"},
    ],
)
def test_fields_that_only_resemble_them_pass(field: dict[str, Any]) -> None:
    assert guard(json.dumps(field).encode(), caller()) is not None


def test_an_adapter_beside_the_model_is_refused_to_who_may_not_use_all() -> None:
    with pytest.raises(FieldNotAllowed, match="lora_path"):
        guard(b'{"model":"m","lora_path":"other"}', caller(models=frozenset({"m"})))


keys = st.text(max_size=5) | st.sampled_from(["cache_salt", "model"])
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=10,
)


@given(
    body=st.dictionaries(keys, values, max_size=6),
    encoding=st.sampled_from(["utf-8", "utf-16", "utf-8-sig"]),
    escaped=st.booleans(),
    indent=st.sampled_from([None, 1]),
)
def test_any_object_has_our_salt_and_else_what_it_had(
    body: dict[str, Any], encoding: str, escaped: bool, indent: int | None
) -> None:
    raw = json.dumps(body, ensure_ascii=escaped, indent=indent).encode(encoding, "surrogatepass")
    rest = {name: value for name, value in body.items() if name != "cache_salt"}
    for takes_salt, expected in ((True, {"cache_salt": SALT.decode(), **rest}), (False, rest)):
        pairs = json.loads(salted(raw, takes_salt=takes_salt), object_pairs_hook=list)
        assert [name for name, _ in pairs] == list(expected), "each once, in order"
        assert repr(json.loads(salted(raw, takes_salt=takes_salt))) == repr(expected)

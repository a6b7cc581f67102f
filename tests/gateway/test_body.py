"""What is read of a body, and what is refused. tests/integration/test_bad_input.py has the hard cases."""

from __future__ import annotations

import json

import msgspec
import pytest

from gateway.body import Body, check_content_type, parse_body, read_any, read_form, read_json
from vocabulary.errors import InvalidBody, InvalidJson, UnsupportedContentType


def test_only_what_routing_needs_is_read_and_kept_as_it_is() -> None:
    raw = b'{"model":"m", "messages": [ {"role":"user","content":"\\u00e9"} ] ,"temperature":1E-7,"tools":[]}'
    body = parse_body(raw)
    assert body.model == "m"
    assert bytes(body.messages) == b'[ {"role":"user","content":"\\u00e9"} ]'
    assert bytes(body.tools) == b"[]"
    assert not body.prompt
    assert not body.streams


@pytest.mark.parametrize(
    ("stream", "expected"), [(True, True), (False, False), (None, False), ("true", False), (1, False)]
)
def test_only_true_streams(stream: object, expected: bool) -> None:
    for extra in ("", "\ud83d"):
        assert parse_body(json.dumps({"stream": stream, "x": extra}).encode()).streams is expected


def test_the_last_of_two_equal_keys_counts() -> None:
    assert parse_body(b'{"model": "a", "model": "b"}').model == "b"


@pytest.mark.parametrize(
    ("given", "own"),
    [
        ("", False),
        (', "chat_template": null', False),
        (', "chat_template" :null ', False),
        (', "chat_template": "{{ x }}"', True),
        (', "chat_template": ""', True),
        (', "chat_template": 5', True),
    ],
)
def test_a_template_of_its_own(given: str, own: bool) -> None:
    for odd in ("", ', "x": "\\ud83d"'):
        assert parse_body(f'{{"model": "m"{given}{odd}}}'.encode()).own_template is own


def test_what_the_strict_parser_refuses_gives_the_same_fields() -> None:
    fields = {
        "model": "m",
        "stream": True,
        "messages": [{"role": "user", "content": "é"}],
        "prompt": [1, 2],
        "tools": [{"a": 1}],
        "session_id": "s",
        "metadata": {"user_id": "u"},
        "system": [{"type": "text", "text": "é"}],
        "instructions": "i",
        "input": [1],
        "previous_response_id": "r",
    }
    strict = parse_body(json.dumps(fields).encode())
    for raw in (
        json.dumps({**fields, "top_p": float("nan")}).encode(),
        json.dumps({**fields, "x": "\ud83d"}).encode(),
        json.dumps(fields).encode("utf-16"),
        b"\xef\xbb\xbf" + json.dumps(fields).encode(),
    ):
        lenient = parse_body(raw)
        for name in Body.__struct_fields__:
            one, other = getattr(strict, name), getattr(lenient, name)
            if isinstance(one, msgspec.Raw):
                assert bytes(one) == bytes(other), name
            else:
                assert one == other, name


def test_errors_tell_the_place_and_never_the_text() -> None:
    with pytest.raises(InvalidJson, match=r"line 2, column 11") as caught:
        parse_body(b'{"a": 1,\n "secret" "x"}')
    assert "secret" not in str(caught.value)
    with pytest.raises(InvalidBody, match="object"):
        parse_body(b'["secret"]')
    with pytest.raises(InvalidJson, match="UTF-8"):
        parse_body(b'{"messages": "\xff", "model": "\xff"}')
    with pytest.raises(InvalidJson, match="deep"):
        parse_body(b"[" * 10_000)


@pytest.mark.parametrize(
    "value",
    [None, b"application/json", b" Application/JSON ;charset=utf-8", b"application/problem+json", b"a/b+JSON;x"],
)
def test_json_content_types(value: bytes | None) -> None:
    check_content_type(value)


@pytest.mark.parametrize(
    "value", [b"", b"text/plain", b"json", b"application/jsonl", b"application/x-www-form-urlencoded"]
)
def test_other_content_types(value: bytes) -> None:
    with pytest.raises(UnsupportedContentType):
        check_content_type(value)


FORM = b'--x\r\ncontent-disposition: form-data; name="model"\r\n\r\nm\r\n--x--'
FORM_TYPE = b"multipart/form-data; boundary=x"


def test_what_an_endpoint_reads_depends_on_its_content_types() -> None:
    raw = b'{"model": "m", "stream": true}'
    for read in (read_json, read_form, read_any):
        body = read(raw, b"application/json; charset=utf-8")
        assert (body.model, body.streams) == ("m", True)
        with pytest.raises(InvalidJson):
            read(b"{", b"application/json")
    for read in (read_form, read_any):
        assert read(FORM, FORM_TYPE).model == "m"
        assert not read(FORM, b"Multipart/Form-Data; boundary=x").streams
        with pytest.raises(InvalidBody):
            read(b"", FORM_TYPE)
    for read in (read_json, read_form):
        assert read(raw, None).model == "m"
        with pytest.raises(UnsupportedContentType):
            read(raw, b"audio/wav")
    with pytest.raises(UnsupportedContentType):
        read_json(FORM, FORM_TYPE)


def test_of_an_unknown_endpoint_anything_passes() -> None:
    for content_type in (None, b"audio/wav", b"text/plain"):
        assert read_any(b"{", content_type) == Body()
    assert read_any(b"", b"application/json") == Body()
    assert read_any(b"", None) == Body()


def test_a_form_streams_where_it_says_so() -> None:
    for value, streams in ((b"true", True), (b"false", False), (b"1", False)):
        form = b'--x\r\ncontent-disposition: form-data; name="stream"\r\n\r\n' + value + b"\r\n--x--"
        assert read_form(form, FORM_TYPE).streams is streams

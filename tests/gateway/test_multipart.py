"""Fields of uploads, as an engine would read them."""

from __future__ import annotations

import pytest

from gateway.multipart import read_fields
from vocabulary.errors import InvalidBody

TYPE = b"multipart/form-data; boundary=xyz"


def form(*parts: bytes, boundary: bytes = b"xyz", end: bytes = b"--\r\n") -> bytes:
    return b"".join(b"--" + boundary + b"\r\n" + part + b"\r\n" for part in parts) + b"--" + boundary + end


def field(name: str, value: str) -> bytes:
    return f'Content-Disposition: form-data; name="{name}"\r\n\r\n{value}'.encode()


def upload(data: bytes, name: str = "file", filename: str = "a.wav") -> bytes:
    head = f'Content-Disposition: form-data; name="{name}"; filename="{filename}"\r\nContent-Type: audio/wav\r\n\r\n'
    return head.encode() + data


@pytest.mark.parametrize(
    "body",
    [
        form(field("model", "whisper"), upload(b"RIFF")),
        form(upload(b"RIFF" * 100_000), field("model", "whisper")),
        form(upload(b"\r\n--xy\r\n--xxyz\r\n\r\n--" * 100), field("model", "whisper")),
        form(field("model", "whisper"), end=b"--"),
        b"preamble\r\n" + form(field("model", "whisper")) + b"epilogue",
        b"\r\n" + form(field("model", "whisper")),
        form(b"content-type: text/plain\r\ncontent-disposition:form-data; name=model\r\n\r\nwhisper"),
        form(b'CONTENT-DISPOSITION: form-data ; Name="other"; name="model"\r\n\r\nwhisper'),
        form(b"\r\n\r\nno head", field("model", "whisper")),
        form(upload(b"not this one", name="model"), field("model", "whisper")),
    ],
)
def test_the_model_is_found_wherever_it_stands(body: bytes) -> None:
    assert read_fields(body, TYPE) == {"model": "whisper"}


@pytest.mark.parametrize(
    "content_type",
    [
        b'multipart/form-data; boundary="a b:c"',
        b'Multipart/Form-Data; charset=utf-8; BOUNDARY="a b:c"',
    ],
)
def test_boundaries_may_be_quoted(content_type: bytes) -> None:
    body = form(field("model", "m"), field("stream", "true"), boundary=b"a b:c")
    assert read_fields(body, content_type) == {"model": "m", "stream": "true"}


def test_other_fields_are_not_kept() -> None:
    body = form(field("language", "x" * 100_000), field("temperature", "0"), upload(b""))
    assert read_fields(body, TYPE) == {}


@pytest.mark.parametrize(
    ("body", "content_type", "text"),
    [
        (form(field("model", "a"), field("model", "b")), TYPE, "more than one field model"),
        (form(field("stream", "true"), field("stream", "true")), TYPE, "more than one field stream"),
        (form(field("model", "x" * 2000)), TYPE, "too long"),
        (form(b'Content-Disposition: form-data; name="model"\r\n\r\n\xff'), TYPE, "UTF-8"),
        (form(field("model", "a")), b"multipart/form-data", "boundary"),
        (form(field("model", "a")), b"multipart/form-data; boundary=", "boundary"),
        (form(field("model", "a")), b"multipart/form-data; boundary=" + b"b" * 500, "boundary"),
        (form(field("model", "a")), b"multipart/form-data; boundary=other", "does not hold"),
        (form(field("model", "a"))[:-9], TYPE, "does not end"),
        (b"", TYPE, "does not hold"),
        (form(b"no head at all"), TYPE, "no readable head"),
        (form(b"a: " + b"x" * 10_000 + b"\r\n\r\n"), TYPE, "no readable head"),
        (form(*[b"a: b\r\n\r\n"] * 1001), TYPE, "more than 1000 parts"),
    ],
)
def test_what_cannot_be_read_for_sure_is_refused(body: bytes, content_type: bytes, text: str) -> None:
    with pytest.raises(InvalidBody, match=text):
        read_fields(body, content_type)

"""The few fields of a multipart upload that routing looks at. The upload itself is neither copied nor changed.

Invariant: what is read is what an engine reads: headers by the same library, and a field that stands twice is refused,
for one of us would take the first and the other the last.
"""

from __future__ import annotations

from typing import Final

from python_multipart.multipart import parse_options_header

from vocabulary.errors import InvalidBody

_WANTED: Final = frozenset({b"model", b"stream"})
_MAX_PARTS: Final = 1000
_MAX_HEAD_BYTES: Final = 8192
_MAX_VALUE_BYTES: Final = 1024
_MAX_BOUNDARY_BYTES: Final = 256


def read_fields(body: bytes, content_type: bytes) -> dict[str, str]:
    """`model` and `stream`, as far as they are there. Raises InvalidBody where the form cannot be read."""
    _, options = parse_options_header(content_type)
    boundary = options.get(b"boundary", b"")
    if not 0 < len(boundary) <= _MAX_BOUNDARY_BYTES:
        raise InvalidBody("the content-type of a multipart body must name its boundary")
    found: dict[str, str] = {}
    for start, end in _parts(body, b"--" + boundary):
        head_end = body.find(b"\r\n\r\n", start, min(end, start + _MAX_HEAD_BYTES))
        if head_end < 0:
            raise InvalidBody("a part of the multipart body has no readable head")
        name = _field_name(body[start:head_end])
        if name in _WANTED:
            key = name.decode()
            if key in found:
                raise InvalidBody(f"the multipart body has more than one field {key}", param=key)
            found[key] = _value(body, head_end + 4, end, key)
    return found


def _parts(body: bytes, delimiter: bytes) -> list[tuple[int, int]]:
    """Where each part begins (with the line break before its head, for a head may be empty) and ends."""
    places: list[tuple[int, int]] = []
    line = b"\r\n" + delimiter
    at = 0 if body.startswith(delimiter) else body.find(line) + 2
    if at == 1:
        raise InvalidBody("the multipart body does not hold its boundary")
    while len(places) < _MAX_PARTS:
        start = at + len(delimiter)
        if body.startswith(b"--", start):
            return places
        end = body.find(line, start)
        if end < 0:
            raise InvalidBody("the multipart body does not end with its boundary")
        places.append((start, end))
        at = end + 2
    raise InvalidBody(f"the multipart body has more than {_MAX_PARTS} parts")


def _field_name(head: bytes) -> bytes:
    """Empty for files, and for what is no form field."""
    for line in head.split(b"\r\n"):
        key, _, value = line.partition(b":")
        if key.strip().lower() == b"content-disposition":
            _, options = parse_options_header(value.strip())
            return b"" if b"filename" in options else options.get(b"name", b"")
    return b""


def _value(body: bytes, start: int, end: int, key: str) -> str:
    if end - start > _MAX_VALUE_BYTES:
        raise InvalidBody(f"the field {key} is too long", param=key)
    try:
        return body[start:end].decode()
    except UnicodeDecodeError:
        raise InvalidBody(f"the field {key} is not UTF-8", param=key) from None

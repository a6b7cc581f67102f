"""A second reader of HTTP/1.1 requests and of event streams, slow and by the letter: what the fuzz tests compare with.

Invariant: it shares no code with the gateway and stops at the first byte that RFC 9112 does not allow a server to
read on after.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

_LINE = re.compile(rb"([A-Z-]+) +([!-~]+) +HTTP/1\.([01])")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t\x20-\x7e\x80-\xff]*)")
_SIZE = re.compile(rb"([0-9A-Fa-f]+)(?:;[^\r\n\0]*)?")


@dataclass(frozen=True)
class Read:
    method: bytes
    path: bytes
    body: bytes


def read_requests(data: bytes) -> tuple[list[Read], bool]:
    """Whole requests from the start of `data`, and whether that was all of it."""
    found: list[Read] = []
    at = 0
    while True:
        while data[at : at + 1] in (b"\r", b"\n"):  # empty lines, of whatever kind
            at += 1
        if at >= len(data):
            return found, True
        one = _read_one(data, at)
        if one is None:
            return found, False
        request, at, last = one
        found.append(request)
        if last:
            return found, True


def _read_one(data: bytes, at: int) -> tuple[Read, int, bool] | None:
    head_end = data.find(b"\r\n\r\n", at)
    if head_end < 0:
        return None
    first, *lines = data[at:head_end].split(b"\r\n")
    line = _LINE.fullmatch(first)
    matches = [_FIELD.fullmatch(text) for text in lines]
    if line is None or not all(matches):
        return None
    fields: dict[bytes, list[bytes]] = {}
    for match in matches:
        assert match is not None
        fields.setdefault(match[1].lower(), []).append(match[2].rstrip(b" \t"))
    lengths, codings = fields.get(b"content-length", []), fields.get(b"transfer-encoding", [])
    old = line[3] == b"0"
    if len(lengths) + len(codings) > 1 or (codings and (old or codings[0].lower() != b"chunked")):
        return None
    at = head_end + 4
    if codings:
        framed = _read_chunks(data, at)
    elif lengths:
        if not re.fullmatch(rb"[0-9]+", lengths[0]) or at + int(lengths[0]) > len(data):
            return None
        framed = data[at : at + int(lengths[0])], at + int(lengths[0])
    else:
        framed = b"", at
    if framed is None:
        return None
    options = b",".join(fields.get(b"connection", [])).lower()
    target = line[2]
    path = target if target.startswith(b"/") else urlsplit(target).path
    return Read(line[1], path.split(b"?")[0], framed[0]), framed[1], old or b"close" in options


def _read_chunks(data: bytes, at: int) -> tuple[bytes, int] | None:
    body = b""
    while True:
        end = data.find(b"\r\n", at)
        size_line = _SIZE.fullmatch(data[at:end]) if end >= 0 else None
        if size_line is None:
            return None
        size, at = int(size_line[1], 16), end + 2
        if size == 0:
            break
        if data[at + size : at + size + 2] != b"\r\n":
            return None
        body += data[at : at + size]
        at += size + 2
    while True:
        end = data.find(b"\r\n", at)
        if end < 0:
            return None
        if end == at:
            return body, end + 2
        if not _FIELD.fullmatch(data[at:end]):
            return None
        at = end + 2


def read_events(stream: bytes) -> tuple[dict[str, Any] | None, bool]:
    """(the last usage, whether the end mark was seen) of an OpenAI stream, by WHATWG's rules for lines, one document
    per `data` line as engines write them."""
    usage, done = None, False
    for line in re.split(rb"\r\n|\r|\n", stream.removeprefix(b"\xef\xbb\xbf")):
        if not line.startswith(b"data:"):
            continue
        value = line[5:].removeprefix(b" ")
        if value.startswith(b"[DONE]"):
            done = True
            continue
        try:
            document = json.loads(value)
        except ValueError:
            continue
        if isinstance(document, dict) and isinstance(document.get("usage"), dict):
            usage = document["usage"]
    return usage, done

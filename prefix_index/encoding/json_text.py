"""Reading JSON that a client wrote: fast where it is proper, lenient where it is merely legal.

msgspec is fast but refuses lone surrogates; `json` accepts them. Both give equal values for what both accept.
Invariant: nothing here raises for any bytes; what is not JSON is None, and None is also what JSON null gives: no
caller tells them apart.
"""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

_RAW_LIST: Final = msgspec.json.Decoder(list[msgspec.Raw])
_ANY: Final = msgspec.json.Decoder()
_SCANNER: Final = json.JSONDecoder()
_WRITER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_SPACE: Final = " \t\n\r"

Buffer = bytes | msgspec.Raw


def load(raw: Buffer) -> Any:
    """The value of a JSON text."""
    try:
        return _ANY.decode(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        pass
    try:
        return json.loads(bytes(raw))
    except (ValueError, RecursionError):
        return None


def split_array(raw: bytes) -> list[Buffer] | None:
    """The elements of a JSON array as JSON texts; None if it is not an array."""
    try:
        return list(_RAW_LIST.decode(raw))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        pass
    try:
        return _split_lenient(raw.decode())
    except (ValueError, RecursionError):
        return None


def _split_lenient(text: str) -> list[Buffer] | None:
    at = _skip(text, 0)
    if text[at : at + 1] != "[":
        return None
    parts: list[Buffer] = []
    at = _skip(text, at + 1)
    if text[at : at + 1] == "]":
        return _ended(text, at + 1, parts)
    while True:
        _, end = _SCANNER.raw_decode(text, at)
        parts.append(text[at:end].encode())
        at = _skip(text, end)
        if text[at : at + 1] == "]":
            return _ended(text, at + 1, parts)
        if text[at : at + 1] != ",":
            return None
        at = _skip(text, at + 1)


def _ended(text: str, at: int, parts: list[Buffer]) -> list[Buffer] | None:
    return parts if _skip(text, at) == len(text) else None


def _skip(text: str, at: int) -> int:
    while text[at : at + 1] in _SPACE and at < len(text):
        at += 1
    return at


def dump(value: Any) -> bytes:
    """Compact JSON text of a value that came out of `load`."""
    try:
        return msgspec.json.encode(value)
    except (msgspec.MsgspecError, ValueError, OverflowError):
        return _WRITER.encode(value).encode("utf-8", "surrogatepass")

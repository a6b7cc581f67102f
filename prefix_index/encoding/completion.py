"""The `prompt` of a completion request: text or token ids, of a batch the first.

Invariant: an id is an integer of 32 bits without sign; anything else makes the prompt None, as do empty and odd shapes.
"""

from __future__ import annotations

import sys
from array import array
from typing import Any, Final

import msgspec

from prefix_index.encoding.json_text import load

_IDS: Final = msgspec.json.Decoder(list[int])
ID_BYTES: Final = 4


def read_prompt(raw: bytes) -> str | bytes | None:
    """Text as str, token ids as their 4 bytes each, little-endian; None where there is neither."""
    if raw.lstrip()[:1] == b"[":
        try:
            return pack_ids(_IDS.decode(raw)) or None
        except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError):
            pass
    value = load(raw)
    if isinstance(value, list) and value and isinstance(value[0], str | list):
        value = value[0]
    if isinstance(value, list):
        return _checked_ids(value)
    return value if isinstance(value, str) and value else None


def pack_ids(ids: list[int]) -> bytes:
    """Raises OverflowError for a number that is no id."""
    packed = array("I", ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _checked_ids(values: list[Any]) -> bytes | None:
    if not values or not all(type(value) is int for value in values):
        return None
    try:
        return pack_ids(values)
    except OverflowError:
        return None

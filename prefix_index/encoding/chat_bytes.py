"""One chat message as bytes: `role NUL content NUL`, then what else of it the model would see.

Invariants: the bytes depend on this message alone, so those of a conversation's head are the head of its bytes;
different messages give different bytes. NUL ends a field and is followed by 0xFF where it is text; 0xFD and 0xFE,
which UTF-8 never contains, open what is not text.
"""

from __future__ import annotations

from typing import Any, Final, cast

import msgspec
from xxhash import xxh3_128_hexdigest

from prefix_index.encoding.json_text import Buffer, dump, load

_NUL: Final = b"\0"
_TEXT_NUL: Final = b"\0\xff"
_FIELD: Final = b"\xfd"
_PART: Final = b"\xfe"
_FIELDS: Final = (
    "name",
    "tool_call_id",
    "tool_calls",
    "function_call",
    "reasoning_content",
    "reasoning",
    "refusal",
)
_FIELD_ENDS: Final = 2
_CONTENTS: Final = ("content", "output")
"""Fields of a part that hold parts."""
_TEXT_TYPES: Final = frozenset({"text", "input_text", "output_text"})
_TOLD_TYPES: Final = frozenset(
    {
        "tool_use",
        "tool_result",
        "thinking",
        "function_call",
        "function_call_output",
        "custom_tool_call",
        "custom_tool_call_output",
        "reasoning",
    }
)
"""Parts and items of other APIs that a model reads as text: by far the most of what agents send."""

_LONGEST_PART_BYTES: Final = 256
"""A longer part (a data URL, base64 audio) enters as its digest; a plain URL fits and enters as text."""


class _Plain(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    role: str
    content: str


_PLAIN: Final = msgspec.json.Decoder(list[_Plain])


def messages_bytes(raw: Buffer) -> list[bytes] | None:
    """The bytes of each message of the JSON text of a list; None if it is no list of messages."""
    try:  # nothing but roles and texts: by far the most, and the whole cost of a short prompt
        pieces = [f"{message.role}\0{message.content}\0".encode() for message in _PLAIN.decode(raw)]
    except (msgspec.MsgspecError, ValueError):
        pass
    else:
        if all(piece.count(_NUL) == _FIELD_ENDS for piece in pieces):
            return pieces
    return _any_messages(raw)


def _any_messages(raw: Buffer) -> list[bytes] | None:
    messages = load(raw)
    if not isinstance(messages, list):
        return None
    pieces = [_message(message) for message in messages]
    return None if None in pieces else cast("list[bytes]", pieces)


def message_bytes(raw: Buffer) -> bytes | None:
    """`raw` is the JSON text of one message; None if it is not an object, or too deep to write down again."""
    return _message(load(raw))


def _message(message: Any) -> bytes | None:
    if not isinstance(message, dict):
        return None
    try:
        return b"".join(_pieces(message))
    except RecursionError:
        return None


def _pieces(message: dict[str, Any]) -> list[bytes]:
    role = message.get("role", "")
    if not role and is_told(message):  # an item of the Responses API
        return [_part(message), _NUL]
    pieces = [
        _text(role) if isinstance(role, str) else _PART + dump(role),
        _NUL,
        content_bytes(message.get("content")),
        _NUL,
    ]
    if len(message) > ("role" in message) + ("content" in message):
        for field in _FIELDS:
            if value := message.get(field):
                pieces += (_FIELD, field.encode(), b"=", dump(value), _NUL)
    return pieces


def content_bytes(content: Any) -> bytes:
    """A string and the same string as text parts give equal bytes; other parts enter at their position."""
    if isinstance(content, str):
        return _text(content)
    if content is None:
        return b""
    return b"".join(map(_part, content if isinstance(content, list) else [content]))


def part_text(part: Any) -> str | None:
    """The text of a content part, None if it is no text part."""
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        return None
    kind, text = part.get("type"), part.get("text")
    if isinstance(text, str) and (kind is None or (isinstance(kind, str) and kind in _TEXT_TYPES)):
        return text
    return None


def part_digest(part: Any) -> bytes:
    """What stands for a part that is not text: its JSON, or a hexadecimal digest of it where that is long."""
    if isinstance(part, dict):
        # the marker of a cache break wanders from turn to turn and is no content
        part = {name: value for name, value in part.items() if name != "cache_control"}
    written = dump(part)
    return written if len(written) <= _LONGEST_PART_BYTES else xxh3_128_hexdigest(written).encode()


def _part(part: Any) -> bytes:
    text = part_text(part)
    if text is not None:
        return _text(text)
    if is_told(part):
        return _told(part)
    return _PART + part_digest(part) + _PART


def is_told(part: Any) -> bool:
    """A call of a tool, its result, or a thought: JSON that the model reads as text."""
    kind = part.get("type") if isinstance(part, dict) else None
    return isinstance(kind, str) and kind in _TOLD_TYPES


def _told(part: dict[str, Any]) -> bytes:
    rest = {name: value for name, value in part.items() if name not in ("cache_control", *_CONTENTS)}
    pieces = [_PART, dump(rest)]
    for name in _CONTENTS:
        if (content := part.get(name)) is not None:
            pieces += (_FIELD, content_bytes(content), _FIELD)
    return b"".join((*pieces, _PART))


def _text(text: str) -> bytes:
    data = text.encode("utf-8", "surrogatepass")
    return data.replace(_NUL, _TEXT_NUL) if _NUL in data else data

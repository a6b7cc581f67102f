"""Streams tell their usage only when asked to: the gateway asks where the client did not, and takes the answer out.

What is known of the engines (`serving_chat.py` of vLLM and of SGLang, `server-task.cpp` of llama.cpp): asked, each
sends one more event with `"choices": []` and the usage, before `[DONE]`. The events before it do not change: vLLM
leaves `usage` out of them, SGLang writes `"usage": null` always. vLLM takes `include_usage` for true in a
`stream_options` object that does not name it, so an object of the client's is left alone. llama.cpp moves its `timings`
into the extra event, where the client would miss them, and they tell as much: it is better not asked.

Invariant: a client sees the bytes that it would have seen, each at the latest when its own event is complete.
"""

from __future__ import annotations

import enum
import re
from typing import Any, Final

import msgspec

from gateway.body_rewrite import with_member

_NAME: Final = "stream_options"
_VALUE: Final = b'{"include_usage":true}'
_OPENING: Final = re.compile(rb'[ \t\r\n]*\{(?=[ \t\r\n]*")')
"""Of an object in UTF-8 that has a member: in other encodings no quote follows."""
_ENDS: Final = (b"\n\n", b"\r\n\r\n", b"\r\r")
_END: Final = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_USAGE: Final = re.compile(rb'"usage"\s*:\s*\{')
_MAX_HELD_BYTES: Final = 16_384
"""A longer event is no usage: it goes on as it comes."""


class Ask(enum.Enum):
    """How the request for usage gets into a body."""

    ADD = enum.auto()
    REPLACE = enum.auto()  # of a null

    def apply(self, body: bytes) -> bytes:
        """The same object where it cannot be put there."""
        if self is Ask.REPLACE:
            return with_member(body, _NAME, _VALUE) or body
        match = _OPENING.match(body)
        if match is None:
            return body
        return b"".join((b'{"stream_options":', _VALUE, b",", memoryview(body)[match.end() :]))


def ask_of(stream_options: bytes) -> Ask | None:
    """By the JSON text of the body's `stream_options`, empty where it has none. None: the client has said its will."""
    if not stream_options:
        return Ask.ADD
    return Ask.REPLACE if stream_options == b"null" else None


class _Shape(msgspec.Struct):
    choices: list[msgspec.Raw] | None = None
    usage: dict[str, Any] | None = None


_SHAPE: Final = msgspec.json.Decoder(_Shape)


class UsageSieve:
    """Of one stream: takes out events that hold usage and no choice."""

    __slots__ = ("_held", "_inside", "took_timings")

    def __init__(self) -> None:
        self._held = b""
        """The beginning of an event, not yet sent."""
        self._inside = False
        """In an event that was too long to hold."""
        self.took_timings = False
        """What was taken out held more than the usage."""

    def sift(self, data: bytes) -> bytes:
        """What the client gets now: may be nothing."""
        if self._held or self._inside or not data.endswith(_ENDS):
            return self._sift(data)
        return self._sift(data) if b'"usage"' in data and _USAGE.search(data) else data

    def _sift(self, data: bytes) -> bytes:
        if self._held:
            data, self._held = self._held + data, b""
        kept: list[bytes] = []
        at = 0
        for match in _END.finditer(data):
            event = data[at : match.end()]
            at = match.end()
            if self._inside or not self._is_usage(event):
                kept.append(event)
            self._inside = False
        rest = data[at:]
        if len(rest) > _MAX_HELD_BYTES:
            self._inside = True
        if self._inside:  # but for line ends, which may be the beginning of its end
            shown = rest.rstrip(b"\r\n")
            kept.append(shown)
            rest = rest[len(shown) :]
        self._held = rest
        return b"".join(kept)

    def end(self) -> bytes:
        """What is left when no more comes."""
        rest, self._held = self._held, b""
        return rest if self._inside or not self._is_usage(rest) else b""

    def _is_usage(self, event: bytes) -> bool:
        if not _USAGE.search(event):
            return False
        lines = [line for line in event.splitlines() if line.startswith(b"data:")]
        if len(lines) != 1:
            return False
        try:
            shape = _SHAPE.decode(lines[0][5:])
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return False
        if shape.choices != [] or shape.usage is None:
            return False
        self.took_timings = self.took_timings or b'"timings"' in event
        return True

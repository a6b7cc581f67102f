"""Where in a chat prompt an earlier one ended, found without reading the whole again.

A boundary between messages is named by a digest of the raw JSON of all messages before it and of the tools; JSON
objects delimit themselves, so no two lists of them have one digest. Long prompts are looked up before they are split: a
client that repeats its messages byte for byte leaves only the new ones to be scanned. Invariant: both ways find the
same boundaries, and the longest known one.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from xxhash import xxh3_64_intdigest, xxh3_128, xxh3_128_digest

from prefix_index.encoding.json_text import split_array

if TYPE_CHECKING:
    from collections.abc import Callable

    from prefix_index.encoding.json_text import Buffer

T = TypeVar("T")

_STEP_BYTES: Final = 4096
"""Heads are filed under the digest of their bytes up to the last multiple of this; shorter prompts are just split."""
_HEADS_PER_ANCHOR: Final = 4
_NO_TOOLS: Final = frozenset({b"", b"null", b"[]"})


def tools_or_none(tools: bytes | None) -> bytes:
    """The JSON text of the tools, empty if there are none in it."""
    return b"" if tools is None or tools.strip() in _NO_TOOLS else tools


@dataclass(frozen=True, slots=True)
class Located(Generic[T]):
    """A prompt, and what is known of it."""

    known: T | None
    """What was filed for the longest known boundary."""
    rest: list[Buffer]
    """The messages behind that boundary; all of them if none is known. Empty, with nothing known, for no messages."""
    first: bytes
    """Digest of the boundary behind the first message, if nothing is known."""
    end: bytes
    """Digest of the whole."""
    head: _Head | None
    anchor: bytes


@dataclass(frozen=True, slots=True)
class _Head:
    """The raw text of an earlier prompt up to its closing bracket."""

    size: int
    digest: bytes
    messages: xxh3_128
    """The digest over its messages, to be copied and continued."""


class TurnFinder:
    """Remembers heads under at most `max_anchors` anchors. Safe to use from several threads."""

    def __init__(self, max_anchors: int = 16_384) -> None:
        self._max_anchors = max_anchors
        self._heads: OrderedDict[bytes, tuple[_Head, ...]] = OrderedDict()
        self._lock = Lock()

    def locate(self, namespace: bytes, tools: bytes, raw: bytes, known: Callable[[bytes], T | None]) -> Located[T]:
        """`namespace` and `tools` keep prompts apart, `known` tells what the caller filed under a boundary's digest."""
        domain = namespace + xxh3_128_digest(tools)
        anchors = _anchors(domain, raw)
        for place in range(len(anchors) - 1, -1, -1):
            for head in self._heads.get(anchors[place], ()):
                if head.size <= len(raw) and xxh3_128_digest(memoryview(raw)[: head.size]) == head.digest:
                    found = _behind(head, domain, raw, anchors, known)
                    if found is not None:
                        return found
        return _from_start(domain, raw, anchors, known)

    def remember(self, located: Located[T]) -> None:
        """To be called when the caller has filed something under `located.end`."""
        head, anchor = located.head, located.anchor
        if head is None:
            return
        with self._lock:
            others = [other for other in self._heads.pop(anchor, ()) if other.digest != head.digest]
            newest = sorted([head, *others[: _HEADS_PER_ANCHOR - 1]], key=_size, reverse=True)
            self._heads[anchor] = tuple(newest)
            if len(self._heads) > self._max_anchors:
                self._heads.popitem(last=False)


class KnownTurns:
    """Ids of the last `max_turns` chat prompts, for callers that keep nothing else of them."""

    def __init__(self, max_turns: int = 16_384) -> None:
        self._finder = TurnFinder(max_turns)
        self._max_turns = max_turns
        self._turns: OrderedDict[bytes, int] = OrderedDict()
        self._lock = Lock()

    def resume(self, namespace: bytes, tools: bytes, raw: bytes) -> tuple[int, int]:
        """The id of this prompt and that of the longest earlier one that is a head of it (0: none); remembers this."""
        located = self._finder.locate(namespace, tools, raw, self._turns.get)
        prompt_id = xxh3_64_intdigest(located.end) or 1
        with self._lock:
            self._turns.pop(located.end, None)
            self._turns[located.end] = prompt_id
            if len(self._turns) > self._max_turns:
                self._turns.popitem(last=False)
        self._finder.remember(located)
        return prompt_id, located.known or 0


def _size(head: _Head) -> int:
    return head.size


def _anchors(domain: bytes, raw: bytes) -> list[bytes]:
    view = memoryview(raw)
    hasher = xxh3_128(domain)
    anchors = []
    for at in range(0, len(raw) - _STEP_BYTES + 1, _STEP_BYTES):
        hasher.update(view[at : at + _STEP_BYTES])
        anchors.append(hasher.digest())
    return anchors


def _behind(
    head: _Head, domain: bytes, raw: bytes, anchors: list[bytes], known: Callable[[bytes], T | None]
) -> Located[T] | None:
    """The prompt as a continuation of a head; None where it is none, or nothing is known of the head any more."""
    tail = raw[head.size :].strip()
    if tail == b"]":
        messages: list[Buffer] | None = []
    elif tail[:1] == b",":
        messages = split_array(b"[" + tail[1:]) or None
    else:
        messages = None
    if messages is None or (filed := known(domain + head.messages.digest())) is None:
        return None
    return _longest(domain, raw, anchors, head.messages.copy(), messages, filed, known)


def _from_start(domain: bytes, raw: bytes, anchors: list[bytes], known: Callable[[bytes], T | None]) -> Located[T]:
    return _longest(domain, raw, anchors, xxh3_128(), split_array(raw) or [], None, known)


def _longest(
    domain: bytes,
    raw: bytes,
    anchors: list[bytes],
    hasher: xxh3_128,
    messages: list[Buffer],
    filed: T | None,
    known: Callable[[bytes], T | None],
) -> Located[T]:
    """Go through `messages` from a boundary of which `filed` is known; a longer known boundary replaces it."""
    digests = []
    for message in messages:
        hasher.update(message)
        digests.append(domain + hasher.digest())
    end = domain + hasher.digest()
    first = digests[0] if digests else b""
    rest = messages
    for at in range(len(digests) - 1, -1, -1):
        if (found := known(digests[at])) is not None:
            filed, rest = found, messages[at + 1 :]
            break
    size = raw.rfind(b"]")
    anchor = size // _STEP_BYTES - 1
    if anchor < 0:
        return Located(filed, rest, first, end, None, b"")
    head = _Head(size, xxh3_128_digest(memoryview(raw)[:size]), hasher)
    return Located(filed, rest, first, end, head, anchors[anchor])

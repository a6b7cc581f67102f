"""The closed list of paths that reach a backend, and how each is handled.

Invariant: a path matches as it stands, byte for byte, or behind a `*` of the config; then it holds nothing that a
server behind us could take for another path (dot segments, empty segments, escapes of plain characters).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from gateway.body import read_any, read_form, read_json
from gateway.dialects.anthropic import Anthropic
from gateway.dialects.openai import OpenAI, Other
from gateway.dialects.responses import Responses
from gateway.prompts import chat_prompt, completions_prompt, messages_prompt, responses_prompt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gateway.body import Body
    from gateway.dialects.protocol import Dialect
    from prefix_index.encoding.protocol import Prompt


class Endpoint(NamedTuple):
    name: str
    """From a closed list: it stands in logs."""
    dialect: Dialect
    read: Callable[[bytes, bytes | None], Body]
    """From body and content type. Raises ClientError."""
    prompt: Callable[[Body], Prompt | None] | None = None
    """None: nothing is matched, load alone decides."""
    is_text: bool = False
    """Without a prompt to be matched: the body's length still tells of the work."""
    any_backend: bool = False
    """May go to any backend where the request names no model."""
    stateful: bool = False
    """Its requests may name an answer that one backend keeps."""


_OPENAI: Final = OpenAI()
_OTHER: Final = Other()
_ANTHROPIC: Final = Anthropic()
_RESPONSES: Final = Responses()

_POST: Final = {
    b"/v1/chat/completions": Endpoint("chat", _OPENAI, read_json, chat_prompt),
    b"/v1/completions": Endpoint("completions", _OPENAI, read_json, completions_prompt),
    b"/v1/messages": Endpoint("messages", _ANTHROPIC, read_json, messages_prompt),
    b"/v1/messages/count_tokens": Endpoint("count_tokens", _ANTHROPIC, read_json),
    b"/v1/responses": Endpoint("responses", _RESPONSES, read_json, responses_prompt, stateful=True),
    b"/v1/embeddings": Endpoint("embeddings", _OTHER, read_json, is_text=True),
    b"/v1/rerank": Endpoint("rerank", _OTHER, read_json, is_text=True),
    b"/v1/score": Endpoint("score", _OTHER, read_json, is_text=True),
    b"/v1/moderations": Endpoint("moderations", _OTHER, read_json, is_text=True),
    b"/v1/images/generations": Endpoint("images", _OTHER, read_json),
    b"/v1/audio/speech": Endpoint("speech", _OTHER, read_json),
    b"/v1/audio/transcriptions": Endpoint("transcriptions", _OTHER, read_form),
    b"/v1/audio/translations": Endpoint("translations", _OTHER, read_form),
}
_RESPONSE: Final = Endpoint("response", _RESPONSES, read_any, any_backend=True, stateful=True)
_PASSED: Final = Endpoint("passed", _OTHER, read_any, any_backend=True)
_PASSED_METHODS: Final = frozenset({b"GET", b"POST", b"DELETE"})
_ONE_RESPONSE: Final = re.compile(rb"/v1/responses/([A-Za-z0-9_-]{1,256})(/cancel|/input_items)?")
_ESCAPED_PLAIN: Final = rb"%(?:00|2[5def]|3[0-9]|4[1-9a-f]|5[0-9acf]|6[1-9a-f]|7[0-9ae])"
"""Of what needs no escape (RFC 3986 section 2.3), and of slashes, percent signs and NUL."""
_AMBIGUOUS: Final = re.compile(rb"//|/\.{1,2}(?:/|$)|[\\#\x00-\x20\x7f-\xff]|" + _ESCAPED_PLAIN, re.IGNORECASE)
_MESSAGES: Final = b"/v1/messages"
_OWN: Final = (b"/v1/models", b"/v1/models/")


def response_id(path: bytes) -> str | None:
    """The answer that a path below /v1/responses names."""
    match = _ONE_RESPONSE.fullmatch(path)
    return match[1].decode() if match else None


class Endpoints:
    """`passed`: further paths of the config, a `*` at the end takes all below. Never changes: connections remember what
    it said, and ask anew when there is another one."""

    def __init__(self, passed: Iterable[str] = ()) -> None:
        paths = [path.encode() for path in passed]
        self._exact = frozenset(path for path in paths if not path.endswith(b"*"))
        self._below = tuple(path[:-1] for path in paths if path.endswith(b"*"))

    def find(self, method: bytes, path: bytes) -> Endpoint | None:
        """None: not on the list, or not with this method."""
        if method == b"POST" and (endpoint := _POST.get(path)) is not None:
            return endpoint
        return self._find_other(method, path)

    def _find_other(self, method: bytes, path: bytes) -> Endpoint | None:
        if (match := _ONE_RESPONSE.fullmatch(path)) is not None and method in _response_methods(match[2]):
            return _RESPONSE
        return _PASSED if method in _PASSED_METHODS and self._is_passed(path) else None

    def _is_passed(self, path: bytes) -> bool:
        if path == _OWN[0] or path.startswith(_OWN[1]):
            return False
        if path in self._exact:
            return True
        return bool(self._below) and path.startswith(self._below) and not _AMBIGUOUS.search(path)

    def methods(self, path: bytes) -> tuple[str, ...]:
        """Those that a path takes; none if it is not on the list."""
        candidates = (b"GET", b"POST", b"DELETE")
        return tuple(method.decode() for method in candidates if self.find(method, path) is not None)

    @property
    def paths(self) -> tuple[str, ...]:
        """The built-in ones that take POST."""
        return tuple(path.decode() for path in _POST)


def dialect_of(path: bytes) -> Dialect:
    """Whose errors a client of this path expects, also where nothing is served there."""
    return _ANTHROPIC if path == _MESSAGES or path.startswith(_MESSAGES + b"/") else _OPENAI


def _response_methods(action: bytes | None) -> tuple[bytes, ...]:
    if action == b"/cancel":
        return (b"POST",)
    return (b"GET",) if action else (b"GET", b"DELETE")

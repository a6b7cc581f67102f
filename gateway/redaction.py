"""The last step before a log line is written: nothing of what clients send, and no credential, gets past it.

Works by key (content and credentials are masked whatever they hold), by shape (what looks like a key or token) and by
value (the secrets of the config). What is not plain data is named by its class only: its repr could hold content.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from vocabulary.errors import WarmrouteError

if TYPE_CHECKING:
    from collections.abc import Iterable, MutableMapping

CONTENT_KEYS: Final = frozenset((
    "answer", "api_key", "api_key_file", "apikey", "arguments", "authorization", "body", "cache_salt",
    "choices", "chunk", "completion", "content", "cookie", "credential", "credentials", "data", "delta",
    "detail", "details", "document", "documents", "headers", "input", "inputs", "instructions", "key",
    "message", "messages", "metadata", "output", "password", "payload", "prompt", "prompts",
    "proxy_authorization", "query", "query_string", "raw", "reasoning", "reasoning_content", "request_body",
    "response", "response_body", "secret", "secret_file", "session", "session_id", "session_key", "set_cookie",
    "system", "text", "token", "token_ids", "tool_calls", "tools", "url_query", "user", "value", "x_api_key",
    "x_session_id",
))  # fmt: skip
"""Normalised: lower case, `_` for `-`. Counts have other names (`prompt_tokens`, `body_bytes`) and pass."""
_SUFFIXES: Final = ("_secret", "_password", "_token", "_api_key", "_session_id", "_credential")
_MAX_CHARS: Final = 1_000
_MAX_ITEMS: Final = 50
_MAX_DEPTH: Final = 4
_MIN_SECRET_CHARS: Final = 4
"""Shorter ones would blank out ordinary words."""
_MASK: Final = "[redacted]"
_SHAPES: Final = (
    (re.compile(r"(?i)\b(bearer)\s+[\w.~+/=-]{6,}"), r"\1 [redacted]"),
    (re.compile(r"\b([Bb]asic)\s+[A-Za-z0-9+/]*[0-9A-Z+/][A-Za-z0-9+/]*={0,2}"), r"\1 [redacted]"),
    (re.compile(r"\beyJ[\w-]{5,}\.[\w-]+(\.[\w-]*)?"), _MASK),
    (re.compile(r"\b(sk|pk|rk|hf|gsk|xai|nvapi|ghp|gho|ghs|github_pat|glpat)[-_][\w-]{8,}"), _MASK),
    (re.compile(r"\b(AKIA[0-9A-Z]{12,}|AIza[\w-]{20,})"), _MASK),
    (re.compile(r"(?<=://)[^/\s@]+@"), "[redacted]@"),
    (
        re.compile(
            r"(?i)\b((?:x-)?api[_-]?key|access[_-]?token|token|secret|password|authorization|(?:x-)?session[_-]?id)"
            r"([\"']?\s*[:=]\s*[\"']?)[^\s\"'&,;}\[]+"
        ),
        r"\1\2[redacted]",
    ),
)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def error_label(error: BaseException) -> str:
    """The class name; with the text only for our own errors, whose texts hold no content."""
    name = type(error).__name__
    return f"{name}: {error}" if isinstance(error, WarmrouteError) else name


class Redactor:
    """A structlog processor. `secrets` are masked wherever they appear."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets: list[str] = []
        self.add(secrets)

    def add(self, secrets: Iterable[str]) -> None:
        """Mask these too from now on."""
        known = {*self._secrets, *(s for s in secrets if len(s) >= _MIN_SECRET_CHARS)}
        self._secrets = sorted(known, key=len, reverse=True)  # the longest first: one secret may begin with another

    def __call__(self, logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        return {self.text(str(key)): self.field(str(key), value, 0) for key, value in event.items()}

    def field(self, key: str, value: Any, depth: int) -> Any:
        name = key.lower().replace("-", "_")
        if value is not None and (name in CONTENT_KEYS or name.endswith(_SUFFIXES)):
            return f"[redacted, {len(value)} long]" if isinstance(value, str | bytes) else _MASK
        return self.plain(value, depth)

    def plain(self, value: Any, depth: int) -> Any:
        """JSON types without content; class names for all else."""
        if value is None or isinstance(value, bool | int):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else str(value)
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, bytes | bytearray | memoryview):
            return f"[{len(value)} bytes]"
        if isinstance(value, BaseException):
            return self.text(error_label(value))
        if depth < _MAX_DEPTH and isinstance(value, Mapping):
            items = list(value.items())[:_MAX_ITEMS]
            return {self.text(str(key)): self.field(str(key), inner, depth + 1) for key, inner in items}
        if depth < _MAX_DEPTH and isinstance(value, list | tuple | set | frozenset):
            return [self.plain(inner, depth + 1) for inner in list(value)[:_MAX_ITEMS]]
        return f"<{type(value).__name__}>"

    def text(self, value: str) -> str:
        text = str(value)  # an enum's text, not its repr
        for secret in self._secrets:
            text = text.replace(secret, _MASK)
        if len(text) >= _MIN_SECRET_CHARS:
            for shape, replacement in _SHAPES:
                text = shape.sub(replacement, text)
        if len(text) > _MAX_CHARS:
            text = f"{text[:_MAX_CHARS]}[... {len(text)} long]"
        return _CONTROL.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()

"""API keys. Only their SHA-256 digests are known here: they are long random strings, so a plain hash does."""

from __future__ import annotations

import hmac
from hashlib import sha256
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_INDEX_BYTES: Final = 8


class ApiKeys:
    """Immutable: a reload makes a new one."""

    __slots__ = ("_by_index",)

    def __init__(self, digests: Mapping[str, Iterable[bytes]]) -> None:
        """`digests`: SHA-256 of every key, by the name of its owner. A key of two owners is the first one's."""
        self._by_index: dict[bytes, list[tuple[bytes, str]]] = {}
        for owner, keys in digests.items():
            for digest in keys:
                self._by_index.setdefault(digest[:_INDEX_BYTES], []).append((digest, owner))

    def __bool__(self) -> bool:
        return bool(self._by_index)

    def owner(self, key: bytes) -> str | None:
        """Whose key it is. What is compared digit by digit is a hash, and in constant time."""
        digest = sha256(key).digest()
        for known, owner in self._by_index.get(digest[:_INDEX_BYTES], ()):
            if hmac.compare_digest(known, digest):
                return owner
        return None

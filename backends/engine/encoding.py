"""Prompts to token ids, as the engine sees them. Never the gateway's code: the two must be able to disagree.

A prompt is the bytes of its token ids, 4 each, little-endian. In the `bytes` encoding the text itself is cut into
tokens of 4 bytes, so a token id is the number these bytes make and only the last token may be short.
"""

from __future__ import annotations

import json
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import xxhash

from backends.engine.errors import ApiError
from backends.engine.generation import Vocabulary, four_byte_words

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TOKEN_BYTES: Final = 4
_MAX_ID: Final = 2**32


@dataclass(frozen=True, slots=True)
class Prompt:
    """`ids`: see above. `reply_head`: what the chat format puts before the reply, where that is no part of the
    prompt.
    """

    ids: bytes
    reply_head: bytes = b""

    @property
    def tokens(self) -> int:
        return -(-len(self.ids) // TOKEN_BYTES)


class Encoding(Protocol):
    vocabulary: Vocabulary
    costly: bool
    """Long prompts belong off the event loop."""

    def text(self, prompt: str) -> Prompt: ...

    def chat(self, messages: Sequence[Mapping[str, Any]], body: Mapping[str, Any]) -> Prompt:
        """`body` is the whole request: tools, template arguments. ApiError where the template refuses."""
        ...


class BytesEncoding:
    """No tokenizer: `role NUL content NUL` per message, tools first, in UTF-8."""

    costly = False

    def __init__(self) -> None:
        self.vocabulary = four_byte_words()

    def text(self, prompt: str) -> Prompt:
        return Prompt(_utf8(prompt))

    def chat(self, messages: Sequence[Mapping[str, Any]], body: Mapping[str, Any]) -> Prompt:
        pieces: list[str] = []
        if body.get("tools"):
            pieces += (compact(body["tools"]), "\0")
        for message in messages:
            pieces += (str(message.get("role", "")), "\0", content_text(message.get("content")), "\0")
            pieces += [
                f"{compact(message[field])}\0" for field in ("tool_calls", "tool_call_id", "name") if message.get(field)
            ]
        return Prompt(_utf8("".join(pieces)), b"assistant\0")


def from_ids(ids: Sequence[int]) -> Prompt:
    """Token ids as a client sends them. ApiError unless they are."""
    if not all(type(i) is int and 0 <= i < _MAX_ID for i in ids):
        raise ApiError(400, "token ids must be integers from 0 to 2^32-1", param="prompt")
    return Prompt(array("I", ids).tobytes())


def to_ids(ids: bytes) -> list[int]:
    """The numbers, the last one padded with zero bytes."""
    numbers = array("I")
    numbers.frombytes(ids + bytes(-len(ids) % TOKEN_BYTES))
    return numbers.tolist()


def content_text(content: object) -> str:
    """Text of a message: text parts are joined, other parts stand as a digest of their JSON, null is empty."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ApiError(400, "content must be a string, a list of parts or null", param="messages")
    pieces: list[str] = []
    for part in content:
        if isinstance(part, str):
            pieces.append(part)
        elif isinstance(part, dict) and isinstance(part.get("text"), str):
            pieces.append(part["text"])
        else:
            pieces.append(xxhash.xxh3_128_hexdigest(_utf8(compact(part))))
    return "".join(pieces)


def compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def chain(root: int, stream: bytes, block_size: int, blocks: int) -> list[int]:
    """Chained 64-bit hashes of the first `blocks` whole blocks of a stream of token ids."""
    size = block_size * TOKEN_BYTES
    digest, parent = xxhash.xxh3_64_intdigest, root
    return [
        parent := digest(stream[i : i + size], parent) for i in range(0, min(blocks, len(stream) // size) * size, size)
    ]


def root(adapter: str, salt: str) -> int:
    """Where a chain starts: adapters and salts share nothing."""
    return xxhash.xxh3_64_intdigest(_utf8(f"{len(adapter)}:{adapter}{salt}"))

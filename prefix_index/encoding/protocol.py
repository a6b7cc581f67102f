"""The seam of encoding: a parsed prompt becomes chained block keys, paying only for what the last turn did not have."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from vocabulary import BlockKeys


class Prompt(NamedTuple):
    """What routing reads of a request body. Raw JSON pieces, not yet decoded: only a miss pays for decoding.

    Exactly one of `messages` and `prompt` is set for a well-formed request; both None means there is nothing to encode.
    """

    messages: bytes | None
    """The JSON text of `messages` (chat)."""
    prompt: bytes | None
    """The JSON text of `prompt` (completions): string, list of strings, list of token ids, or list of those."""
    tools: bytes | None = None
    """The JSON text of `tools`."""
    template_arguments: bytes | None = None
    """The JSON text of `chat_template_kwargs`."""


class Namespace(NamedTuple):
    """What must be equal for two prompts to share cache at all; part of every block key (design: block keys)."""

    model: str
    adapter: str = ""
    cache_salt: str = ""


class Encoded(NamedTuple):
    keys: BlockKeys
    """Full blocks only."""
    units: int
    """Length of the prompt in the encoding's units: tokens, or bytes for the `bytes` encoding."""
    block_units: int
    """Units in one block."""
    resumed_blocks: int
    """Leading blocks taken over from an earlier turn: where a known session may end. 0 for a cold prompt."""
    prompt_id: int = 0
    """Names exactly this prompt in its namespace, 64 bits: tells prompts apart whose full blocks are equal. 0: not
    known."""
    resumed_id: int = 0
    """The `prompt_id` of the longest earlier prompt that is a head of this one. 0: none known."""


class Encoder(Protocol):
    def encode(self, prompt: Prompt, namespace: Namespace) -> Encoded | Awaitable[Encoded | None] | None:
        """Block keys of a prompt; None where it has no text or ids that could be matched (shapes that only load can
        route).

        A plain value when the work is small enough for the event loop, else an awaitable that does it in a worker
        thread, or asks for it. Never raises for any JSON value: what cannot be encoded is None. May raise where
        somebody else has to be asked: TimeoutError where there was no answer in time.
        """
        ...

    @property
    def name(self) -> str:
        """`bytes` or `tokens`: what `units` are."""
        ...

    def close(self) -> None: ...

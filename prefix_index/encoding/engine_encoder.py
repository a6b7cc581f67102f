"""The `engine` encoding: token ids as a backend of the model gives them, for models whose tokenizer is not at hand.

Each new prompt costs a call to an engine, so ids are kept by a digest of the prompt; a conversation that grows is
asked anew with each turn. Invariant: what is not answered in time is not waited for.
"""

from __future__ import annotations

import asyncio
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final, Protocol

from xxhash import xxh3_128_digest

from prefix_index.encoding.completion import ID_BYTES, read_prompt
from prefix_index.encoding.protocol import Encoded
from prefix_index.encoding.resume import PromptEnds, Snapshot, SnapshotCache, chain_id
from prefix_index.encoding.steps import StepChain
from prefix_index.encoding.turns import KnownTurns, tools_or_none
from prefix_index.encoding.worker import EncodingWorker
from prefix_index.keys import root_state

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from prefix_index.encoding.protocol import Namespace, Prompt
    from prefix_index.encoding.resume import Chained

_INLINE_BYTES: Final = 16 * 1024
"""Ids that are chained on the event loop; more are in a thread."""


class TokenSource(Protocol):
    async def ids(self, prompt: Prompt) -> bytes:
        """Token ids of the prompt, 4 bytes each, little-endian. Raises where nobody can give them."""
        ...


class EncoderBusy(Exception):
    """Too many prompts are being asked for."""


class EngineEncoder:
    """`timeout_s` bounds how long a caller waits for an engine; past it the call raises TimeoutError, as it raises what
    `source` does. At most `max_pending` calls run."""

    def __init__(
        self,
        secret: bytes,
        source: TokenSource,
        *,
        block_tokens: int = 16,
        timeout_s: float = 0.05,
        max_pending: int = 64,
        max_cache_bytes: int = 64 * 1024 * 1024,
    ) -> None:
        self._source = source
        self._block_tokens = block_tokens
        self._block_bytes = block_tokens * ID_BYTES
        self._timeout_s = timeout_s
        self._max_pending = max_pending
        self._pending = 0
        self._root = lru_cache(maxsize=4096)(partial(_root, secret, block_tokens))
        self._known = SnapshotCache(max_cache_bytes)
        self._ends = PromptEnds(16_384)
        self._steps = StepChain(self._known, self._ends)
        self._turns = KnownTurns()
        self._worker = EncodingWorker(threads=1, max_pending=max_pending, timeout_s=5.0)

    @property
    def name(self) -> str:
        return "tokens"

    def close(self) -> None:
        self._worker.close()

    def encode(self, prompt: Prompt, namespace: Namespace) -> Encoded | Awaitable[Encoded | None] | None:
        """Raises EncoderBusy; its awaitable raises TimeoutError and what the source raises."""
        if prompt.messages is None and prompt.prompt is None:
            return None
        root = self._root(namespace)
        if prompt.prompt is not None:
            data = read_prompt(prompt.prompt)
            if data is None:
                return None
            if isinstance(data, bytes):  # they are given
                return self._chained(root, data)
        digest = _digest(root, prompt)
        known = self._known.get(digest)
        if known is not None:
            own = chain_id(root, known)
            again = Encoded(known.keys, known.units, self._block_tokens, known.blocks, own, own)
            return self._named(prompt, root, again)
        if self._pending >= self._max_pending:
            raise EncoderBusy
        return self._ask(prompt, root, digest)

    async def _ask(self, prompt: Prompt, root: Snapshot, digest: bytes) -> Encoded | None:
        self._pending += 1
        try:
            async with asyncio.timeout(self._timeout_s):
                ids = await self._source.ids(prompt)
        finally:
            self._pending -= 1
        if len(ids) <= _INLINE_BYTES:
            return self._filed(prompt, root, digest, ids)
        work = self._worker.run(partial(self._filed, prompt, root, digest, ids))
        return None if work is None else await work

    def _filed(self, prompt: Prompt, root: Snapshot, digest: bytes, ids: bytes) -> Encoded:
        chain = root.then(ids, self._block_bytes, ID_BYTES)
        self._known.put(digest, chain)
        chained: Chained = self._ends.resume(root, root, ids, chain, self._block_bytes)
        return self._named(prompt, root, chained.encoded(self._block_tokens))

    def _named(self, prompt: Prompt, root: Snapshot, encoded: Encoded) -> Encoded:
        """A chat by its messages and not by its ids, as in the `tokens` encoding."""
        if prompt.messages is None:
            return encoded
        tools = tools_or_none(prompt.tools)
        prompt_id, resumed_id = self._turns.resume(root.state.digest, tools, prompt.messages)
        return encoded._replace(prompt_id=prompt_id, resumed_id=resumed_id)

    def _chained(self, root: Snapshot, ids: bytes) -> Encoded | Awaitable[Encoded | None] | None:
        job = partial(self._steps.encode, root, ids, self._block_bytes, ID_BYTES)
        if len(ids) <= _INLINE_BYTES:
            return job().encoded(self._block_tokens)
        return self._worker.run(lambda: job().encoded(self._block_tokens))


def _digest(root: Snapshot, prompt: Prompt) -> bytes:
    """Of everything that the ids depend on."""
    pieces = (prompt.messages, prompt.prompt, prompt.tools, prompt.template_arguments)
    return root.state.digest + b"".join(b"\0" if piece is None else xxh3_128_digest(piece) for piece in pieces)


def _root(secret: bytes, block_tokens: int, namespace: Namespace) -> Snapshot:
    return Snapshot(root_state(secret, namespace, block_tokens))

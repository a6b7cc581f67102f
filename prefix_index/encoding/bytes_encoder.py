"""The `bytes` encoding: UTF-8 of the prompt in blocks of 64 bytes. Needs no tokenizer, no template and no
configuration.

Invariant: equal text gives equal keys, and a prompt that extends another begins with its keys (full blocks), whatever
the cache of earlier turns holds.
"""

from __future__ import annotations

from functools import lru_cache, partial
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from prefix_index.encoding.chat_bytes import message_bytes, messages_bytes
from prefix_index.encoding.completion import read_prompt
from prefix_index.encoding.prompt_ids import PromptIds, prompt_id
from prefix_index.encoding.protocol import Encoded
from prefix_index.encoding.resume import PromptEnds, Snapshot, SnapshotCache, chain_id
from prefix_index.encoding.steps import StepChain
from prefix_index.encoding.turns import TurnFinder, tools_or_none
from prefix_index.encoding.worker import EncodingWorker
from prefix_index.keys import extend, root_state
from vocabulary import KEY_BYTES

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from prefix_index.encoding.protocol import Namespace, Prompt
    from prefix_index.encoding.turns import Located
    from vocabulary import BlockKeys

BLOCK_BYTES: Final = 64
_SHARED_HEAD_BYTES: Final = 4096
"""From this size on, tools and first message are kept as a start for other sessions."""
_WHOLE_BYTES: Final = 4096
_INLINE_BYTES: Final = 128 * 1024
"""More new text than this goes to a thread: some half a millisecond."""
_INLINE_TOTAL_BYTES: Final = 1024 * 1024


class BytesEncoder:
    """`secret`: the deployment secret. `max_cache_bytes`: what earlier turns may take."""

    def __init__(
        self,
        secret: bytes,
        *,
        max_cache_bytes: int = 64 * 1024 * 1024,
        max_pending: int = 256,
        timeout_s: float = 10.0,
    ) -> None:
        self._root = lru_cache(maxsize=4096)(partial(_root, secret))
        self._turns = SnapshotCache(max_cache_bytes)
        self._finder = TurnFinder()
        self._ids = PromptIds()
        self._steps = StepChain(self._turns, PromptEnds(16_384))
        self._worker = EncodingWorker(threads=1, max_pending=max_pending, timeout_s=timeout_s)

    @property
    def name(self) -> str:
        return "bytes"

    def close(self) -> None:
        self._worker.close()

    def encode(self, prompt: Prompt, namespace: Namespace) -> Encoded | Awaitable[Encoded | None] | None:
        if prompt.messages is not None:
            return self._chat(prompt.messages, tools_or_none(prompt.tools), self._root(namespace))
        if prompt.prompt is None:
            return None
        text = prompt.prompt
        if len(text) > _INLINE_BYTES:
            return self._worker.run(lambda: self._completion(text, self._root(namespace)))
        return self._completion(text, self._root(namespace))

    def _completion(self, raw: bytes, root: Snapshot) -> Encoded | None:
        data = read_prompt(raw)
        if data is None:
            return None
        if isinstance(data, str):
            data = data.encode("utf-8", "surrogatepass")
        return self._steps.encode(root, data, BLOCK_BYTES, 1).encoded(BLOCK_BYTES)

    def _chat(self, raw: bytes, tools: bytes, root: Snapshot) -> Encoded | Awaitable[Encoded | None] | None:
        if len(raw) + len(tools) <= _WHOLE_BYTES:
            return self._whole(raw, tools, root)
        if len(raw) + len(tools) > _INLINE_TOTAL_BYTES:
            return self._worker.run(lambda: self._grow(self._locate(raw, tools, root), tools, root))
        located = self._locate(raw, tools, root)
        new = sum(memoryview(message).nbytes for message in located.rest)
        if new + (0 if located.known else len(tools)) > _INLINE_BYTES:
            return self._worker.run(lambda: self._grow(located, tools, root))
        return self._grow(located, tools, root)

    def _whole(self, raw: bytes, tools: bytes, root: Snapshot) -> Encoded | None:
        """A short chat: done anew, that is cheaper than looking for its earlier turns."""
        pieces = messages_bytes(raw)
        if not pieces:
            return None
        if tools:
            pieces[0] = tools + b"\0" + pieces[0]
        data = b"".join(pieces)
        keys, state = extend(root.state, data, BLOCK_BYTES)
        own = prompt_id(root.state.digest, keys, len(keys) // KEY_BYTES, state.partial)
        return self._named(root, keys, data, pieces, own)

    def _named(self, root: Snapshot, keys: BlockKeys, data: bytes, pieces: list[bytes], own: int) -> Encoded:
        """With the longest earlier prompt that is a head of this one, found by where its messages end."""
        if not self._ids.add(own):
            blocks, resumed_id = len(keys) // KEY_BYTES, own
        else:
            ends = accumulate(map(len, pieces[:-1]))
            blocks, resumed_id = self._ids.longest(root.state.digest, keys, data, ends, BLOCK_BYTES)
        return Encoded(keys, len(data), BLOCK_BYTES, blocks, own, resumed_id)

    def _locate(self, raw: bytes, tools: bytes, root: Snapshot) -> Located[Snapshot]:
        return self._finder.locate(root.state.digest, tools, raw, self._turns.get)

    def _grow(self, located: Located[Snapshot], tools: bytes, root: Snapshot) -> Encoded | None:
        """From where an earlier turn left off to the end of this one."""
        known = located.known
        pieces = [piece for raw in located.rest if (piece := message_bytes(raw)) is not None]
        if len(pieces) < len(located.rest) or not (pieces or known):
            return None
        if known is None:
            return self._cold(located, tools, pieces, root)
        chain = known
        if pieces or not known.is_end:
            chain = self._filed(located, known.then(b"".join(pieces), BLOCK_BYTES, 1))
        own = chain_id(root, chain)
        self._ids.add(own)
        resumed_id = chain_id(root, known) if known.is_end else 0
        return Encoded(chain.keys, chain.units, BLOCK_BYTES, known.blocks, own, resumed_id)

    def _cold(self, located: Located[Snapshot], tools: bytes, pieces: list[bytes], root: Snapshot) -> Encoded:
        if tools:
            pieces[0] = tools + b"\0" + pieces[0]
        data = b"".join(pieces)
        if len(pieces) > 1 and len(pieces[0]) >= _SHARED_HEAD_BYTES:
            head = root.then(pieces[0], BLOCK_BYTES, 1)
            self._turns.put(located.first, head)
            chain = head.then(data[len(pieces[0]) :], BLOCK_BYTES, 1)
        else:
            chain = root.then(data, BLOCK_BYTES, 1)
        chain = self._filed(located, chain)
        return self._named(root, chain.keys, data, pieces, chain_id(root, chain))

    def _filed(self, located: Located[Snapshot], chain: Snapshot) -> Snapshot:
        """The end of this prompt, to be taken up by its next turn."""
        end = Snapshot(chain.state, chain.keys, chain.units, is_end=True)
        self._turns.put(located.end, end)
        self._finder.remember(located)
        return end


def _root(secret: bytes, namespace: Namespace) -> Snapshot:
    return Snapshot(root_state(secret, namespace, BLOCK_BYTES))

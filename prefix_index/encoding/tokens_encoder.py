"""The `tokens` encoding: the ids that the engine will see, in blocks of the engine's size.

Chat needs a template from the operator; without one chat prompts are not encoded. Invariant: nothing long runs on the
event loop, and one text always gives the same keys, whatever earlier turns left behind.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final

from prefix_index.encoding.chat_text import template_arguments, template_messages, template_tools
from prefix_index.encoding.completion import ID_BYTES, read_prompt
from prefix_index.encoding.cuts import CutChain
from prefix_index.encoding.resume import PromptEnds, Snapshot, SnapshotCache
from prefix_index.encoding.steps import StepChain
from prefix_index.encoding.turns import KnownTurns, tools_or_none
from prefix_index.encoding.worker import EncodingWorker
from prefix_index.keys import root_state

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from prefix_index.encoding.protocol import Encoded, Namespace, Prompt
    from prefix_index.encoding.template import ChatTemplate
    from prefix_index.encoding.tokenizer import CheckedTokenizer

_INLINE_BYTES_FAST: Final = 32 * 1024
_INLINE_BYTES_REFERENCE: Final = 1024
"""The reference tokenises some 2 MB/s."""


class TokensEncoder:
    """`tool_template` is for chats with tools, where that is another one. `timeout_s` bounds how long a caller waits,
    `on_mismatch` hears why a faster way was given up."""

    def __init__(
        self,
        secret: bytes,
        tokenizer: CheckedTokenizer,
        template: ChatTemplate | None,
        *,
        on_mismatch: Callable[[str], None],
        tool_template: ChatTemplate | None = None,
        block_tokens: int = 16,
        max_cache_bytes: int = 64 * 1024 * 1024,
        verify_every: int = 64,
        threads: int = 2,
        max_pending: int = 256,
        timeout_s: float = 5.0,
    ) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._tool_template = tool_template or template
        self._block_tokens = block_tokens
        self._root = lru_cache(maxsize=4096)(partial(_root, secret, block_tokens))
        cache, ends = SnapshotCache(max_cache_bytes), PromptEnds(16_384)
        self._turns = KnownTurns()
        self._ids = StepChain(cache, ends)
        self._texts = CutChain(tokenizer, block_tokens, cache, ends, on_mismatch=on_mismatch, verify_every=verify_every)
        self._worker = EncodingWorker(threads=threads, max_pending=max_pending, timeout_s=timeout_s)

    @property
    def name(self) -> str:
        return "tokens"

    @property
    def incremental(self) -> bool:
        """Whether turns build on earlier ones; false once that was found to change ids."""
        return self._texts.incremental

    @property
    def chats(self) -> bool:
        """Whether it has a template, so that chats are encoded."""
        return self._template is not None

    def close(self) -> None:
        self._worker.close()

    def encode(self, prompt: Prompt, namespace: Namespace) -> Encoded | Awaitable[Encoded | None] | None:
        root = self._root(namespace)
        if prompt.messages is not None:
            if self._template is None:
                return None
            return self._worker.run(partial(self._chat, prompt, prompt.messages, root))
        if prompt.prompt is None:
            return None
        if len(prompt.prompt) > (_INLINE_BYTES_FAST if self._tokenizer.fast else _INLINE_BYTES_REFERENCE):
            return self._worker.run(partial(self._completion, prompt.prompt, root))
        return self._completion(prompt.prompt, root)

    def ids(self, prompt: Prompt) -> bytes | None:
        """The token ids of the whole prompt, 4 bytes each, little-endian; None as for `encode`. Takes long: not for the
        event loop."""
        if prompt.messages is not None:
            text = self._text(prompt, prompt.messages, tools_or_none(prompt.tools))
            return self._tokenizer.ids(_proper(text)) if text else None
        data = read_prompt(prompt.prompt) if prompt.prompt is not None else None
        if not isinstance(data, str):
            return data
        return self._tokenizer.lead + self._tokenizer.ids(_proper(data)) + self._tokenizer.trail

    def _chat(self, prompt: Prompt, raw: bytes, root: Snapshot) -> Encoded | None:
        tools = tools_or_none(prompt.tools)
        text = self._text(prompt, raw, tools)
        if not text:
            return None
        # by its messages and not by its ids: what a template writes to start an answer is often gone in the next turn
        prompt_id, resumed_id = self._turns.resume(root.state.digest, tools, raw)
        encoded = self._texts.encode(root, text).encoded(self._block_tokens)
        return encoded._replace(prompt_id=prompt_id, resumed_id=resumed_id)

    def _text(self, prompt: Prompt, raw: bytes, tools: bytes) -> str | None:
        template = self._tool_template if tools else self._template
        if template is None:
            return None
        messages = template_messages(raw, template.wants_parts, knows_developer=template.knows_developer)
        arguments = template_arguments(prompt.template_arguments)
        if messages is None or arguments is None:
            return None
        return template.render(messages, template_tools(tools), arguments, len(raw) + len(tools))

    def _completion(self, raw: bytes, root: Snapshot) -> Encoded | None:
        data = read_prompt(raw)
        if data is None:
            return None
        block_bytes = self._block_tokens * ID_BYTES
        if isinstance(data, bytes):
            return self._ids.encode(root, data, block_bytes, ID_BYTES).encoded(self._block_tokens)
        chained = self._texts.encode(root, data, self._tokenizer.lead)
        whole = chained.chain.then(self._tokenizer.trail, block_bytes, ID_BYTES)
        return replace(chained, chain=whole).encoded(self._block_tokens)


def _proper(text: str) -> str:
    """Each lone surrogate as U+FFFD: tokenizers take none."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _root(secret: bytes, block_tokens: int, namespace: Namespace) -> Snapshot:
    return Snapshot(root_state(secret, namespace, block_tokens))

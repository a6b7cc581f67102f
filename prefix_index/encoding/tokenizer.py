"""Token ids of text: by the fast library where it is proven equal, else by the reference.

The reference is Hugging Face `tokenizers`. Invariant: a library that once gave other ids than the reference is not
asked again, and `on_mismatch` was told why.
"""

from __future__ import annotations

import importlib
import json
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import tokenizers

from prefix_index.encoding.completion import pack_ids
from prefix_index.encoding.samples import with_specials

if TYPE_CHECKING:
    from collections.abc import Callable

_CHECK_EVERY: Final = 256
_CHECK_MOST_CHARS: Final = 16 * 1024


class CheckedTokenizer:
    """`tokenizer_json`: the text of a `tokenizer.json`. Loading takes up to seconds: not on the event loop.

    `on_mismatch` is called with one sentence, without any prompt text, from whichever thread noticed. Raises
    ValueError where the reference cannot load the vocabulary.
    """

    def __init__(
        self,
        tokenizer_json: str,
        *,
        on_mismatch: Callable[[str], None],
        allow_fast: bool = True,
        check_every: int = _CHECK_EVERY,
    ) -> None:
        try:
            self._reference = tokenizers.Tokenizer.from_str(tokenizer_json)
        except Exception as error:  # the library raises bare Exception
            raise ValueError(f"not a tokenizer.json that `tokenizers` can load: {error}") from error
        self._reference.no_truncation()
        self._reference.no_padding()
        self._on_mismatch = on_mismatch
        self._check_every = check_every
        self._calls = count(1)
        self._added = [token for token in json.loads(tokenizer_json).get("added_tokens") or () if token["content"]]
        self._fast = _load_fast(tokenizer_json, on_mismatch) if allow_fast else None
        self._prove()
        self.lead, self.trail = self._around()

    @property
    def fast(self) -> bool:
        """Whether the fast library is in use."""
        return self._fast is not None

    lead: bytes
    """Packed ids that the vocabulary puts before a completion's text (such as BOS)."""
    trail: bytes
    """And behind it."""

    def ids(self, text: str) -> bytes:
        """Ids of a text without lone surrogates, 4 bytes each, little-endian; special tokens in it are recognised."""
        fast = self._fast
        if fast is None:
            return self._reference_ids(text)
        ids = self._fast_ids(fast, text)
        if ids is None:
            return self._reference_ids(text)
        if next(self._calls) % self._check_every == 0:
            return self._checked(text, ids)
        return ids

    def cut_tokens(self) -> list[str]:
        """Special tokens before which a text can be cut without changing its ids.

        Such a token is split off before anything else looks at the text, whatever stands before it. One that begins
        inside another token could be part of that one, so its first character must not occur further inside any.
        """
        inside = {char for token in self._added for char in token["content"][1:]}
        return [
            token["content"]
            for token in self._added
            if token.get("special")
            and not (token.get("lstrip") or token.get("single_word") or token.get("normalized"))
            and token["content"][0] not in inside
        ]

    def _reference_ids(self, text: str) -> bytes:
        # the batch call releases the GIL, the single one does not
        return pack_ids(self._reference.encode_batch_fast([text], add_special_tokens=False)[0].ids)

    def _fast_ids(self, fast: Any, text: str) -> bytes | None:
        try:
            ids: bytes = fast.encode_batch_flat([text], add_special_tokens=False)[0]
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a Rust panic is no Exception
            self._give_up(f"fastokens failed on a text ({type(error).__name__})")
            return None
        return ids

    def _checked(self, text: str, ids: bytes) -> bytes:
        if len(text) <= _CHECK_MOST_CHARS:
            right = self._reference_ids(text)
            if right != ids:
                self._give_up("fastokens gave other ids than tokenizers on a sampled prompt")
            return right
        head = text[:_CHECK_MOST_CHARS]
        fast = self._fast
        if fast is not None and self._fast_ids(fast, head) not in (None, self._reference_ids(head)):
            self._give_up("fastokens gave other ids than tokenizers on a sampled prompt")
            return self._reference_ids(text)
        return ids

    def _prove(self) -> None:
        for text in with_specials([token["content"] for token in self._added]):
            fast = self._fast
            if fast is None:
                return
            if self._fast_ids(fast, text) not in (None, self._reference_ids(text)):
                self._give_up("fastokens gave other ids than tokenizers on the start-up samples")

    def _give_up(self, reason: str) -> None:
        if self._fast is not None:
            self._fast = None
            self._on_mismatch(f"{reason}; tokenizers is used for this model from now on")

    def _around(self) -> tuple[bytes, bytes]:
        bare = self._reference.encode("a", add_special_tokens=False).ids
        full = self._reference.encode("a", add_special_tokens=True).ids
        for at in range(len(full) - len(bare) + 1):
            if full[at : at + len(bare)] == bare:
                return pack_ids(full[:at]), pack_ids(full[at + len(bare) :])
        return b"", b""


def _load_fast(tokenizer_json: str, on_mismatch: Callable[[str], None]) -> Any | None:
    try:
        library = importlib.import_module("fastokens")
    except ImportError:
        return None
    try:
        fast = library.Tokenizer.from_json_str(tokenizer_json)
        fast.no_truncation()
        fast.no_padding()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a Rust panic is no Exception
        on_mismatch(
            f"fastokens cannot load this vocabulary ({type(error).__name__}); tokenizers is used for this model"
        )
        return None
    return fast

"""Chains over text by a tokenizer: resumed before a special token that an earlier text had at the same place.

A vocabulary splits special tokens off before it looks at anything else, so the ids of a text are the ids of what
precedes such a token followed by those of the rest. Invariant: that property is sampled; once it failed, texts are
tokenised whole.
"""

from __future__ import annotations

import re
from itertools import count, pairwise
from typing import TYPE_CHECKING, Final

from xxhash import xxh3_128

from prefix_index.encoding.completion import ID_BYTES
from prefix_index.encoding.samples import SAMPLES

if TYPE_CHECKING:
    from collections.abc import Callable

    from prefix_index.encoding.resume import Chained, PromptEnds, Snapshot, SnapshotCache
    from prefix_index.encoding.tokenizer import CheckedTokenizer

_RECENT_CUTS: Final = 16
_WINDOW_CHARS: Final = 8 * 1024


class CutChain:
    def __init__(
        self,
        tokenizer: CheckedTokenizer,
        block_tokens: int,
        cache: SnapshotCache,
        ends: PromptEnds,
        *,
        on_mismatch: Callable[[str], None],
        verify_every: int = 64,
    ) -> None:
        self._tokenizer = tokenizer
        self._block_bytes = block_tokens * ID_BYTES
        self._cache = cache
        self._ends = ends
        self._on_mismatch = on_mismatch
        self._verify_every = verify_every
        self._resumed = count(1)
        tokens = tokenizer.cut_tokens()
        self._cut = re.compile("|".join(re.escape(token) for token in tokens)) if tokens else None
        if tokens and not self._holds_on_samples(tokens[0]):
            self._give_up("ids of a text differ from the ids of its parts on the start-up samples")

    @property
    def incremental(self) -> bool:
        return self._cut is not None

    def encode(self, root: Snapshot, text: str, lead: bytes = b"") -> Chained:
        """`lead`: ids before those of the text. Tokenizers take no lone surrogates: each counts as U+FFFD."""
        try:
            data = text.encode()
        except UnicodeEncodeError:
            text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
            data = text.encode()
        start = self._then(root, lead) if lead else root
        known, at = start, 0
        cut, last, digest = self._cut, 0, b""
        if cut is not None and (places := _last_matches(cut, text)):
            last = places[-1]
            known, at, digest = self._known(cut, start, text, data, places)
        middle = self._tokenizer.ids(text[at:last]) if at < last else b""
        tail = self._tokenizer.ids(text[last:])
        chain = known
        if at < last:
            chain = self._then(chain, middle)
            self._cache.put(digest, chain)
        chain = self._then(chain, tail)
        if at and next(self._resumed) % self._verify_every == 0:
            whole = self._tokenizer.ids(text)
            right = self._then(start, whole)
            if right != chain:
                self._give_up("ids of a prompt differ from the ids of its parts")
                return self._ends.resume(root, start, whole, right, self._block_bytes)
        return self._ends.resume(root, known, middle + tail, chain, self._block_bytes)

    def _then(self, chain: Snapshot, ids: bytes) -> Snapshot:
        return chain.then(ids, self._block_bytes, ID_BYTES)

    def _known(
        self, cut: re.Pattern[str], start: Snapshot, text: str, data: bytes, places: list[int]
    ) -> tuple[Snapshot, int, bytes]:
        """The longest head that an earlier text had up to a cut, where it ends, and the digest up to the last place."""
        at, found, digest = self._look_up(start, text, data, places)
        if found is None and len(places) == _RECENT_CUTS:
            earlier = [match.start() for match in cut.finditer(text, 0, places[0])]
            at, found, _ = self._look_up(start, text, data, earlier)
        return (start, 0, digest) if found is None else (found, at, digest)

    def _look_up(
        self, start: Snapshot, text: str, data: bytes, places: list[int]
    ) -> tuple[int, Snapshot | None, bytes]:
        """The longest known head that ends at one of `places` (ascending, maybe none); the digest up to the last of
        them."""
        if not places:
            return 0, None, b""
        domain = start.state.digest + start.state.partial
        hasher = xxh3_128()
        view = memoryview(data)
        digests: list[bytes] = []
        end = len(data) - len(text[places[0] :].encode())  # as bytes: counted from the end, where the places are
        hasher.update(view[:end])
        digests.append(domain + hasher.digest())
        for before, place in pairwise(places):
            size = len(text[before:place].encode())
            hasher.update(view[end : end + size])
            digests.append(domain + hasher.digest())
            end += size
        for place, digest in zip(reversed(places), reversed(digests), strict=True):
            if place and (found := self._cache.get(digest)) is not None:
                return place, found, digests[-1]
        return 0, None, digests[-1]

    def _give_up(self, reason: str) -> None:
        self._cut = None
        self._cache.clear()
        self._on_mismatch(f"{reason}; prompts of this model are tokenised whole from now on")

    def _holds_on_samples(self, token: str) -> bool:
        ids = self._tokenizer.ids
        for before, after in pairwise(SAMPLES):
            if ids(before + token + after) != ids(before) + ids(token + after):
                return False
        return True


def _last_matches(pattern: re.Pattern[str], text: str) -> list[int]:
    """Where the last few matches begin, ascending; searched in windows from the end, each twice as long."""
    window = _WINDOW_CHARS
    while True:
        begin = max(0, len(text) - window)
        found = [match.start() for match in pattern.finditer(text, begin)]
        if len(found) >= _RECENT_CUTS or not begin:
            return found[-_RECENT_CUTS:]
        window *= 2

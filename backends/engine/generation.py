"""Deterministic output: pseudo words drawn from a small vocabulary by the digest of the prompt."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Final

TABLE: Final = 256
"""Words of a vocabulary; a power of two, so that an odd step visits all of them."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """`TABLE` words that need no JSON escape, each exactly one token, and the 4 bytes of each one's token id.

    `first` is what a reply may start with (a tokenizer has no leading space there); usually the same table.
    """

    words: tuple[bytes, ...]
    ids: tuple[bytes, ...]
    first_words: tuple[bytes, ...]
    first_ids: tuple[bytes, ...]


def four_byte_words() -> Vocabulary:
    """The vocabulary of the `bytes` encoding: three letters and a space are one token, and its id are these bytes."""
    syllables = itertools.product("bdfgklmnprstvwyz", "aeiou", "lmnrst")
    words = [f"{''.join(letters)} ".encode() for letters in syllables]
    picked = tuple(words[i * len(words) // TABLE] for i in range(TABLE))
    return Vocabulary(picked, picked, picked, picked)


class Output:
    """The words of one reply, by position."""

    __slots__ = ("_start", "_step", "_vocabulary")

    def __init__(self, vocabulary: Vocabulary, seed: int) -> None:
        self._vocabulary = vocabulary
        self._start = seed
        self._step = seed >> 16 | 1

    def word(self, i: int) -> bytes:
        words = self._vocabulary.words if i else self._vocabulary.first_words
        return words[(self._start + i * self._step + i // TABLE) % TABLE]

    def text(self, first: int, end: int) -> bytes:
        """Words `first` to `end`."""
        return b"".join([self.word(i) for i in range(first, end)])

    def ids(self, count: int) -> bytes:
        """The token ids of the first `count` words, 4 bytes each."""
        table, first = self._vocabulary.ids, self._vocabulary.first_ids
        return b"".join(
            [(table if i else first)[(self._start + i * self._step + i // TABLE) % TABLE] for i in range(count)]
        )

"""A small real vocabulary, trained here, so that no test downloads one."""

from __future__ import annotations

from pydoc_data.topics import topics

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, processors, trainers


def _train(extra: list[tokenizers.AddedToken], lead: str = "") -> str:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=4096,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sorted(topics.values())[:40], trainer)
    tokenizer.add_special_tokens(extra)
    if lead:
        number = tokenizer.token_to_id(lead)
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{lead} $A", special_tokens=[(lead, number)])
    text: str = tokenizer.to_str()
    return text


@pytest.fixture(scope="session")
def vocabulary() -> str:
    """The text of a byte-level BPE `tokenizer.json` with the special tokens of ChatML."""
    return _train([])


@pytest.fixture(scope="session")
def vocabulary_with_bos() -> str:
    """The same, with a token before every completion."""
    return _train([], lead="<|endoftext|>")


@pytest.fixture(scope="session")
def vocabulary_with_greedy_tokens() -> str:
    """The same, with special tokens that take the space before them, or could overlap others."""
    return _train(
        [
            tokenizers.AddedToken("<mask>", lstrip=True, special=True, normalized=False),
            tokenizers.AddedToken("x<x", special=True, normalized=False),
        ]
    )

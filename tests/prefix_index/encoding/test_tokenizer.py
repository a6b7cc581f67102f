from __future__ import annotations

import json
import types
from typing import TYPE_CHECKING, Any

import fastokens
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefix_index.encoding.tokenizer import CheckedTokenizer

if TYPE_CHECKING:
    from collections.abc import Callable


class Liar:
    """The fast library, wrong for some texts."""

    def __init__(self, text: str, wrong: Callable[[str], bool], fail: bool = False) -> None:
        self._real = fastokens.Tokenizer.from_json_str(text)
        self._wrong, self._fail = wrong, fail

    def no_truncation(self) -> None:
        self._real.no_truncation()

    def no_padding(self) -> None:
        self._real.no_padding()

    def encode_batch_flat(self, inputs: list[str], add_special_tokens: bool) -> tuple[bytes, bytes]:
        ids, offsets = self._real.encode_batch_flat(inputs, add_special_tokens=add_special_tokens)
        if self._wrong(inputs[0]):
            if self._fail:
                raise BaseException("a panic")
            return ids[4:], offsets
        return ids, offsets


def install(monkeypatch: pytest.MonkeyPatch, wrong: Callable[[str], bool], fail: bool = False) -> None:
    library = types.SimpleNamespace(Tokenizer=types.SimpleNamespace(from_json_str=lambda text: Liar(text, wrong, fail)))
    monkeypatch.setattr("prefix_index.encoding.tokenizer.importlib.import_module", lambda name: library)


def reference(text: str) -> CheckedTokenizer:
    return CheckedTokenizer(text, on_mismatch=pytest.fail, allow_fast=False)


def test_the_fast_library_is_used_where_it_is_proven_equal(vocabulary: str) -> None:
    tokenizer = CheckedTokenizer(vocabulary, on_mismatch=pytest.fail)
    assert tokenizer.fast
    assert not reference(vocabulary).fast


@pytest.fixture(scope="module")
def both(vocabulary: str) -> tuple[CheckedTokenizer, CheckedTokenizer]:
    return CheckedTokenizer(vocabulary, on_mismatch=pytest.fail), reference(vocabulary)


@settings(max_examples=60)
@given(text=st.text(max_size=60))
def test_both_ways_give_equal_ids(both: tuple[CheckedTokenizer, CheckedTokenizer], text: str) -> None:
    fast, slow = both
    assert fast.ids(text) == slow.ids(text)


@pytest.mark.parametrize("fail", [False, True])
def test_a_difference_on_the_samples_falls_back_aloud(
    vocabulary: str, monkeypatch: pytest.MonkeyPatch, fail: bool
) -> None:
    install(monkeypatch, lambda text: "日" in text or "東" in text, fail)
    reasons: list[str] = []
    tokenizer = CheckedTokenizer(vocabulary, on_mismatch=reasons.append)
    assert not tokenizer.fast
    assert len(reasons) == 1
    assert tokenizer.ids("東京") == reference(vocabulary).ids("東京")


@pytest.mark.parametrize("length", [10, 50_000])
def test_a_difference_on_a_sampled_prompt_falls_back_aloud(
    vocabulary: str, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    install(monkeypatch, lambda text: text.startswith("prompt"))
    reasons: list[str] = []
    tokenizer = CheckedTokenizer(vocabulary, on_mismatch=reasons.append, check_every=3)
    assert tokenizer.fast
    text = "prompt " * length
    for _ in range(3):
        ids = tokenizer.ids(text)
    assert [tokenizer.fast, len(reasons)] == [False, 1]
    assert ids == reference(vocabulary).ids(text)
    assert "prompt " not in reasons[0].replace("sampled prompt", "")


def test_a_failure_on_a_prompt_falls_back_aloud(vocabulary: str, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, lambda text: text.startswith("prompt"), fail=True)
    reasons: list[str] = []
    tokenizer = CheckedTokenizer(vocabulary, on_mismatch=reasons.append)
    assert tokenizer.ids("prompt") == reference(vocabulary).ids("prompt")
    assert not tokenizer.fast
    assert len(reasons) == 1


def test_without_the_fast_library_the_reference_serves_in_silence(
    vocabulary: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr("prefix_index.encoding.tokenizer.importlib.import_module", missing)
    assert not CheckedTokenizer(vocabulary, on_mismatch=pytest.fail).fast


def test_a_vocabulary_that_the_fast_library_cannot_load_is_said(
    vocabulary: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(text: str) -> Any:
        raise ValueError("unsupported")

    library = types.SimpleNamespace(Tokenizer=types.SimpleNamespace(from_json_str=refuse))
    monkeypatch.setattr("prefix_index.encoding.tokenizer.importlib.import_module", lambda name: library)
    reasons: list[str] = []
    assert not CheckedTokenizer(vocabulary, on_mismatch=reasons.append).fast
    assert len(reasons) == 1


@pytest.mark.parametrize("text", ["", "{}", "[]", "no json"])
def test_what_is_no_vocabulary_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"tokenizer\.json"):
        CheckedTokenizer(text, on_mismatch=pytest.fail)


def test_truncation_and_padding_of_the_file_are_not_applied(vocabulary: str) -> None:
    changed = json.loads(vocabulary)
    changed["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    for allow_fast in (True, False):
        tokenizer = CheckedTokenizer(json.dumps(changed), on_mismatch=pytest.fail, allow_fast=allow_fast)
        assert tokenizer.ids("one two three four five six") == reference(vocabulary).ids("one two three four five six")


def test_cuts_are_made_only_before_tokens_that_nothing_else_touches(
    vocabulary: str, vocabulary_with_greedy_tokens: str
) -> None:
    assert reference(vocabulary).cut_tokens() == ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    assert reference(vocabulary_with_greedy_tokens).cut_tokens() == []


def test_tokens_around_a_completion(vocabulary: str, vocabulary_with_bos: str) -> None:
    assert (reference(vocabulary).lead, reference(vocabulary).trail) == (b"", b"")
    assert (reference(vocabulary_with_bos).lead, reference(vocabulary_with_bos).trail) == (bytes(4), b"")

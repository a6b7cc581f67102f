from __future__ import annotations

from backends.engine.encoding import BytesEncoding, chain, from_ids, root, to_ids
from backends.engine.generation import TABLE, Output, four_byte_words


def test_a_hash_names_its_block_and_all_before_it() -> None:
    start = root("", "")
    one = chain(start, b"a" * 64 + b"b" * 64, 16, 9)
    other = chain(start, b"c" * 64 + b"b" * 64, 16, 9)
    assert len(one) == len(set(one + other)) - 2 == 2
    assert chain(start, b"a" * 64 + b"x" * 64, 16, 9)[0] == one[0]
    assert chain(start, b"a" * 127, 16, 9) == one[:1]
    assert chain(start, b"a" * 64 + b"b" * 64, 16, 1) == one[:1]


def test_adapter_and_salt_cannot_be_taken_for_each_other() -> None:
    assert len({root("", ""), root("a", ""), root("", "a"), root("ab", ""), root("a", "b")}) == 5


def test_bytes_are_framed_by_role_and_nul() -> None:
    encoding = BytesEncoding()
    messages: list[dict[str, object]] = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "hé"}]},
    ]
    assert encoding.chat(messages, {}).ids == "system\0be brief\0user\0hé\0".encode()
    assert encoding.chat(messages, {"tools": [{"a": 1}]}).ids.startswith(b'[{"a":1}]\0system\0')


def test_what_else_a_message_says_counts() -> None:
    encoding = BytesEncoding()
    call: dict[str, object] = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
    assert encoding.chat([call], {}).ids == b'assistant\0\0[{"id":"1"}]\0'
    first, second = ([{"role": "user", "content": [{"type": "image_url", "url": url}]}] for url in ("a", "b"))
    assert encoding.chat(first, {}).ids != encoding.chat(second, {}).ids


def test_ids_go_there_and_back() -> None:
    assert to_ids(from_ids([0, 1, 2**32 - 1]).ids) == [0, 1, 2**32 - 1]
    assert to_ids(b"abcde") == [int.from_bytes(b"abcd", "little"), ord("e")]
    assert BytesEncoding().text("abcde").tokens == 2


def test_output_is_made_of_words_of_one_token() -> None:
    words = four_byte_words()
    assert len(set(words.words)) == TABLE
    output, other = Output(words, 77), Output(words, 78)
    assert output.text(0, 1000) == output.ids(1000)
    assert output.text(3, 5) == output.word(3) + output.word(4)
    assert output.text(0, 20) != other.text(0, 20)

from __future__ import annotations

import asyncio
import inspect
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefix_index.encoding.bytes_encoder import BytesEncoder
from prefix_index.encoding.protocol import Encoded, Namespace, Prompt
from vocabulary import KEY_BYTES

NAMESPACE = Namespace("model")
LONG = "The quick brown fox jumps over the lazy dog. " * 30


def encode(prompt: Prompt, encoder: BytesEncoder | None = None, namespace: Namespace = NAMESPACE) -> Encoded | None:
    own = encoder or BytesEncoder(b"secret")
    try:
        result = own.encode(prompt, namespace)
        if inspect.isawaitable(result):

            async def wait() -> Encoded | None:
                return await result

            return asyncio.run(wait())
        return result
    finally:
        if encoder is None:
            own.close()


def chat(messages: Any, tools: Any = None) -> Prompt:
    return Prompt(json.dumps(messages).encode(), None, None if tools is None else json.dumps(tools).encode())


def completion(prompt: Any) -> Prompt:
    return Prompt(None, json.dumps(prompt).encode())


def keys_of(prompt: Prompt, encoder: BytesEncoder | None = None) -> bytes:
    encoded = encode(prompt, encoder)
    assert encoded is not None
    return encoded.keys


def user(content: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **fields}


def test_counts_are_bytes_in_blocks_of_64() -> None:
    encoded = encode(chat([user("x" * 100)]))
    assert encoded is not None
    assert (encoded.units, encoded.block_units) == (len("user") + 1 + 100 + 1, 64)
    assert len(encoded.keys) == KEY_BYTES
    assert encoded.resumed_blocks == 0


@pytest.mark.parametrize("prompt", ["", [], None, {}, [[]], [""], 5, True, [None], [{}], [[["a"]]], [[1, "a"]]])
def test_o24_prompts_without_text_or_ids_are_none(prompt: Any) -> None:
    assert encode(completion(prompt)) is None


def test_o24_a_missing_prompt_is_none() -> None:
    assert encode(Prompt(None, None)) is None


@pytest.mark.parametrize(
    "ids", [[1, -1], [1, 2**32], [1, True], [True], [1, 2.0], [1.5], [10**400], [1, None], [1, "a"]]
)
def test_o24_a_list_with_something_that_is_no_id_is_none(ids: list[Any]) -> None:
    assert encode(completion(ids)) is None
    assert encode(completion([ids])) is None


def test_o24_token_ids_are_hashed_as_ids_sixteen_to_a_block() -> None:
    ids = [*range(40), 2**32 - 1]
    encoded = encode(completion(ids))
    assert encoded is not None
    assert len(encoded.keys) == 2 * KEY_BYTES
    assert keys_of(completion([*range(32), 7])) == encoded.keys
    assert keys_of(completion([*range(31), 99])) != encoded.keys
    assert keys_of(completion([*range(31), 99]))[:KEY_BYTES] == encoded.keys[:KEY_BYTES]


def test_o24_a_batch_is_routed_by_its_first_prompt() -> None:
    assert keys_of(completion([LONG, "other"])) == keys_of(completion(LONG))
    assert keys_of(completion([[*range(64)], [1]])) == keys_of(completion([*range(64)]))


def test_o25_text_parts_and_a_string_give_equal_keys() -> None:
    whole = keys_of(chat([user(LONG)]))
    assert whole
    assert keys_of(chat([user([{"type": "text", "text": LONG}])])) == whole
    assert keys_of(chat([user([{"type": "text", "text": LONG[:50]}, {"type": "text", "text": LONG[50:]}])])) == whole
    assert keys_of(chat([user([{"type": "text", "text": LONG, "cache_control": {"type": "ephemeral"}}])])) == whole


def test_o25_two_long_chats_in_part_form_look_different() -> None:
    one, two = (keys_of(chat([user([{"type": "text", "text": start + LONG}])])) for start in "ab")
    assert one != two


def test_o25_null_and_absent_content_are_empty_and_tool_calls_count() -> None:
    def turn(message: dict[str, Any]) -> bytes:
        return keys_of(chat([message, user(LONG)]))

    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    other = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 2}'}}
    assert turn({"role": "assistant"}) == turn({"role": "assistant", "content": None})
    assert turn({"role": "assistant"}) == turn({"role": "assistant", "content": ""})
    assert turn({"role": "assistant", "content": "", "tool_calls": None}) == turn({"role": "assistant"})
    different = [
        turn({"role": "assistant"}),
        turn({"role": "assistant", "tool_calls": [call]}),
        turn({"role": "assistant", "tool_calls": [other]}),
        turn({"role": "tool", "content": ""}),
        turn({"role": "tool", "content": "", "tool_call_id": "1"}),
        turn({"role": "tool", "content": "", "name": "1"}),
    ]
    assert len(set(different)) == len(different)


def test_other_parts_enter_at_their_position() -> None:
    def image(url: str) -> dict[str, Any]:
        return {"type": "image_url", "image_url": {"url": url}}

    text = {"type": "text", "text": "x" * 200}
    plain = keys_of(chat([user([text, text])]))
    shown = [
        keys_of(chat([user([text, image(url), text])]))
        for url in (
            "https://a.example/1.png",
            "https://a.example/2.png",
            "data:image/png;base64," + "A" * 9000,
            "data:image/png;base64," + "A" * 8999 + "B",
        )
    ]
    assert len({plain, *shown}) == 5
    assert {keys[: 3 * KEY_BYTES] for keys in shown} == {plain[: 3 * KEY_BYTES]}
    encoded = encode(chat([user([image("data:image/png;base64," + "A" * 90_000)])]))
    assert encoded is not None
    assert encoded.units < 100


def test_nul_and_markers_in_text_cannot_imitate_structure() -> None:
    plain = [{"role": "a", "content": "b"}, {"role": "c", "content": "d"}, user(LONG)]
    forged = [{"role": "a", "content": "b\0c\0d"}, user(LONG)]
    assert keys_of(chat(plain)) != keys_of(chat(forged))


def test_tools_come_first_and_an_empty_list_is_none() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert keys_of(chat([user(LONG)], tools)) != keys_of(chat([user(LONG)]))
    assert keys_of(chat([user(LONG)], [])) == keys_of(chat([user(LONG)]))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"[1]",
        b'["a"]',
        b"[null]",
        b"[",
        b"[{}",
        b"[{}{}]",
        b"[{}]]",
        b"[]]",
        b"\xff",
        b'[{"role":"\xff"}]',
        b"[" * 9000,
    ],
)
def test_messages_of_odd_shape_are_none(raw: bytes) -> None:
    assert encode(Prompt(raw, None)) is None


@pytest.mark.parametrize(
    "namespace", [Namespace("other"), Namespace("model", "adapter"), Namespace("model", "", "salt")]
)
def test_namespaces_share_no_key(namespace: Namespace) -> None:
    mine, other = encode(completion(LONG)), encode(completion(LONG), None, namespace)
    assert mine is not None
    assert other is not None
    blocks = [{keys[at : at + 8] for at in range(0, len(keys), 8)} for keys in (mine.keys, other.keys)]
    assert not blocks[0] & blocks[1]


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)
odd_messages = st.dictionaries(
    st.sampled_from(["role", "content", "name", "tool_calls", "type", "text"]), json_values, max_size=5
)
surrogates = st.text(st.characters(min_codepoint=0xD7F0, max_codepoint=0xE010), max_size=5)
texts = st.lists(
    st.text(max_size=20) | surrogates | st.sampled_from(["\0", "é", "🙂", "e\u0301", "שלום"]), max_size=8
).map("".join)


@given(json_values, json_values)
def test_no_json_value_raises(value: Any, tools: Any) -> None:
    encode(chat(value, tools))
    encode(completion(value))


@given(st.lists(odd_messages, min_size=1, max_size=4))
def test_messages_of_any_fields_have_keys(messages: list[Any]) -> None:
    assert encode(chat(messages)) is not None


def test_nesting_without_end_is_none_or_keys_and_never_an_error() -> None:
    for depth in (100, 900, 5_000, 100_000):
        encode(Prompt(b'[{"role":"user","content":' + b"[" * depth + b"]" * depth + b"}]", None))
        encode(Prompt(None, b"[" * depth + b"]" * depth))


@given(st.lists(texts, min_size=1, max_size=6), texts)
def test_o29_equal_text_gives_equal_keys_and_edges_do_not_depend_on_what_follows(
    contents: list[str], more: str
) -> None:
    messages = [user(text) for text in contents]
    encoder = BytesEncoder(b"secret")
    short = keys_of(chat(messages), encoder)
    assert keys_of(chat(messages)) == short == keys_of(chat(messages), encoder)
    longer = keys_of(chat([*messages, user(more)]))
    assert longer.startswith(short)
    assert keys_of(chat([*messages, user(more)]), encoder) == longer
    encoder.close()


@given(texts, texts)
def test_o29_a_completion_cut_anywhere_keeps_its_full_blocks(head: str, tail: str) -> None:
    text = head * 9 + "x"
    assert keys_of(completion(text + tail * 3)).startswith(keys_of(completion(text)))


def conversation(turns: int, size: int = 300) -> list[dict[str, Any]]:
    return [user(f"{turn}: " + "word " * (size // 5)) for turn in range(turns)]


@pytest.mark.parametrize("turns", [1, 2, 7, 8, 9, 30])
@pytest.mark.parametrize("added", [1, 2, 8, 20])
def test_a_turn_takes_up_where_the_last_one_ended(turns: int, added: int) -> None:
    encoder = BytesEncoder(b"secret")
    before = encode(chat(conversation(turns)), encoder)
    after = encode(chat(conversation(turns + added)), encoder)
    assert before is not None
    assert after is not None
    assert after.resumed_blocks == len(before.keys) // KEY_BYTES > 0
    fresh = encode(chat(conversation(turns + added)))
    assert fresh is not None
    assert (after.keys, after.units) == (fresh.keys, fresh.units)
    assert fresh.resumed_blocks == 0
    encoder.close()


def test_a_changed_early_message_tools_or_namespace_is_not_taken_up() -> None:
    encoder = BytesEncoder(b"secret")
    encode(chat(conversation(4)), encoder)
    changed = [user("changed"), *conversation(5)[1:]]
    for prompt, namespace in (
        (chat(changed), NAMESPACE),
        (chat(conversation(5), [{"a": 1}]), NAMESPACE),
        (chat(conversation(5)), Namespace("model", "", "salt")),
    ):
        encoded = encode(prompt, encoder, namespace)
        assert encoded is not None
        assert encoded.resumed_blocks == 0
    encoder.close()


def test_sessions_with_one_long_system_prompt_share_its_work() -> None:
    encoder = BytesEncoder(b"secret")
    system = {"role": "system", "content": LONG * 4}
    first = keys_of(chat([system, user("one")]), encoder)
    second = encode(chat([system, user("two" * 50)]), encoder)
    assert second is not None
    assert second.resumed_blocks == (len(LONG) * 4 + len("system") + 2) // 64
    assert second.keys == keys_of(chat([system, user("two" * 50)]))
    assert second.keys.startswith(first[: second.resumed_blocks * KEY_BYTES])
    encoder.close()


@pytest.mark.parametrize("size", [100, 5_000, 16_384, 40_000, 150_000])
def test_a_completion_that_extends_an_earlier_one_resumes_at_its_end(size: int) -> None:
    encoder = BytesEncoder(b"secret")
    text = "".join(f"{number} " for number in range(size))[:size]
    before = keys_of(completion(text), encoder)
    for more in ("!" * 130, "!" * 40_000):
        after = encode(completion(text + more), encoder)
        assert after is not None
        assert after.keys == keys_of(completion(text + more))
        assert after.resumed_blocks == len(before) // KEY_BYTES
        break_at = encode(completion(text[:-1] + "?" + more), encoder)
        assert break_at is not None
        assert break_at.keys == keys_of(completion(text[:-1] + "?" + more))
        encoder.close()
        encoder = BytesEncoder(b"secret")
        encode(completion(text), encoder)
    encoder.close()


async def test_a_long_cold_prompt_is_encoded_off_the_loop_with_the_same_keys() -> None:
    encoder = BytesEncoder(b"secret")
    messages = [user("x" * 700_000), user("y" * 700_000), user("z" * 10)]
    first = encoder.encode(chat(messages[:1]), NAMESPACE)
    assert inspect.isawaitable(first)
    head = await first
    second = encoder.encode(chat(messages), NAMESPACE)
    assert inspect.isawaitable(second)
    whole = await second
    text = encoder.encode(completion("x" * 700_000), NAMESPACE)
    assert inspect.isawaitable(text)
    assert await text is not None
    assert head is not None
    assert whole is not None
    assert whole.resumed_blocks == len(head.keys) // KEY_BYTES
    assert whole.keys.startswith(head.keys)
    encoder.close()


async def test_a_closed_encoder_refuses_long_work_and_still_does_short() -> None:
    encoder = BytesEncoder(b"secret")
    encoder.close()
    assert encoder.encode(chat([user("x" * 700_000)]), NAMESPACE) is None
    assert encoder.encode(chat([user("x")]), NAMESPACE) is not None


def test_the_cache_of_turns_is_bounded() -> None:
    encoder = BytesEncoder(b"secret", max_cache_bytes=20_000)
    for number in range(200):
        encode(chat([user(f"{number}" + LONG)]), encoder)
        assert encoder._turns.size_bytes <= 20_000
    again = encode(chat([user("199" + LONG), user("next")]), encoder)
    assert again is not None
    assert again.resumed_blocks > 0
    encoder.close()


@pytest.mark.parametrize("size", [5, 62, 300, 5_000])
def test_a_turn_names_the_prompt_before_it_even_where_no_block_is_full(size: int) -> None:
    encoder = BytesEncoder(b"secret")
    messages = [user("x" * size), user("y"), user("z")]
    first, other, again, second, single = [
        encode(chat(some), encoder)
        for some in (messages[:2], [messages[0], user("!")], messages[:2], messages, messages[:1])
    ]
    assert first is not None
    assert other is not None
    assert again is not None
    assert second is not None
    assert single is not None
    assert len({0, first.prompt_id, other.prompt_id, second.prompt_id, single.prompt_id}) == 5
    assert (first.resumed_id, other.resumed_id, second.resumed_id, single.resumed_id) == (0, 0, first.prompt_id, 0)
    assert again.prompt_id == again.resumed_id == first.prompt_id
    fresh = encode(chat(messages))
    assert fresh is not None
    assert fresh.prompt_id == second.prompt_id
    encoder.close()


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(1, 150)), min_size=1, max_size=6))
def test_a_completion_names_the_longest_prompt_that_is_its_head(prompts: list[tuple[int, int]]) -> None:
    encoder = BytesEncoder(b"secret")
    seen: dict[str, int] = {}
    for letter, size in prompts:
        text = "x" * (size // 2) + "ab"[letter] * (size - size // 2)
        encoded = encode(completion(text), encoder)
        assert encoded is not None
        heads = [earlier for earlier in seen if text.startswith(earlier)]
        assert encoded.resumed_id == (seen[max(heads, key=len)] if heads else 0)
        seen[text] = encoded.prompt_id
    assert len(set(seen.values())) == len(seen)
    encoder.close()


def result(content: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "toolu_1", "content": content, **fields}


def test_what_tools_say_counts_as_text() -> None:
    """Anthropic's results and calls of tools are most of an agent's prompt: as digests they would be 32 bytes each."""
    text = LONG * 4
    as_text = encode(chat([user([result(text)])]))
    assert as_text is not None
    assert len(text) < as_text.units < len(text) + 200
    assert keys_of(chat([user([result(text)])])) == keys_of(chat([user([result([{"type": "text", "text": text}])])]))
    longer = keys_of(chat([user([result(text + LONG)])]))
    assert longer[: as_text.units // 128 * KEY_BYTES] == as_text.keys[: as_text.units // 128 * KEY_BYTES]
    marked = {"cache_control": {"type": "ephemeral"}}
    assert keys_of(chat([user([result(text, **marked)])])) == as_text.keys
    call = {"type": "tool_use", "id": "toolu_1", "name": "write", "input": {"text": text}}
    called = encode(chat([{"role": "assistant", "content": [call]}]))
    assert called is not None
    assert called.units > len(text)


def test_images_in_results_are_told_apart_and_short() -> None:
    images = [{"type": "image", "source": {"type": "base64", "data": letter * 50_000}} for letter in "ab"]
    one, two = (encode(chat([user([result([image, {"type": "text", "text": LONG}])])])) for image in images)
    assert one is not None
    assert two is not None
    assert one.keys != two.keys
    assert one.units < len(LONG) + 300


@pytest.mark.parametrize("content", [None, "", [], {}, 5, [None], [[]], [result("x")]])
def test_odd_results_are_encoded_all_the_same(content: Any) -> None:
    assert encode(chat([user(LONG), user([result(content)])])) is not None


def test_items_of_responses_differ_by_all_that_they_hold() -> None:
    items = [
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{ }"},
        {"type": "function_call_output", "call_id": "c", "output": "1"},
        {"type": "function_call_output", "call_id": "c", "output": "2"},
        {"type": "function_call_output", "call_id": "d", "output": "2"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "a"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "b"}]},
    ]
    assert len({keys_of(chat([user("x" * 200), item, user("y" * 64)])) for item in items}) == len(items)
    told = encode(chat([user("x"), {"type": "function_call_output", "call_id": "c", "output": LONG}]))
    assert told is not None
    assert told.units > len(LONG)

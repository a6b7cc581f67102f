"""What engines make of the messages of other APIs before they render them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefix_index.encoding.as_chat import as_chat, tool_as_chat
from prefix_index.encoding.chat_text import template_messages, template_tools

USER = {"role": "user", "content": "read it"}
CALL = {"id": "t1", "type": "function", "function": {"name": "read", "arguments": '{"path": "a"}'}}
ANY = st.recursive(
    st.none() | st.integers() | st.text(max_size=3) | st.sampled_from(["tool_use", "tool_result", "thinking"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "content", "role", "input", "output"]), inner, max_size=4)
    ),
    max_leaves=8,
)


def test_a_turn_with_tools_of_anthropics_api() -> None:
    image = {"type": "image", "source": {"type": "url", "url": "http://x/y.png"}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "a"}, image, "b"]}
    messages: list[dict[str, Any]] = [
        USER,
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "I will"},
                {"type": "tool_use", "id": "t1", "name": "read", "input": {"path": "a"}},
            ],
        },
        {"role": "user", "content": [result, {"type": "text", "text": "go on"}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t2", "content": "plain"}]},
    ]
    assert as_chat(messages) == [
        USER,
        {
            "role": "assistant",
            "reasoning": "hm",
            "tool_calls": [CALL],
            "content": [{"type": "text", "text": "I will"}],
        },
        {"role": "tool", "tool_call_id": "t1", "content": "a\nb"},
        {"role": "user", "content": [image]},
        {"role": "user", "content": [{"type": "text", "text": "go on"}]},
        {"role": "tool", "tool_call_id": "t2", "content": "plain"},
    ]


def test_items_of_responses() -> None:
    items: list[dict[str, Any]] = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "read it"}]},
        {"type": "reasoning", "summary": []},
        {"type": "function_call", "call_id": "t1", "name": "read", "arguments": '{"path": "a"}'},
        {"type": "function_call_output", "call_id": "t1", "output": "text"},
    ]
    assert as_chat(items) == [
        items[0],
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "t1", "content": "text"},
    ]


def test_chat_stays_what_it_is() -> None:
    messages: list[dict[str, Any]] = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "x"},
    ]
    assert as_chat(messages) is messages


@pytest.mark.parametrize("schema", ["input_schema", "parameters"])
def test_tools(schema: str) -> None:
    nested = {"type": "function", "function": {"name": "f", "description": None, "parameters": {"type": "object"}}}
    assert tool_as_chat({"name": "f", schema: {"type": "object"}}) == nested
    assert tool_as_chat(nested) == nested
    assert template_tools(json.dumps([{"name": "f", schema: {"type": "object"}}, 5]).encode()) == [nested, 5]


@given(st.lists(st.fixed_dictionaries({}, optional={"role": st.just("user"), "type": ANY, "content": ANY}), min_size=1))
def test_no_shape_is_too_odd(messages: list[dict[str, Any]]) -> None:
    as_chat(messages)
    template_messages(json.dumps(messages).encode(), as_parts=False)

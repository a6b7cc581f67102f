"""Messages, tools and arguments as vLLM 0.32.0 hands them to a template. Order counts where templates write JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from prefix_index.encoding.chat_text import template_arguments, template_messages, template_tools


def messages(*given: dict[str, Any], parts: bool = False, developer: bool = True) -> list[dict[str, Any]]:
    found = template_messages(json.dumps(given).encode(), parts, knows_developer=developer)
    assert found is not None
    return found


def text(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": one} for one in texts]


def calls(**function: Any) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [{"type": "function", "function": function, "id": "c1", "index": 0}]}


@pytest.mark.parametrize(
    ("content", "joined", "parts"),
    [
        ("a", "a", text("a")),
        ("", "", text("")),
        (None, "", []),
        ([], "", []),
        (["a", "b"], "a\nb", text("a", "b")),
        (text("a", "b"), "a\nb", text("a", "b")),
        ([{"type": "text", "text": None}, {"type": "text", "text": "b"}], "b", text("b")),
        ([{"type": "input_text", "text": "a"}, {"type": "refusal", "refusal": "no"}], "a\nno", text("a", "no")),
    ],
)
def test_content_is_text_or_parts_whatever_the_client_sent(content: Any, joined: str, parts: Any) -> None:
    assert messages({"role": "user", "content": content}) == [{"role": "user", "content": joined}]
    assert messages({"role": "user", "content": content}, parts=True) == [{"role": "user", "content": parts}]


def test_the_result_of_a_tool_is_always_text() -> None:
    sent = {"role": "tool", "tool_call_id": "c1", "content": text("a", "b"), "extra": 1}
    assert messages(sent, parts=True) == [{"role": "tool", "content": "a\nb", "tool_call_id": "c1"}]


def test_members_that_a_role_does_not_have_are_left_out() -> None:
    sent = {"role": "user", "content": "a", "name": "n", "tool_call_id": "c", "tool_calls": [1], "x": 2, "refusal": "r"}
    assert messages(sent) == [{"role": "user", "content": "a", "name": "n"}]


@pytest.mark.parametrize(
    ("arguments", "seen"),
    [
        ('{"b": 1, "a": [1.5, true]}', '{"b": 1, "a": [1.5, true]}'),
        ("not json", "{}"),
        ("[1]", "{}"),
        ("5", "{}"),
        ("null", "{}"),
        ("", '""'),
        ({"b": 1}, '{"b": 1}'),
    ],
)
def test_arguments_of_calls_are_objects_in_their_own_order(arguments: Any, seen: str) -> None:
    (message,) = messages(calls(arguments=arguments, name="f"))
    (call,) = message["tool_calls"]
    assert json.dumps(call["function"]["arguments"]) == seen


def test_members_of_calls_come_in_one_order_and_others_go() -> None:
    (message,) = messages(calls(name="f", arguments="{}", strict=True))
    assert json.dumps(message["tool_calls"]) == (
        '[{"id": "c1", "function": {"arguments": {}, "name": "f"}, "type": "function"}]'
    )
    assert message["content"] == ""


def test_no_calls_are_no_member() -> None:
    assert messages({"role": "assistant", "content": "a", "tool_calls": []}) == [{"role": "assistant", "content": "a"}]


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_thoughts_have_both_names(name: str) -> None:
    (message,) = messages({"role": "assistant", "content": "a", name: "hm"})
    assert (message["reasoning"], message["reasoning_content"]) == ("hm", "hm")
    assert "reasoning" not in messages({"role": "user", "content": "a", name: "hm"})[0]


@pytest.mark.parametrize(
    ("content", "left"),
    [
        ("x-anthropic-billing-header: cch=1;\nYou help.", "You help."),
        ("x-anthropic-billing-header: cch=1;", ""),
        (text("x-anthropic-billing-header: cch=1;", "You help."), "You help."),
        ("You help.\nx-anthropic-billing-header: cch=1;", "You help.\nx-anthropic-billing-header: cch=1;"),
    ],
)
def test_the_line_that_is_new_with_every_request_goes(content: Any, left: str) -> None:
    assert messages({"role": "system", "content": content}) == [{"role": "system", "content": left}]
    (user,) = messages({"role": "user", "content": content})
    assert "billing" in user["content"]


def test_developers_become_one_system_message_where_the_template_has_no_such_role() -> None:
    sent: list[dict[str, Any]] = [
        {"role": "system", "content": "a"},
        {"role": "user", "content": "u"},
        {"role": "developer", "content": text("b", "c")},
    ]
    merged = [{"role": "system", "content": "a\n\nb\nc"}, {"role": "user", "content": "u"}]
    assert messages(*sent, developer=False) == merged
    assert [one["role"] for one in messages(*sent)] == ["system", "user", "developer"]
    assert messages(sent[2], developer=False) == [{"role": "system", "content": "b\nc"}]
    assert messages(sent[0], sent[1], developer=False) == sent[:2]


def test_tools_have_their_members_in_one_order_and_no_others() -> None:
    sent = {"function": {"parameters": {"z": 1, "a": 2}, "name": "f", "x": 1}, "x": 2, "type": "function"}
    assert json.dumps(template_tools(json.dumps([sent]).encode())) == (
        '[{"type": "function", "function": {"name": "f", "description": null, "parameters": {"z": 1, "a": 2}}}]'
    )
    strict = {"type": "function", "function": {"name": "f", "strict": True}, "defer_loading": True}
    assert template_tools(json.dumps([strict]).encode()) == [
        {
            "type": "function",
            "function": {"name": "f", "description": None, "parameters": None, "strict": True, "defer_loading": True},
            "defer_loading": True,
        }
    ]


def test_arguments_of_the_template() -> None:
    assert template_arguments(None) == {}
    assert template_arguments(b'{"a": 1}') == {"a": 1}
    for reserved in (b'{"messages": []}', b'{"chat_template": "x"}', b'{"tokenize": true}', b'{"tools": []}'):
        assert template_arguments(reserved) is None

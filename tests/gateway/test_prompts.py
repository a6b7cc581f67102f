"""From bodies of each API to prompts: what must look alike does, and what an engine sees is all there."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.body import parse_body
from gateway.prompts import chat_prompt, completions_prompt, messages_prompt, responses_prompt
from prefix_index.encoding.bytes_encoder import BytesEncoder
from prefix_index.encoding.protocol import Encoded, Namespace, Prompt

USER = {"role": "user", "content": "hello"}
TOOLS = [{"name": "read", "description": "reads", "input_schema": {"type": "object"}}]
MARK = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
BILLING = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=%s;"}


def messages(body: dict[str, Any], **dump: Any) -> Prompt:
    return messages_prompt(parse_body(json.dumps(body, **dump).encode()))


def responses(body: dict[str, Any]) -> Prompt | None:
    return responses_prompt(parse_body(json.dumps(body).encode()))


def keys(prompt: Prompt | None) -> bytes:
    assert prompt is not None
    encoder = BytesEncoder(b"secret")
    encoded = encoder.encode(prompt, Namespace("m"))
    encoder.close()
    assert isinstance(encoded, Encoded)
    return encoded.keys


def decoded(prompt: Prompt | None) -> Any:
    assert prompt is not None
    assert prompt.messages is not None
    return json.loads(prompt.messages)


def test_chat_and_completions_read_their_own_fields_only() -> None:
    body = parse_body(b'{"messages": [1], "prompt": "p", "tools": [2], "chat_template_kwargs": {"a": 1}}')
    assert chat_prompt(body) == Prompt(b"[1]", None, b"[2]", b'{"a": 1}')
    assert completions_prompt(body) == Prompt(None, b'"p"')
    empty = parse_body(b"{}")
    assert chat_prompt(empty) == completions_prompt(empty) == Prompt(None, None)


@pytest.mark.parametrize("dump", [{}, {"indent": 1}, {"separators": (",", ":")}])
@pytest.mark.parametrize("system", ["be kind", [{"type": "text", "text": "be kind"}]])
def test_system_is_the_first_message(system: Any, dump: dict[str, Any]) -> None:
    prompt = messages({"system": system, "messages": [USER], "tools": TOOLS}, **dump)
    assert decoded(prompt) == [{"role": "system", "content": "be kind"}, USER]
    assert json.loads(prompt.tools or b"") == TOOLS
    chat = chat_prompt(parse_body(json.dumps({"messages": [{"role": "system", "content": "be kind"}, USER]}).encode()))
    assert keys(prompt._replace(tools=None)) == keys(chat)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"messages": [USER]}, [USER]),
        ({"messages": [USER], "system": None}, [USER]),
        ({"messages": [], "system": "s"}, [{"role": "system", "content": "s"}]),
        ({"messages": [USER], "system": ""}, [{"role": "system", "content": ""}, USER]),
        ({"messages": "text", "system": "s"}, "text"),
        ({"messages": {"a": 1}, "system": "s"}, {"a": 1}),
    ],
)
def test_odd_shapes_of_messages(body: dict[str, Any], expected: Any) -> None:
    assert decoded(messages(body)) == expected


@pytest.mark.parametrize("system", [[{"type": "image"}], [5], 5, {"text": "x"}, [{"text": "lone \ud83d"}]])
def test_odd_systems_stay_as_they_are(system: Any) -> None:
    assert decoded(messages({"system": system, "messages": [USER]})) == [{"role": "system", "content": system}, USER]


@pytest.mark.parametrize(
    ("fields", "seen"),
    [
        ({"reasoning_effort": "low"}, {"reasoning_effort": "low", "enable_thinking": True}),
        ({"reasoning_effort": "none"}, {"reasoning_effort": "none", "enable_thinking": False}),
        (
            {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True, "a": 1}},
            {"enable_thinking": True, "a": 1, "reasoning_effort": "none"},
        ),
        (
            {"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high", "enable_thinking": 1}},
            {"reasoning_effort": "low", "enable_thinking": 1},
        ),
        ({"add_generation_prompt": False}, {"add_generation_prompt": False}),
        ({"continue_final_message": True, "chat_template_kwargs": None}, {"continue_final_message": True}),
        ({"documents": [{"title": "t"}], "chat_template_kwargs": [1]}, {"documents": [{"title": "t"}]}),
    ],
)
def test_fields_that_a_template_sees_are_among_its_arguments(fields: dict[str, Any], seen: dict[str, Any]) -> None:
    found = chat_prompt(parse_body(json.dumps({"messages": [USER], **fields}).encode())).template_arguments
    assert found is not None
    assert json.loads(found) == seen


@pytest.mark.parametrize(
    ("fields", "effort"),
    [
        ({"thinking": {"type": "disabled"}}, "none"),
        ({"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}}, "none"),
        ({"output_config": {"effort": "high"}}, "high"),
        ({"thinking": {"type": "enabled", "budget_tokens": 9}}, None),
        ({"thinking": "odd", "output_config": [1]}, None),
    ],
)
def test_how_hard_to_think_is_an_argument_of_the_template(fields: dict[str, Any], effort: str | None) -> None:
    prompt = messages_prompt(parse_body(json.dumps({"messages": [USER], **fields}).encode()))
    seen = None if effort is None else {"reasoning_effort": effort, "enable_thinking": effort != "none"}
    assert (None if prompt.template_arguments is None else json.loads(prompt.template_arguments)) == seen


def test_responses_say_it_their_own_way() -> None:
    prompt = responses_prompt(parse_body(b'{"input": "hi", "reasoning": {"effort": "low"}}'))
    assert prompt is not None
    assert json.loads(prompt.template_arguments or b"") == {"reasoning_effort": "low", "enable_thinking": True}


def test_no_messages_are_no_prompt() -> None:
    assert messages({"system": "s"}).messages is None
    assert decoded(messages_prompt(parse_body(b'{"system": "s", "messages": [ \n ]}'))) == [
        {"role": "system", "content": "s"}
    ]


def test_a_turn_repeats_the_one_before_byte_for_byte() -> None:
    """Where the mark of the cache wanders, as Claude Code's does."""
    text = [{"type": "text", "text": f"part {n}"} for n in range(4)]
    first = {
        "system": [{**text[0], **MARK}],
        "messages": [{"role": "user", "content": [text[1], {**text[2], **MARK}]}],
    }
    second = {
        "system": [{**text[0], **MARK}],
        "messages": [
            {"role": "user", "content": [text[1], text[2]]},
            {"role": "assistant", "content": "ok"},
            {"role": "user", "content": [{**MARK, **text[3]}]},
        ],
    }
    one, two = messages(first).messages, messages(second).messages
    assert one is not None
    assert two is not None
    assert two.startswith(one[:-1])
    assert b"cache_control" not in two
    assert decoded(messages(second))[3]["content"] == [text[3]]


@pytest.mark.parametrize("mark", ['{"cache_control": null, "a": 1}', '{ "cache_control" : { "type":"x" } , "a":1 }'])
def test_marks_in_every_place(mark: str) -> None:
    body = '{"messages": [' + mark + ', {"b": 2 , "cache_control": {"type": "x"} }, {"cache_control": {}}]}'
    assert decoded(messages_prompt(parse_body(body.encode()))) == [{"a": 1}, {"b": 2}, {}]


def test_text_about_marks_stays() -> None:
    text = 'say "cache_control": {"type": "ephemeral"}, or ,"cache_control":null'
    body = {"messages": [{"role": "user", "content": text}, {"role": "cache_control", "content": "x"}]}
    assert decoded(messages(body)) == body["messages"]


def test_the_billing_header_is_not_part_of_the_prompt() -> None:
    """Engines drop it too, else its nonce would break every prefix (vllm-project/vllm#36829)."""
    rest = [{"type": "text", "text": "You are Claude Code. " * 20}, {"type": "text", "text": "more"}]
    one, two = (
        messages({"system": [{**BILLING, "text": BILLING["text"] % nonce}, *rest], "messages": [USER]})
        for nonce in ("aaaaa", "bbbbb")
    )
    assert one == two
    assert decoded(one)[0]["content"] == "You are Claude Code. " * 20 + "more", "joined as engines do"
    quoted = {"type": "text", "text": "what is x-anthropic-billing-header?"}
    assert decoded(messages({"system": [quoted], "messages": [USER]}))[0]["content"] == quoted["text"]
    plain = "x-anthropic-billing-header as a plain text"
    assert decoded(messages({"system": plain, "messages": [USER]}))[0]["content"] == plain


@pytest.mark.parametrize("given", ["hello", [USER]])
def test_input_of_responses(given: Any) -> None:
    prompt = responses({"instructions": "be kind", "input": given})
    assert decoded(prompt) == [{"role": "system", "content": "be kind"}, USER]
    assert decoded(responses({"input": given, "instructions": None})) == [USER]


def test_responses_that_go_on_elsewhere_are_no_prompt() -> None:
    assert responses({"input": "x", "previous_response_id": "resp_1"}) is None
    assert responses({"input": "x", "conversation": "conv_1"}) is None
    nothing = responses({"instructions": "x"})
    assert nothing is not None
    assert nothing.messages is None

from __future__ import annotations

import itertools
from datetime import datetime
from typing import Any

import pytest

from prefix_index.encoding.chat_text import template_messages
from prefix_index.encoding.template import ChatTemplate

MESSAGES: list[dict[str, Any]] = [{"role": "user", "content": "hello <b> é"}]


def render(source: str, messages: list[dict[str, Any]] | None = None, **options: Any) -> str | None:
    return ChatTemplate(source, **options).render(MESSAGES if messages is None else messages, None, {}, 1000)


def test_blocks_leave_no_blank_lines_behind() -> None:
    assert render("{% for m in messages %}\n  {% if true %}\nx\n  {% endif %}\n{% endfor %}\n") == "x\n"


def test_what_templates_of_transformers_use() -> None:
    assert render("{{ messages[0] | tojson }}") == '{"role": "user", "content": "hello <b> é"}'
    assert render("{{ {'a': [1]} | tojson(indent=1) }}") == '{\n "a": [\n  1\n ]\n}'
    assert render("{{ bos_token }}{{ add_generation_prompt }}", special_tokens={"bos_token": "<s>"}) == "<s>True"
    assert render("{{ strftime_now('%Y') }}", now=lambda: datetime(2031, 5, 1)) == "2031"
    assert render("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "01"
    assert render("a{% generation %}b{{ 1 }}{% endgeneration %}c") == "ab1c"
    assert render("{{ tools is none }}{{ documents is none }}") == "TrueTrue"


def test_pieces_without_text_do_not_end_the_output() -> None:
    assert render("{% for i in range(40) %}{{ '' }}{% endfor %}end") == "end"


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[0].content.nothing.there }}",
        "{{ 1 / 0 }}",
        "{{ ''.__class__.__mro__ }}",
        "{% set _ = messages.append(1) %}",
        "{{ messages[0] + 1 }}",
    ],
)
def test_a_template_that_refuses_or_breaks_gives_no_text(source: str) -> None:
    assert render(source) is None


def test_output_is_bounded_by_the_input() -> None:
    assert render("{% for i in range(100) %}{{ 'x' * 1000 }}{% endfor %}") is None
    assert render("{% for i in range(10) %}{{ 'x' * 1000 }}{% endfor %}") == "x" * 10_000


def test_time_is_bounded() -> None:
    clock = itertools.count()
    slow = "{% for i in range(1000) %}x{% endfor %}"
    assert render(slow, time_limit_s=5, monotonic_s=lambda: float(next(clock))) is None
    assert render(slow, time_limit_s=5, monotonic_s=lambda: 0.0) == "x" * 1000


def test_a_template_that_does_not_compile_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="does not compile"):
        ChatTemplate("{% for %}")


def test_what_is_set_in_a_generation_block_ends_with_it() -> None:
    source = "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}"
    assert render(source) == "21"


@pytest.mark.parametrize(
    ("options", "written"),
    [
        ("", '{"b": "<é>", "a": [1.0, null]}'),
        ("ensure_ascii=True", '{"b": "<\\u00e9>", "a": [1.0, null]}'),
        ("sort_keys=True", '{"a": [1.0, null], "b": "<é>"}'),
        ("separators=(',', ':')", '{"b":"<é>","a":[1.0,null]}'),
        ("indent=2, separators=(',', ': ')", '{\n  "b": "<é>",\n  "a": [\n    1.0,\n    null\n  ]\n}'),
    ],
)
def test_json_is_written_as_python_does(options: str, written: str) -> None:
    assert render("{{ {'b': '<é>', 'a': [1.0, none]} | tojson(" + options + ") }}") == written


def test_arguments_go_before_special_tokens_and_defaults() -> None:
    template = ChatTemplate(
        "{{ bos_token }}|{{ add_generation_prompt }}|{{ documents | length }}", {"bos_token": "<s>"}
    )
    arguments = {"bos_token": "[s]", "add_generation_prompt": False, "documents": [{"title": "a"}]}
    assert template.render(MESSAGES, None, arguments, 1000) == "[s]|False|1"


OPEN = {"continue_final_message": True, "add_generation_prompt": False}
TURNS = "{% for m in messages %}<{{ m.role }}>{{ CONTENT }}<end>{% endfor %}"


@pytest.mark.parametrize(
    ("content", "ends"),
    [("m.content", "<assistant>It is  "), ("m.content | trim", "<assistant>It is")],
)
def test_a_last_message_that_is_to_be_continued_stays_open(content: str, ends: str) -> None:
    template = ChatTemplate(TURNS.replace("CONTENT", content))
    messages = [*MESSAGES, {"role": "assistant", "content": "It is  "}]
    text = template.render(messages, None, OPEN, 1000)
    assert text == "<user>hello <b> é<end>" + ends
    assert messages[-1]["content"] == "It is  "


def test_a_last_message_in_parts_stays_open_too() -> None:
    template = ChatTemplate("{% for m in messages %}{% for p in m.content %}{{ p.text }};{% endfor %}{% endfor %}")
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert template.render([{"role": "assistant", "content": parts}], None, OPEN, 1000) == "a;b"
    assert template.render([{"role": "assistant", "content": []}], None, OPEN, 1000) is None


def test_what_cannot_be_continued_has_no_text() -> None:
    template = ChatTemplate(TURNS.replace("CONTENT", "'fixed'"))
    assert template.render(MESSAGES, None, OPEN, 1000) is None
    plain = ChatTemplate(TURNS.replace("CONTENT", "m.content"))
    assert plain.render(MESSAGES, None, {"continue_final_message": True}, 1000) is None, "and begin an answer as well"


@pytest.mark.parametrize(
    ("source", "knows"), [("{{ 'developer' }}", True), ('{{ "developer" }}', True), ("{{ developer }}", False)]
)
def test_templates_that_have_the_role_of_developers(source: str, knows: bool) -> None:
    assert ChatTemplate(source).knows_developer is knows


def test_messages_are_prepared_as_engines_do() -> None:
    call = b'{"function": {"name": "f", "arguments": "{\\"a\\": 1}"}}'
    raw = (
        b"""[{"role": "assistant", "content": null, "tool_calls": [%b, 5]},
        {"role": "user", "content": [{"type": "text", "text": "a"}, "b"]}, {"role": "tool"}]"""
        % call
    )
    texts = template_messages(raw, as_parts=False)
    parts = template_messages(raw, as_parts=True)
    assert texts is not None
    assert parts is not None
    assert texts[0]["tool_calls"] == [{"function": {"name": "f", "arguments": {"a": 1}}}, 5]
    assert [message["content"] for message in texts] == ["", "a\nb", ""]
    assert parts[1]["content"] == [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]

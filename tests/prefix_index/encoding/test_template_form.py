"""Whether a template takes content as parts: expectations are what vLLM 0.32.0 tells of the same sources."""

from __future__ import annotations

import pytest

from prefix_index.encoding.template import ChatTemplate

LOOP = "{% for message in messages %}"
END = "{% endfor %}"


@pytest.mark.parametrize(
    "inner",
    [
        "{% for part in message['content'] %}{% endfor %}",
        "{%- for part in message.content -%}{%- endfor -%}",
        "{% for part in message.content | list %}{% endfor %}",
        "{% for part in message.content[1:] %}{% endfor %}",
        "{% if message.content is string %}a{% else %}{% for p in message.content %}{% endfor %}{% endif %}",
        "{% set content = message.content %}{% for part in content %}{% endfor %}",
    ],
)
def test_a_loop_over_content(inner: str) -> None:
    assert ChatTemplate(LOOP + inner + END).wants_parts


@pytest.mark.parametrize(
    "source",
    [
        "{% set rest = messages[1:] %}{% for m in rest %}{% for p in m.content %}{% endfor %}{% endfor %}",
        "{% set a = messages %}{% set b = a | list %}"
        "{% for m in b %}{% for p in m['content'] %}{% endfor %}{% endfor %}",
        "{% macro show(c) %}{% for p in c %}{% endfor %}{% endmacro %}"
        "{% for m in messages %}{{ show(m.content) }}{% endfor %}",
        "{% macro show(a, c) %}{% for p in c %}{% endfor %}{% endmacro %}"
        "{% for m in messages %}{{ show(1, c=m['content']) }}{% endfor %}",
    ],
)
def test_a_loop_over_content_by_another_name(source: str) -> None:
    assert ChatTemplate(source).wants_parts


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content }}",
        "{% for message in messages %}{{ message.content }}{% endfor %}",
        "{% for message in messages %}{% for call in message.tool_calls %}{% endfor %}{% endfor %}",
        "{% for part in message.content %}{% endfor %}",
        "{% for line in documents %}{% for p in line.content %}{% endfor %}{% endfor %}",
        "{% macro show(content) %}{% for p in content %}{% endfor %}{% endmacro %}"
        "{% for m in messages %}{{ show(m.name) }}{% endfor %}",
        "{% for a, b in messages %}{% for p in a.content %}{% endfor %}{% endfor %}",
    ],
)
def test_no_loop_over_content(source: str) -> None:
    assert not ChatTemplate(source).wants_parts

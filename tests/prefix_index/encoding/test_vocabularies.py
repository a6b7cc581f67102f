"""Real vocabularies, templates in the style of each, and recorded sessions: the ids are the simulated engine's, which
shares no code with the encoder, and turns that build on one another change none."""

from __future__ import annotations

import inspect
import json
from array import array
from typing import TYPE_CHECKING

import pytest

from backends.engine.tokenizer import TokensEncoding
from prefix_index.encoding.protocol import Namespace, Prompt
from prefix_index.encoding.template import ChatTemplate
from prefix_index.encoding.tokenizer import CheckedTokenizer
from prefix_index.encoding.tokens_encoder import TokensEncoder
from prefix_index.keys import extend, root_state
from tests.bench.transcripts import load
from tests.support.vocabularies import PACKAGES, vocabulary

if TYPE_CHECKING:
    from pathlib import Path

    from tests.bench.transcripts import Transcript

NAMESPACE = Namespace("model")
_SESSIONS = 2
_TOOLS = [
    {
        "type": "function",
        "function": {"parameters": {"type": "object", "properties": {"q": {"type": "string"}}}, "name": "find"},
    }
]
TEMPLATES = {
    "qwen": (
        "{%- if tools %}<|im_start|>system\n# Tools\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
        "<|im_end|>\n{% endif %}{%- for m in messages %}{%- if m.role == 'tool' %}"
        "<|im_start|>user\n<tool_response>\n{{ m.content }}\n</tool_response><|im_end|>\n{%- else %}"
        "<|im_start|>{{ m.role }}\n{{ m.content }}"
        '{%- for call in m.tool_calls or [] %}\n<tool_call>\n{"name": "{{ call.function.name }}", "arguments": '
        "{{ call.function.arguments | tojson }}}\n</tool_call>{%- endfor %}<|im_end|>\n{%- endif %}{%- endfor %}"
        "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    ),
    "deepseek": (
        "<｜begin▁of▁sentence｜>{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}"
        "{% elif m.role == 'assistant' %}<｜Assistant｜>{{ m.content }}{% for call in m.tool_calls or [] %}"
        "<｜tool▁call▁begin｜>{{ call.function.name }}\n```json\n{{ call.function.arguments | tojson }}\n```"
        "<｜tool▁call▁end｜>{% endfor %}<｜end▁of▁sentence｜>{% else %}<｜User｜>{{ m.content }}{% endif %}{% endfor %}"
        "{% for tool in tools or [] %}{{ tool.function | tojson }}{% endfor %}"
        "{% if add_generation_prompt %}<｜Assistant｜>{% endif %}"
    ),
    "anthropic": (
        "{% for tool in tools or [] %}<META>{{ tool | tojson }}{% endfor %}{% for m in messages %}"
        "{{ '\n\nAssistant: ' if m.role == 'assistant' else '\n\nHuman: ' }}{{ m.content }}"
        "{% for call in m.tool_calls or [] %}"
        "<META_START>{{ call.function.name }}: {{ call.function.arguments | tojson }}<META_END>{% endfor %}"
        "{% endfor %}{% if add_generation_prompt %}\n\nAssistant:{% endif %}"
    ),
}


@pytest.fixture(scope="module", params=sorted(PACKAGES))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def tokenizer(name: str) -> Path:
    path = vocabulary(name)
    if path is None:
        pytest.skip("not fetched: python -m tests.support.vocabularies")
    return path


@pytest.fixture(scope="module")
def sessions() -> list[Transcript]:
    """Some of either kind."""
    found = load()
    return [*found[:_SESSIONS], *found[-_SESSIONS:]]


async def test_recorded_sessions_have_the_engines_tokens(
    name: str, tokenizer: Path, sessions: list[Transcript], tmp_path: Path
) -> None:
    template = tmp_path / "template.jinja"
    template.write_text(TEMPLATES[name])
    engine = TokensEncoding(tokenizer, template)
    said: list[str] = []
    checked = CheckedTokenizer(tokenizer.read_text("utf-8"), on_mismatch=said.append)
    encoder = TokensEncoder(b"s", checked, ChatTemplate(TEMPLATES[name]), on_mismatch=said.append, verify_every=8)
    try:
        for session in sessions:
            for turn in range(len(session.turns)):
                messages = session.request(turn)
                prompt = Prompt(json.dumps(messages).encode(), None, json.dumps(_TOOLS).encode())
                result = encoder.encode(prompt, NAMESPACE)
                encoded = await result if inspect.isawaitable(result) else result
                ids = engine.chat(messages, {"tools": _TOOLS}).ids
                assert encoded is not None
                assert encoded.units == len(array("I", ids))
                assert encoded.keys == extend(root_state(b"s", NAMESPACE, 16), ids, 64)[0]
    finally:
        encoder.close()
    assert encoder.incremental, said

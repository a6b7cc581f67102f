"""A scripted engine that gives token ids as vLLM, SGLang or llama.cpp do, with a vocabulary and a chat format of its
own code."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split

from tests.support.upstream import ScriptedUpstream, answer

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.upstream import Served

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% for call in m.tool_calls or [] %}({{ call.function.name }} {{ call.function.arguments | tojson }}){% endfor %}"
    "{% endfor %}{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"
)
"""What `TokenEngine` writes, as a chat template."""


def write_model(folder: Path, template: str = TEMPLATE) -> dict[str, Any]:
    """The files of a model whose tokens are characters: an entry for `models` of a config."""
    folder.mkdir(exist_ok=True)
    _characters().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return {"name": "m", "encoding": "tokens", "tokenizer": folder / "tokenizer.json"}


def _characters() -> Tokenizer:
    known = [chr(code) for code in range(1, 0x250)] + list("你好。東京🪐π…")
    tokenizer = Tokenizer(WordLevel({char: at for at, char in enumerate(known)}, unk_token="\x01"))
    tokenizer.pre_tokenizer = Split(Regex(r"[\s\S]"), "isolated")
    return tokenizer


@dataclass
class TokenEngine:
    """The script of a ScriptedUpstream (see `upstream`)."""

    engine: Literal["vllm", "sglang", "llamacpp"] = "vllm"
    renders: bool = True
    """Only vLLM, and not of every age."""
    gives: bool = True
    """False: without any such endpoint."""
    head: str = ""
    """What it writes before every chat, besides what the template says."""
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """Path and body of every question."""

    def upstream(self, **options: Any) -> ScriptedUpstream:
        return ScriptedUpstream(self.serve, owner=self.engine, **options)

    async def serve(self, served: Served) -> None:
        path = served.target
        if path in ("/v1/chat/completions", "/v1/completions"):
            await answer(served)
            return
        self.asked.append((path, served.json))
        found = self._answer(path, served.json) if self.gives else None
        if found is None:
            await served.respond({"detail": "Not Found"}, 404)
        else:
            await served.respond(json.dumps(found).encode())

    def _answer(self, path: str, body: dict[str, Any]) -> Any:
        if self.engine == "llamacpp":
            if path == "/apply-template":
                return {"prompt": self.chat(body)}
            return {"tokens": self.ids(body["content"])} if path == "/tokenize" else None
        if self.engine == "vllm" and self.renders and path == "/v1/chat/completions/render":
            return {"token_ids": self.ids(self.chat(body)), "request_id": "r"}
        if self.engine == "vllm" and self.renders and path == "/v1/completions/render":
            return [{"token_ids": self.ids(body["prompt"])}]
        if path == ("/tokenize" if self.engine == "vllm" else "/v1/tokenize"):
            text = self.chat(body) if "messages" in body else body["prompt"]
            ids = self.ids(text)
            return {"count": len(ids), "max_model_len": 100_000, "tokens": ids}
        return None

    def ids(self, text: str) -> list[int]:
        found: list[int] = _characters().encode(text).ids
        return found

    def chat(self, body: dict[str, Any]) -> str:
        pieces = [self.head]
        for message in body["messages"]:
            content = message.get("content")
            if isinstance(content, list):
                content = "\n".join(part["text"] for part in content)
            pieces.append(f"[{message['role']}]{content or ''}")
            for call in message.get("tool_calls") or ():
                function = call["function"]
                arguments = json.dumps(json.loads(function["arguments"]), ensure_ascii=False)
                pieces.append(f"({function['name']} {arguments})")
        for tool in body.get("tools") or ():
            function = {name: tool["function"].get(name) for name in ("name", "description", "parameters")}
            pieces.append(json.dumps({"type": "function", "function": function}, ensure_ascii=False))
        return "".join([*pieces, ">"])

"""The `tokens` encoding: a `tokenizer.json` through Hugging Face `tokenizers` and a jinja2 chat template, sandboxed."""

from __future__ import annotations

import datetime
import json
from array import array
from typing import TYPE_CHECKING, Any, NoReturn

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from backends.engine.encoding import Prompt, content_text
from backends.engine.errors import ApiError
from backends.engine.generation import TABLE, Vocabulary

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_SPACES = ("\u0120", "\u2581")  # how byte-level BPE and SentencePiece spell a leading space


class TokensEncoding:
    """Counts are exact for the model. Without a template there is no chat."""

    costly = True

    def __init__(self, tokenizer: Path, template: Path | None) -> None:
        self._tokenizer = Tokenizer.from_file(str(tokenizer))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._template = _environment().from_string(template.read_text("utf-8")) if template else None
        self.vocabulary = _vocabulary(self._tokenizer)

    def text(self, prompt: str) -> Prompt:
        return self._encode(prompt, special=True)

    def chat(self, messages: Sequence[Mapping[str, Any]], body: Mapping[str, Any]) -> Prompt:
        if self._template is None:
            raise ApiError(400, "this engine has no chat template (option: template)", param="messages")
        arguments = body.get("chat_template_kwargs")
        try:
            text = self._template.render(
                **(arguments if isinstance(arguments, dict) else {}),
                messages=[_message(message) for message in messages],
                tools=[_tool(tool) for tool in body.get("tools") or ()] or None,
                add_generation_prompt=body.get("add_generation_prompt", True),
            )
        except jinja2.TemplateError as error:
            raise ApiError(400, f"the chat template failed: {type(error).__name__}", param="messages") from error
        return self._encode(text, special=False)

    def _encode(self, text: str, *, special: bool) -> Prompt:
        clean = text.encode("utf-8", "replace").decode()  # a lone surrogate is no text for a tokenizer
        encoded = self._tokenizer.encode_batch_fast([clean], add_special_tokens=special)[0]
        return Prompt(array("I", encoded.ids).tobytes())


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """As vLLM hands it to a template: texts on lines of their own, arguments of calls as objects."""
    content = message.get("content")
    parts = content if isinstance(content, list) else [content]
    prepared = {**message, "content": "\n".join(content_text([part]) for part in parts if part is not None)}
    if isinstance(message.get("tool_calls"), list):
        prepared["tool_calls"] = [_call(call) for call in message["tool_calls"]]
    return prepared


def _call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except ValueError:
        arguments = None
    return {**call, "function": {**function, "arguments": arguments if isinstance(arguments, dict) else {}}}


def _tool(tool: Any) -> Any:
    """With the members that vLLM knows, in its order."""
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict):
        return tool
    known = {name: function.get(name) for name in ("name", "description", "parameters")}
    if function.get("strict") is not None:
        known["strict"] = function["strict"]
    return {"type": "function", "function": known}


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return environment


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    """Plain words that encode to themselves after another word; those without a leading space start a reply."""
    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    later: list[tuple[int, str]] = []
    first: list[tuple[int, str]] = []
    for token, number in sorted(vocabulary.items(), key=lambda item: item[1]):
        plain = token[1:] if token.startswith(_SPACES) else token
        if 3 <= len(plain) <= 12 and plain.isascii() and plain.isalpha() and plain.islower():
            (first if plain is token else later).append((number, plain if plain is token else f" {plain}"))
    words, first_words = _table(later or first), _table(first or later)
    return Vocabulary(
        tuple(text.encode() for _, text in words),
        tuple(array("I", [number]).tobytes() for number, _ in words),
        tuple(text.encode() for _, text in first_words),
        tuple(array("I", [number]).tobytes() for number, _ in first_words),
    )


def _table(words: list[tuple[int, str]]) -> list[tuple[int, str]]:
    if not words:
        raise ValueError("the tokenizer has no token that is a plain word")
    return [words[i * len(words) // TABLE] for i in range(TABLE)]

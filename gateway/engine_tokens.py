"""Prompts as engines' tokenise endpoints take them, and which backend is asked."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import msgspec

from backends.token_client import NotAnswered
from gateway.eligibility import may_get
from prefix_index.encoding.as_chat import as_chat, tool_as_chat
from prefix_index.encoding.chat_text import template_arguments
from prefix_index.encoding.completion import read_prompt
from prefix_index.encoding.json_text import dump, load

if TYPE_CHECKING:
    from collections.abc import Iterable

    from backends.backend import Backend
    from backends.engines.protocol import PromptKind
    from backends.registry import Registry
    from backends.token_client import TokenClient
    from prefix_index.encoding.protocol import Prompt

_INLINE_BYTES: Final = 32 * 1024
_OTHER_API: Final = (b'"tool_use"', b'"tool_result"', b'"thinking"', b'"function_call', b'"custom_tool_call')
_NO_TOOLS: Final = (b"", b"null", b"[]")


class EngineTokens:
    """Token ids of one model's prompts, from whichever of its backends has the least to do. `names`: all names of the
    model."""

    def __init__(self, registry: Registry, client: TokenClient, names: Iterable[str]) -> None:
        self._registry = registry
        self._client = client
        self._names = tuple(names)

    async def ids(self, prompt: Prompt) -> bytes:
        """Raises NotAnswered, httpx2.HTTPError or ValueError."""
        backend, name = self._pick()
        kind, body = await token_body(prompt)
        return await self._client.ids(backend, kind, {"model": name, **body})

    def _pick(self) -> tuple[Backend, str]:
        found = [
            (backend.in_flight, at, backend)
            for at, name in enumerate(self._names)
            for backend in self._registry.serving(name)
            if may_get(backend, fail_open=False)
        ]
        if not found:
            raise NotAnswered("no backend of this model is up")
        _, at, backend = min(found, key=lambda one: one[:2])
        return backend, self._names[at]


async def token_body(prompt: Prompt) -> tuple[PromptKind, dict[str, Any]]:
    """A request with nothing but the prompt. Raises NotAnswered for one that no engine takes."""
    if prompt.messages is None:
        text = read_prompt(prompt.prompt) if prompt.prompt is not None else None
        if not isinstance(text, str):
            raise NotAnswered("the prompt is no text")
        return "completions", {"prompt": text}
    if len(prompt.messages) > _INLINE_BYTES and _is_of_other_api(prompt.messages):
        return "chat", await asyncio.to_thread(_chat_body, prompt, prompt.messages)
    return "chat", _chat_body(prompt, prompt.messages)


def _chat_body(prompt: Prompt, messages: bytes) -> dict[str, Any]:
    arguments = template_arguments(prompt.template_arguments)
    if arguments is None:
        raise NotAnswered("the prompt brings its own template")
    body: dict[str, Any] = {"messages": msgspec.Raw(_chat_messages(messages))}
    if prompt.tools is not None and prompt.tools.strip() not in _NO_TOOLS:
        body["tools"] = msgspec.Raw(_chat_tools(prompt.tools))
    for name in ("add_generation_prompt", "continue_final_message"):
        if name in arguments:
            body[name] = arguments.pop(name)
    if arguments:
        body["chat_template_kwargs"] = arguments
    return body


def _is_of_other_api(messages: bytes) -> bool:
    return any(mark in messages for mark in _OTHER_API)


def _chat_messages(messages: bytes) -> bytes:
    if not _is_of_other_api(messages):
        return messages
    found = load(messages)
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        return messages
    return dump(as_chat(found))


def _chat_tools(tools: bytes) -> bytes:
    found = load(tools)
    if not isinstance(found, list):
        return tools
    converted = [tool_as_chat(tool) for tool in found]
    return tools if converted == found else dump(converted)

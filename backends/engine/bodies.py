"""Request bodies of the generation endpoints and of /tokenize: JSON in, checked values out, ApiError for the rest."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from backends.engine import messages, responses
from backends.engine.encoding import Encoding, Prompt, from_ids
from backends.engine.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

Api = Literal["chat", "completions", "messages", "responses"]

_MAX_SALT = 1024
_LENGTHS: Final[Mapping[Api, tuple[str, ...]]] = {
    "chat": ("max_completion_tokens", "max_tokens"),
    "completions": ("max_tokens",),
    "messages": ("max_tokens",),
    "responses": ("max_output_tokens",),
}
"""Fields of a body that bound the answer, the first one that is given counts."""


@dataclass(frozen=True, slots=True)
class Call:
    """One generation request."""

    api: Api
    model: str
    prompts: tuple[Prompt, ...]
    max_tokens: int | None
    stream: bool
    include_usage: bool
    priority: int
    salt: str


def parse(body: bytes) -> dict[str, Any]:
    """The body as a JSON object. Lone surrogates pass, as they do in Python's own parser."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        value = _parse_leniently(body)
    if not isinstance(value, dict):
        raise ApiError(400, "the body must be a JSON object")
    return value


def _parse_leniently(body: bytes) -> object:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is not valid JSON ({type(error).__name__})") from error


def served_model(body: Mapping[str, Any], served: Collection[str], default: str) -> str:
    """The model asked for; without one, the first that is served."""
    model = body.get("model")
    if model is None:
        return default
    if not isinstance(model, str):
        raise ApiError(400, "model must be a string", param="model")
    if model not in served:
        raise ApiError(404, f"The model `{model[:200]}` does not exist.", "NotFoundError", param="model")
    return model


def read_call(body: Mapping[str, Any], model: str, encoding: Encoding, api: Api) -> Call:
    """Everything of a body that the engine acts on; unknown fields pass."""
    options = body.get("stream_options")
    salt = body.get("cache_salt")
    if salt is not None and (not isinstance(salt, str) or not 0 < len(salt) <= _MAX_SALT):
        raise ApiError(400, f"cache_salt must be a string of 1 to {_MAX_SALT} characters", param="cache_salt")
    return Call(
        api=api,
        model=model,
        prompts=read_prompts(body, encoding) if api == "completions" else (read_chat(body, encoding, api),),
        max_tokens=_max_tokens(body, api),
        stream=body.get("stream") is True,
        include_usage=isinstance(options, dict) and options.get("include_usage") is True,
        priority=_integer(body, "priority") or 0,
        salt=salt or "",
    )


def read_chat(body: Mapping[str, Any], encoding: Encoding, api: Api = "chat") -> Prompt:
    if api == "messages":
        conversation = messages.as_chat(body)
    elif api == "responses":
        conversation = responses.as_chat(body)
    else:
        conversation = _messages(body)
    prompt = encoding.chat(conversation, body if api == "chat" else {**body, "tools": _tools(body)})
    if not prompt.tokens:
        raise ApiError(400, "the prompt is empty", param="messages")
    return prompt


def _tools(body: Mapping[str, Any]) -> list[Any]:
    """As chat has them: nested under `function`."""
    tools = body.get("tools")
    nested = []
    for tool in tools if isinstance(tools, list) else []:
        if isinstance(tool, dict) and "function" not in tool:
            schema = tool.get("input_schema", tool.get("parameters"))
            function = {"name": tool.get("name"), "description": tool.get("description"), "parameters": schema}
            tool = {"type": "function", "function": function}
        nested.append(tool)
    return nested


def _messages(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    given = body.get("messages")
    if not isinstance(given, list) or not given or not all(isinstance(message, dict) for message in given):
        raise ApiError(400, "messages must be a non-empty list of objects", param="messages")
    return given


def read_prompts(body: Mapping[str, Any], encoding: Encoding, field: str = "prompt") -> tuple[Prompt, ...]:
    """A string, a list of strings, token ids, or a list of those: a list is a batch."""
    prompt = body.get(field)
    items: list[Any]
    if isinstance(prompt, str) or (isinstance(prompt, list) and prompt and isinstance(prompt[0], int)):
        items = [prompt]
    elif isinstance(prompt, list):
        items = prompt
    else:
        items = []
    prompts = tuple(_one_prompt(item, encoding) for item in items)
    if not prompts or not all(each.tokens for each in prompts):
        raise ApiError(400, f"{field} must be a non-empty string, token ids, or a list of those", param=field)
    return prompts


def _one_prompt(item: object, encoding: Encoding) -> Prompt:
    if isinstance(item, str):
        return encoding.text(item)
    if isinstance(item, list):
        return from_ids(item)
    raise ApiError(400, "prompt must be a string, token ids, or a list of those", param="prompt")


def _max_tokens(body: Mapping[str, Any], api: Api) -> int | None:
    for field in _LENGTHS[api]:
        value = _integer(body, field)
        if value is not None:
            if value < 1:
                raise ApiError(400, f"{field} must be at least 1", param=field)
            return value
    return None


def _integer(body: Mapping[str, Any], field: str) -> int | None:
    value = body.get(field)
    if value is None or type(value) is int:
        return value
    raise ApiError(400, f"{field} must be an integer", param=field)

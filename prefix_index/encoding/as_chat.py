"""Messages of Anthropic's API and items of OpenAI's Responses as the chat messages that engines make of them before
they render a template. Source: vLLM, `entrypoints/anthropic/serving.py` (results of tools become messages of role
`tool`, before what else the user says; calls become `tool_calls`; thoughts become `reasoning`).

Invariant: total: what has another shape stays as it is.
"""

from __future__ import annotations

import json
from typing import Any

from prefix_index.encoding.chat_bytes import is_told, part_text


def as_chat(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same list where nothing of it is of another API."""
    if not any(_is_foreign(message) for message in messages):
        return messages
    return [converted for message in messages for converted in _converted(message)]


def tool_as_chat(tool: Any) -> Any:
    """Both others have what chat nests under `function` at the top."""
    if not isinstance(tool, dict) or "function" in tool or not isinstance(tool.get("name"), str):
        return tool
    function = {"name": tool["name"], "description": tool.get("description")}
    parameters = tool.get("input_schema", tool.get("parameters"))
    return {"type": "function", "function": {**function, "parameters": parameters}}


def _is_foreign(message: dict[str, Any]) -> bool:
    if "role" not in message:
        return is_told(message)
    content = message.get("content")
    return isinstance(content, list) and any(is_told(part) for part in content)


def _converted(message: dict[str, Any]) -> list[dict[str, Any]]:
    if not _is_foreign(message):
        return [message]
    if "role" not in message:
        return _item(message)
    before: list[dict[str, Any]] = []
    parts: list[Any] = []
    calls: list[dict[str, Any]] = []
    thoughts: list[str] = []
    for part in message["content"]:
        kind = part["type"] if is_told(part) else ""
        if kind == "tool_result":
            before += _result(part.get("tool_use_id"), part.get("content"))
        elif kind == "tool_use":
            calls.append(_call(part.get("id"), part.get("name"), json.dumps(part.get("input") or {})))
        elif kind == "thinking":
            thoughts.append(str(part.get("thinking", "")))
        else:
            parts.append(part)
    rest = {name: value for name, value in message.items() if name != "content"}
    if thoughts:
        rest["reasoning"] = "".join(thoughts)
    if calls:
        rest["tool_calls"] = calls
    if parts:
        rest["content"] = parts
    return [*before, rest] if parts or calls or thoughts else before


def _item(item: dict[str, Any]) -> list[dict[str, Any]]:
    kind = item["type"]
    if kind in ("function_call", "custom_tool_call"):
        call = _call(item.get("call_id"), item.get("name"), item.get("arguments", item.get("input")))
        return [{"role": "assistant", "tool_calls": [call]}]
    if kind in ("function_call_output", "custom_tool_call_output"):
        return _result(item.get("call_id"), item.get("output"))
    return []  # thoughts of earlier turns


def _call(call_id: Any, name: Any, arguments: Any) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _result(call_id: Any, content: Any) -> list[dict[str, Any]]:
    texts = [content] if isinstance(content, str) else []
    others: list[Any] = []
    for part in content if isinstance(content, list) else []:
        text = part_text(part)
        if text is None:
            others.append(part)
        else:
            texts.append(text)
    messages: list[dict[str, Any]] = [{"role": "tool", "tool_call_id": call_id, "content": "\n".join(texts)}]
    return [*messages, {"role": "user", "content": others}] if others else messages

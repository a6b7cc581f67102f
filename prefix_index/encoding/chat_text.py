"""Messages as a chat template gets them: what an engine does to them before it renders.

Invariant: a part that is not text becomes the text of its digest at its place, so that prompts with other images
differ.
"""

from __future__ import annotations

from typing import Any, Final

from prefix_index.encoding.as_chat import as_chat, tool_as_chat
from prefix_index.encoding.chat_bytes import part_digest, part_text
from prefix_index.encoding.json_text import load

_RESERVED: Final = frozenset({"chat_template", "tokenize", "messages", "tools"})


def template_messages(raw: bytes, as_parts: bool) -> list[dict[str, Any]] | None:
    """None where `raw` is not a list of objects, is empty, or nests too deep."""
    messages = load(raw)
    if not isinstance(messages, list) or not messages or not all(isinstance(message, dict) for message in messages):
        return None
    try:
        return [_message(message, as_parts) for message in as_chat(messages)]
    except RecursionError:
        return None


def template_tools(raw: bytes | None) -> list[Any] | None:
    tools = load(raw) if raw else None
    return [tool_as_chat(tool) for tool in tools] if isinstance(tools, list) and tools else None


def template_arguments(raw: bytes | None) -> dict[str, Any] | None:
    """`chat_template_kwargs`; None where they would replace the template or the prompt itself."""
    arguments = load(raw) if raw else None
    if not isinstance(arguments, dict):
        return {}
    return None if _RESERVED & arguments.keys() else arguments


def _message(message: dict[str, Any], as_parts: bool) -> dict[str, Any]:
    if isinstance(message.get("content"), str) and "tool_calls" not in message:
        return message
    changed = {**message, "content": _content(message.get("content"), as_parts)}
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        changed["tool_calls"] = [_call(call) for call in calls]
    return changed


def _content(content: Any, as_parts: bool) -> Any:
    if content is None or isinstance(content, str):
        return content or ""
    texts = [_part(part) for part in (content if isinstance(content, list) else [content])]
    return [{"type": "text", "text": text} for text in texts] if as_parts else "\n".join(texts)


def _part(part: Any) -> str:
    text = part_text(part)
    return f"<{part_digest(part).decode('utf-8', 'replace')}>" if text is None else text


def _call(call: Any) -> Any:
    """Templates expect the arguments of a call as an object; on the wire they are its JSON text."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    arguments = load(function["arguments"].encode("utf-8", "surrogatepass"))
    if not isinstance(arguments, dict):
        return call
    return {**call, "function": {**function, "arguments": arguments}}

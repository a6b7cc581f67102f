"""Messages as a chat template gets them: what vLLM does to them before it renders (0.32.0, `renderers/chat_utils.py`,
`renderers/hf.py` and the request models of `entrypoints/openai`, which fix the order of members and drop others).

Invariant: a part that is not text becomes the text of its digest at its place, so that prompts with other images
differ.
"""

from __future__ import annotations

from typing import Any, Final

from prefix_index.encoding.as_chat import as_chat, tool_as_chat
from prefix_index.encoding.chat_bytes import part_digest, part_text
from prefix_index.encoding.json_text import load

_RESERVED: Final = frozenset({"chat_template", "tokenize", "messages", "tools"})
_PLAIN: Final = frozenset({"role", "content"})
_BILLING: Final = "x-anthropic-billing-header"
"""Claude Code's attribution; new with every request."""


def template_messages(raw: bytes, as_parts: bool, *, knows_developer: bool = True) -> list[dict[str, Any]] | None:
    """None where `raw` is not a list of objects, is empty, or nests too deep.

    `as_parts`: content is always a list of parts, except that of tools; else always text. `knows_developer`: the
    template has that role; otherwise it is `system`, and all system messages are one at the start.
    """
    messages = load(raw)
    if not isinstance(messages, list) or not messages or not all(isinstance(message, dict) for message in messages):
        return None
    try:
        prepared = [_message(message, as_parts) for message in as_chat(messages)]
    except RecursionError:
        return None
    if not knows_developer and any(message["role"] == "developer" for message in prepared):
        return _one_system_message([_as_system(message) for message in prepared])
    return prepared


def template_tools(raw: bytes | None) -> list[Any] | None:
    tools = load(raw) if raw else None
    return [_tool(tool_as_chat(tool)) for tool in tools] if isinstance(tools, list) and tools else None


def template_arguments(raw: bytes | None) -> dict[str, Any] | None:
    """`chat_template_kwargs`; None where they would replace the template or the prompt itself."""
    arguments = load(raw) if raw else None
    if not isinstance(arguments, dict):
        return {}
    return None if _RESERVED & arguments.keys() else arguments


def _message(message: dict[str, Any], as_parts: bool) -> dict[str, Any]:
    role, content = message.get("role", ""), message.get("content")
    if isinstance(content, str) and not as_parts and role != "system" and message.keys() == _PLAIN:
        return message
    texts = _texts(content)
    if role == "system":
        texts = [text for text in map(_without_billing, texts) if text is not None]
    if as_parts and role != "tool":
        prepared: dict[str, Any] = {"role": role, "content": [{"type": "text", "text": text} for text in texts]}
    else:
        prepared = {"role": role, "content": "\n".join(texts)}
    if role == "assistant":
        _add_calls_and_thoughts(prepared, message)
    elif role == "tool" and "tool_call_id" in message:
        prepared["tool_call_id"] = message["tool_call_id"]
    for name in ("name", "task"):
        if isinstance(message.get(name), str):
            prepared[name] = message[name]
    if role == "developer":
        prepared["tools"] = message.get("tools")
    return prepared


def _add_calls_and_thoughts(prepared: dict[str, Any], message: dict[str, Any]) -> None:
    calls = message.get("tool_calls")
    if isinstance(calls, list) and calls:
        prepared["tool_calls"] = [_call(call) for call in calls]
    for name in ("reasoning", "reasoning_content"):
        if (thoughts := message.get(name)) is not None:
            prepared["reasoning"] = prepared["reasoning_content"] = thoughts
            return


def _texts(content: Any) -> list[str]:
    if content is None:
        return []
    parts = content if isinstance(content, list) else [content]
    return [_part(part) for part in parts if not _is_void(part)]


def _is_void(part: Any) -> bool:
    """A text without text is passed over."""
    return isinstance(part, dict) and part.get("type") in ("text", "refusal") and part.get(part["type"]) is None


def _part(part: Any) -> str:
    text = part_text(part)
    if text is None and isinstance(part, dict) and part.get("type") == "refusal" and isinstance(part["refusal"], str):
        text = part["refusal"]
    return f"<{part_digest(part).decode('utf-8', 'replace')}>" if text is None else text


def _without_billing(text: str) -> str | None:
    """Its first line goes; None where there is nothing else."""
    return (text.partition("\n")[2] or None) if text.startswith(_BILLING) else text


def _call(call: Any) -> Any:
    """Templates expect the arguments of a call as an object; on the wire they are its JSON text."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return call
    members = _only(function, "arguments", "name")
    arguments = members.get("arguments")
    if isinstance(arguments, str) and arguments:
        arguments = load(arguments.encode("utf-8", "surrogatepass"))
        members["arguments"] = arguments if isinstance(arguments, dict) else {}
    return _only({**call, "function": members}, "id", "function", "type")


def _tool(tool: Any) -> Any:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict):
        return tool
    members = {name: function.get(name) for name in ("name", "description", "parameters")}
    deferred = tool.get("defer_loading")
    extra = {"strict": function.get("strict"), "defer_loading": function.get("defer_loading", deferred)}
    members |= {name: value for name, value in extra.items() if value is not None}
    prepared = {"type": tool.get("type", "function"), "function": members}
    return prepared if deferred is None else {**prepared, "defer_loading": deferred}


def _only(members: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: members[name] for name in names if name in members}


def _as_system(message: dict[str, Any]) -> dict[str, Any]:
    if message["role"] != "developer":
        return message
    return {**{name: value for name, value in message.items() if name != "tools"}, "role": "system"}


def _one_system_message(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As they are where the only one stands first."""
    systems = [at for at, message in enumerate(messages) if message["role"] == "system"]
    if systems == [0]:
        return messages
    texts = [_text_of(messages[at]["content"]) for at in systems]
    merged = {"role": "system", "content": "\n\n".join(text for text in texts if text)}
    return [merged, *(message for message in messages if message["role"] != "system")]


def _text_of(content: Any) -> str:
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)

"""Reads of a request body only what routing needs; the original bytes are what is forwarded.

Odd but legal bodies pass: the engine judges them (O14, O21, O24). Only what is no JSON object at all is refused here.
"""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

from gateway.multipart import read_fields
from vocabulary.errors import InvalidBody, InvalidJson, UnsupportedContentType

_ABSENT: Final = msgspec.Raw(b"")


class Body(msgspec.Struct, gc=False):
    """The fields that routing looks at. Others are skipped unread; Raw ones stay JSON text until they are needed."""

    model: Any = None
    stream: Any = None
    messages: msgspec.Raw = _ABSENT
    prompt: msgspec.Raw = _ABSENT
    tools: msgspec.Raw = _ABSENT
    chat_template_kwargs: msgspec.Raw = _ABSENT
    chat_template: msgspec.Raw = _ABSENT
    cache_salt: Any = None
    session_id: Any = None
    prompt_cache_key: Any = None
    metadata: Any = None
    conversation: Any = None
    system: msgspec.Raw = _ABSENT
    instructions: msgspec.Raw = _ABSENT
    input: msgspec.Raw = _ABSENT
    previous_response_id: Any = None
    stream_options: msgspec.Raw = _ABSENT
    reasoning_effort: Any = None
    add_generation_prompt: Any = None
    continue_final_message: Any = None
    documents: Any = None
    thinking: Any = None
    output_config: Any = None
    reasoning: Any = None

    @property
    def streams(self) -> bool:
        return self.stream is True

    @property
    def own_template(self) -> bool:
        """The body brings a chat template: its tokens cannot be foretold."""
        return bytes(self.chat_template) not in (b"", b"null")


_DECODER: Final = msgspec.json.Decoder(Body)
_RAW_FIELDS: Final = (
    "messages",
    "prompt",
    "tools",
    "chat_template_kwargs",
    "chat_template",
    "system",
    "instructions",
    "input",
    "stream_options",
)
_FIELDS: Final = tuple(Body.__struct_fields__)


def parse_body(body: bytes) -> Body:
    """Raises InvalidJson or InvalidBody. The texts never quote the body."""
    try:
        return _DECODER.decode(body)
    except (msgspec.MsgspecError, RecursionError):
        return _parse_leniently(body)


def _parse_leniently(body: bytes) -> Body:
    """What the strict decoder refuses but engines may take: lone surrogates, NaN, other encodings of JSON."""
    try:
        value = json.loads(body)
    except RecursionError:
        raise InvalidJson("the request body is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise InvalidJson(f"the request body is not valid JSON (line {error.lineno}, column {error.colno})") from None
    except ValueError:
        raise InvalidJson("the request body is not valid JSON (its bytes are not UTF-8)") from None
    if not isinstance(value, dict):
        raise InvalidBody("the request body must be a JSON object")
    fields = {name: value[name] for name in _FIELDS if name in value}
    for name in _RAW_FIELDS:
        if name in fields:
            fields[name] = msgspec.Raw(json.dumps(fields[name]).encode())
    return Body(**fields)


def check_content_type(value: bytes | None) -> None:
    """Raises UnsupportedContentType. An absent one is taken for JSON."""
    if value is not None and not _is_json(_media_type(value)):
        raise UnsupportedContentType("content-type must be application/json")


def _media_type(value: bytes) -> bytes:
    return value.split(b";", 1)[0].strip().lower()


def _is_json(media_type: bytes) -> bool:
    return media_type == b"application/json" or media_type.endswith(b"+json")


def read_json(body: bytes, content_type: bytes | None) -> Body:
    """Of an endpoint that takes JSON only. Raises ClientError."""
    if content_type != b"application/json":
        check_content_type(content_type)
    return parse_body(body)


def read_form(body: bytes, content_type: bytes | None) -> Body:
    """Of an endpoint that takes uploads: multipart, or JSON. Raises ClientError."""
    if content_type is not None and _media_type(content_type) == b"multipart/form-data":
        return _from_form(body, content_type)
    if content_type is not None and not _is_json(_media_type(content_type)):
        raise UnsupportedContentType("content-type must be multipart/form-data")
    return parse_body(body)


def read_any(body: bytes, content_type: bytes | None) -> Body:
    """Of an endpoint that the gateway knows nothing of: what can be read is. Raises ClientError."""
    media_type = _media_type(content_type or b"")
    if media_type == b"multipart/form-data":
        return _from_form(body, content_type or b"")
    return parse_body(body) if body and _is_json(media_type) else Body()


def _from_form(body: bytes, content_type: bytes) -> Body:
    fields = read_fields(body, content_type)
    return Body(model=fields.get("model"), stream=fields.get("stream") == "true")

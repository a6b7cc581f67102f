from __future__ import annotations

import json

import pytest

from backends.response import ResponseReader
from gateway.dialects.openai import ChatStream, OpenAI, Other
from gateway.observe import Blind, JsonObserver
from vocabulary.errors import ModelMissing, UpstreamTruncated


def test_errors_in_both_forms() -> None:
    body = json.loads(OpenAI().error_body(ModelMissing('say "model"\n', param="model")))
    assert body == {
        "error": {
            "message": 'say "model"\n',
            "type": "invalid_request_error",
            "param": "model",
            "code": "model_missing",
        }
    }
    event = OpenAI().error_event(UpstreamTruncated("cut\n\nshort"))
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    assert event.count(b"\n") == 2, "one event, whatever the text"
    error = json.loads(event[6:])["error"]
    assert error == {"message": "cut\n\nshort", "type": "upstream_error", "code": "upstream_truncated"}


@pytest.mark.parametrize(
    ("status", "headers", "kind"),
    [
        (200, {"content-type": "text/event-stream"}, ChatStream),
        (200, {"Content-Type": "text/event-stream; charset=utf-8"}, ChatStream),
        (200, {"content-type": "application/json"}, JsonObserver),
        (200, {"content-type": "application/json", "content-encoding": "identity"}, JsonObserver),
        (400, {"content-type": "application/json"}, Blind),
        (200, {"content-type": "application/json", "Content-Encoding": "gzip"}, Blind),
        (200, {"content-type": "text/event-stream", "content-encoding": "zstd"}, Blind),
        (200, {"content-type": "text/html"}, Blind),
        (200, {}, Blind),
    ],
)
def test_what_is_observed_how(status: int, headers: dict[str, str], kind: type) -> None:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    reader = ResponseReader()
    reader.feed(f"HTTP/1.1 {status} X\r\ncontent-length: 0\r\n{lines}\r\n".encode())
    head = reader.take_head()
    assert head is not None
    observer = OpenAI().observer(head)
    assert type(observer) is kind
    if kind is Blind:
        observer.feed(b"data: x\n\n")
        observer.finish()
        assert (observer.usage, observer.chunks, observer.done) == (None, 0, True)


def test_other_streams_need_no_end_mark_and_long_documents_pass_unread() -> None:
    reader = ResponseReader()
    reader.feed(b"HTTP/1.1 200 X\r\ncontent-length: 0\r\ncontent-type: text/event-stream\r\n\r\n")
    head = reader.take_head()
    assert head is not None
    stream = Other().observer(head)
    stream.feed(b'data: {"type":"speech.audio.done","usage":{"prompt_tokens":3}}\n\n')
    assert stream.done
    assert stream.usage is not None
    assert stream.usage.prompt_tokens == 3
    document = Other().observer(head._replace(content_type=b"application/json"))
    document.feed(b'{"usage":{"prompt_tokens":3},"data":"' + b"x" * (1 << 20) + b'"}')
    document.finish()
    assert document.usage is None

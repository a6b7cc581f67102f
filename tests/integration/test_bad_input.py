"""Bad input: a clear JSON error with a stable code, or forwarded where the engine should judge; never a 500, and the
next request on the connection works."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.body import Body, parse_body
from prefix_index.encoding.bytes_encoder import BytesEncoder
from prefix_index.encoding.protocol import Encoded, Namespace, Prompt
from tests.field.test_cancellation import metric
from tests.support.gateway import RawClient, RunningGateway, chat, request_bytes, running_gateway
from tests.support.upstream import ScriptedUpstream, Served, chunk
from vocabulary.errors import ClientError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


async def accept(served: Served) -> None:
    """Takes any bytes for a good request."""
    await served.respond({"size": len(served.body)})


@contextlib.asynccontextmanager
async def setting(
    *models: tuple[str, ...], **sections: Any
) -> AsyncIterator[tuple[RunningGateway, list[ScriptedUpstream], RawClient]]:
    """A gateway in front of one backend per tuple of models, and a client."""
    async with contextlib.AsyncExitStack() as stack:
        upstreams = [
            await stack.enter_async_context(ScriptedUpstream(accept, models=names)) for names in models or (("m",),)
        ]
        gw = await stack.enter_async_context(running_gateway([u.url for u in upstreams], **sections))
        client = await stack.enter_async_context(gw.client())
        yield gw, upstreams, client
        assert metric(gw.gateway, "warmroute_encode_fallback_total") == 0, "nothing raised on the way"


async def assert_refused(
    client: RawClient, status: int, code: str, body: bytes | dict[str, Any], **request: Any
) -> str:
    """Refused so, and the connection works on. Returns the message."""
    response = await client.ask(body, **request)
    error = await response.error()
    assert (response.status, error["code"]) == (status, code), error
    assert response.header("content-type") == "application/json"
    assert response.header("x-request-id")
    assert error["type"] == "invalid_request_error"
    assert error.keys() == {"message", "type", "param", "code"}
    await assert_usable(client)
    return str(error["message"])


async def assert_usable(client: RawClient) -> None:
    response = await client.ask(chat("next"))
    assert response.status == 200
    await response.read()


async def assert_forwarded(client: RawClient, upstream: ScriptedUpstream, body: bytes, path: str) -> None:
    """Byte for byte, and the connection works on."""
    response = await client.ask(body, path=path)
    assert response.status == 200, (body[:200], await response.read())
    await response.read()
    assert upstream.requests[-1].body == body
    await assert_usable(client)


NO_JSON = [
    b"",
    b" ",
    b"{",
    b"{'a': 1}",
    b'{"model": "m",}',
    b'{"model": "m"} x',
    b'{"a": 01}',
    b"hello",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b'{"a": "tab\tinside\x00"}',
    b"[" * 100_000,
    b"[" * 100_000 + b"]" * 100_000,
    b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b', "x": "\\ud800"}',
    b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    b"\0" * 1000,
]
NO_OBJECT = [b"[]", b"[1, 2]", b"12", b'"text"', b"null", b"true", b"NaN", b"-Infinity", b"1e999"]


async def test_what_is_no_json_is_refused() -> None:
    async with setting() as (gw, upstreams, client):
        for body in NO_JSON:
            text = await assert_refused(client, 400, "invalid_json", body)
            assert "hello" not in text, "content is never quoted"
        assert all(json.loads(s.body)["messages"][0]["content"] == "next" for s in upstreams[0].requests)
        gw.assert_at_rest()


async def test_json_that_is_no_object_is_refused() -> None:
    async with setting() as (gw, _, client):
        for body in NO_OBJECT:
            await assert_refused(client, 400, "invalid_body", body)
        gw.assert_at_rest()


@pytest.mark.parametrize("around", [b'{"model": "m", "x": "\\ud83d", "%b": %b}', b'{"model": "m", "x": NaN, "%b": %b}'])
async def test_no_depth_of_nesting_is_a_server_error(around: bytes) -> None:
    """Around the depth where Python's parser gives up, in bodies that msgspec refuses."""
    async with setting() as (gw, _, client):
        for depth in [*range(900, 1000, 7), *range(955, 1010)]:
            for field in (b"messages", b"tools", b"metadata", b"other"):
                response = await client.ask(around % (field, b"[" * depth + b"]" * depth))
                assert response.status in (200, 400), depth
                await response.read()
        gw.assert_at_rest()


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "json"]
)
async def test_another_content_type_is_415(content_type: str) -> None:
    async with setting() as (gw, upstreams, client):
        await assert_refused(
            client, 415, "unsupported_content_type", chat("secret"), headers={"content-type": content_type}
        )
        assert len(upstreams[0].requests) == 1
        gw.assert_at_rest()


async def test_json_under_any_of_its_names_or_none_is_served() -> None:
    async with setting() as (gw, upstreams, client):
        names = ("application/json; charset=utf-8", "Application/JSON", "application/vnd.api+json")
        for content_type in names:
            response = await client.ask(chat(), headers={"content-type": content_type})
            assert response.status == 200
            await response.read()
            assert upstreams[0].requests[-1].header("content-type") == content_type
        wire = request_bytes(chat()).replace(b"content-type: application/json\r\n", b"")
        assert b"content-type" not in wire
        client.writer.write(wire)
        assert (await client.receive()).status == 200
        gw.assert_at_rest()


# The model.

NO_MODEL: list[dict[str, Any]] = [
    {"messages": []},
    {"messages": [], "model": None},
    {"messages": [], "model": ""},
]


async def test_a_missing_model_is_served_where_there_is_only_one() -> None:
    async with setting(("m",), ("m",)) as (gw, upstreams, client):
        for body in NO_MODEL:
            response = await client.ask(body)
            assert response.status == 200
            await response.read()
        assert sum(len(u.requests) for u in upstreams) == len(NO_MODEL)
        gw.assert_at_rest()


async def test_a_missing_model_is_refused_where_there_are_several() -> None:
    async with setting(("m", "n")) as (gw, _, client):
        for body in NO_MODEL:
            await assert_refused(client, 400, "model_missing", body)
        gw.assert_at_rest()


async def test_a_missing_model_before_any_backend_has_answered_is_503(unused_tcp_port: int) -> None:
    async with running_gateway([f"http://127.0.0.1:{unused_tcp_port}"]) as gw, gw.client() as client:
        for body in NO_MODEL:
            response = await client.ask(body)
            assert response.status == 503
            assert response.header("retry-after") == "1"
            assert (await response.error())["code"] == "no_backend_available"


async def test_an_unknown_model_is_404() -> None:
    async with setting() as (gw, _, client):
        for model in ("gpt-nowhere", "M", " m", "m\0", "m" * 100_000, "\ud83d"):
            text = await assert_refused(client, 404, "model_not_found", chat(model=model))
            assert len(model) < 4 or model not in text
        gw.assert_at_rest()
        assert "nowhere" not in gw.gateway.metrics.render().decode()


async def test_a_model_that_is_no_string_is_refused() -> None:
    async with setting() as (gw, _, client):
        for model in (1, 1.5, True, ["m"], {"name": "m"}):
            await assert_refused(client, 400, "invalid_body", {**chat(), "model": model})
        gw.assert_at_rest()


# Size.

LIMIT = {"max_body_mb": 0.1}


def sized(size: int) -> bytes:
    body = json.dumps(chat("")).encode()
    return body[:-4] + b"x" * (size - len(body)) + body[-4:]


@pytest.mark.parametrize("framing", ["content-length", "chunked"])
async def test_a_body_over_the_limit_is_413_and_the_connection_works_on(framing: str) -> None:
    async with setting(listen=LIMIT) as (gw, upstreams, client):

        def framed(size: int) -> tuple[bytes, dict[str, str]]:
            body = sized(size)
            assert len(body) == size
            if framing == "content-length":
                return body, {}
            pieces = [chunk(body[i : i + 9_999]) for i in range(0, size, 9_999)]
            return b"".join([*pieces, b"0\r\n\r\n"]), {"transfer-encoding": "chunked"}

        body, headers = framed(100_000)
        response = await client.ask(body, headers=headers)
        assert response.status == 200, "exactly the limit"
        await response.read()
        for size in (100_001, 250_000, 399_999):
            body, headers = framed(size)
            text = await assert_refused(client, 413, "body_too_large", body, headers=headers)
            assert "listen.max_body_mb" in text
        assert max(len(served.body) for served in upstreams[0].requests) == 100_000
        gw.assert_at_rest()


@pytest.mark.parametrize("framing", ["content-length", "chunked", "endless"])
async def test_a_body_far_over_the_limit_is_refused_and_the_connection_closed_cleanly(framing: str) -> None:
    """The client reads the 413 and an end, not a reset that swallows the answer."""
    headers = {"content-length": "20000000"} if framing == "content-length" else {"transfer-encoding": "chunked"}
    piece = b"x" * 100_000 if framing == "content-length" else chunk(b"x" * 100_000)
    async with setting(listen=LIMIT) as (gw, upstreams, client):
        client.writer.write(request_bytes(b"", headers=headers))
        sent = 0

        async def keep_sending() -> None:
            nonlocal sent
            with contextlib.suppress(ConnectionError):
                while sent < 200 or framing == "endless":
                    client.writer.write(piece)
                    await client.writer.drain()
                    sent += 1

        sending = asyncio.create_task(keep_sending())
        response = await client.receive()
        assert response.status == 413
        assert response.header("connection") == "close"
        assert (await response.error())["code"] == "body_too_large"
        assert await client.reader.read() == b"", "an end, no reset"
        if framing != "endless":
            await sending
            await client.close()
        await gw.until(lambda g: not g.connections)
        await sending
        assert not upstreams[0].requests
        gw.assert_at_rest()


async def test_twelve_megabytes_of_images_pass() -> None:
    url = "data:image/png;base64," + "iVBORw0KGgo" * 545_455
    parts = [
        {"type": "text", "text": "what is on these?"},
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "image_url", "image_url": {"url": url}},
    ]
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": parts}]}).encode()
    assert len(body) > 12_000_000
    async with setting() as (gw, upstreams, client):
        for _ in range(2):
            await assert_forwarded(client, upstreams[0], body, CHAT)
        await gw.until(lambda g: g.tasks == 0)
        gw.assert_at_rest()


# Odd but perhaps legal: the engine judges.

PROMPTS: list[Any] = [
    "text",
    "",
    ["one", "two"],
    [1, 2, 3],
    [[1, 2], [3]],
    [],
    [[]],
    [""],
    None,
    [None],
    ["text", 1],
    [1.5],
    [-1, 2**70],
    [True],
    7,
    {"text": "x"},
    [[["deep"]]],
    "\ud83d",
    ["\udc00\ud800"],
    "\0",
]
MESSAGES: list[Any] = [
    None,
    [],
    {},
    "text",
    [None],
    ["text"],
    [[]],
    [{}],
    [{"role": "user"}],
    [{"role": "user", "content": None}],
    [{"role": "user", "content": ""}],
    [{"role": "user", "content": 5}],
    [{"role": "user", "content": []}],
    [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text"}, None, 3, "x"]}],
    [{"role": "user", "content": [{"type": "image_url", "image_url": None}]}],
    [{"role": None, "content": {"a": 1}}],
    [{"role": "user", "content": [{"type": ["text"], "text": "a"}, {"type": {}}]}],
    [{"role": 5, "content": "x"}],
    [{"role": "no such role", "content": "x", "name": [1]}],
    [{"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}],
    [{"role": "assistant", "tool_calls": None}, {"role": "tool", "tool_call_id": 1, "content": [{"a": "b"}]}],
    [{"role": "user", "content": "\ud83d lone \udc00"}],
    [{"role": "\ud83d", "content": "x"}],
    [{"\ud83d": "x"}],
]
OTHERS: list[dict[str, Any]] = [
    {"tools": []},
    {"tools": None},
    {"tools": [{"type": "function", "function": {"name": "f"}}]},
    {"tools": "none"},
    {"tools": [1, None]},
    {"stream": "yes"},
    {"stream": 1},
    {"stream": None},
    {"stream_options": 5},
    {"cache_salt": ["x"]},
    {"cache_salt": "\ud83d"},
    {"session_id": 5},
    {"session_id": "\ud83d"},
    {"metadata": "x"},
    {"metadata": {"user_id": "{"}},
    {"metadata": {"user_id": "\ud83d"}},
    {"conversation": [1]},
    {"prompt_cache_key": {}},
    {"chat_template": 5},
    {"chat_template": "{{ messages }}"},
    {"chat_template_kwargs": [1]},
    {"max_tokens": -1},
    {"n": 10**400},
    {"user": None, "x": [[[[]]]]},
]


def spelled(body: dict[str, Any]) -> list[bytes]:
    """The same JSON with escapes, and as raw UTF-8 where it has such a form."""
    plain = json.dumps(body)
    forms = [plain.encode()]
    with contextlib.suppress(UnicodeEncodeError):
        forms.append(json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode())
    return forms


async def test_odd_prompts_are_forwarded() -> None:
    async with setting() as (gw, upstreams, client):
        for prompt in PROMPTS:
            for body in spelled({"model": "m", "prompt": prompt}):
                await assert_forwarded(client, upstreams[0], body, COMPLETIONS)
        await assert_forwarded(client, upstreams[0], b'{"model": "m"}', COMPLETIONS)
        gw.assert_at_rest()


async def test_odd_messages_are_forwarded() -> None:
    async with setting() as (gw, upstreams, client):
        for messages in MESSAGES:
            for body in spelled({"model": "m", "messages": messages}):
                await assert_forwarded(client, upstreams[0], body, CHAT)
        await assert_forwarded(client, upstreams[0], b'{"model": "m"}', CHAT)
        gw.assert_at_rest()


async def test_odd_messages_that_are_encoded_in_a_thread_are_forwarded() -> None:
    long = {"role": "user", "content": "x" * 150_000}
    async with setting() as (gw, upstreams, client):
        for odd in MESSAGES[5:]:
            messages = [*odd, long] if isinstance(odd, list) else odd
            for body in spelled({"model": "m", "messages": messages}):
                await assert_forwarded(client, upstreams[0], body, CHAT)
        for prompt in PROMPTS:
            odd = prompt + long["content"] if isinstance(prompt, str) else [prompt, long["content"]]
            for body in spelled({"model": "m", "prompt": odd}):
                await assert_forwarded(client, upstreams[0], body, COMPLETIONS)
        gw.assert_at_rest()


async def test_odd_values_of_other_fields_are_forwarded() -> None:
    async with setting() as (gw, upstreams, client):
        for fields in OTHERS:
            for body in spelled({**chat(), **fields}):
                await assert_forwarded(client, upstreams[0], body, CHAT)
            for body in spelled({"model": "m", "prompt": "x", **fields}):
                await assert_forwarded(client, upstreams[0], body, COMPLETIONS)
        gw.assert_at_rest()


async def test_odd_spellings_of_json_are_forwarded() -> None:
    text = json.dumps(chat("é"), ensure_ascii=False)
    bodies = [
        b"\xef\xbb\xbf" + text.encode(),
        text.encode("utf-16"),
        text.encode("utf-16-le"),
        text.encode("utf-32-be"),
        b" \n\t" + text.encode() + b"\r\n ",
        b'{"model": "m", "messages": [], "temperature": NaN, "top_p": -Infinity}',
        b'{"model": "x", "model": "m", "messages": [{"role": "user", "role": "system", "content": "a"}]}',
        b'{"model": "m", "messages": [{"role": "user", "content": "\xed\xa0\xbd"}]}'.replace(
            b"\xed\xa0\xbd", b"\\ud83d"
        ),
        b'{"model": "m", "messages": [{"role": "user", "content": "\\ud83d"}], "logit_bias": {"1": Infinity}}',
        b'{"model": "\\u006d", "messages": []}',
        b'{"model": "m", "messages": [{"role": "user", "content": "\xff\xfe"}], "x": "\xff"}',
        b'{"model": "m", "seed": ' + b"9" * 5000 + b"}",
        b'{"model": "m", "seed": ' + b"9" * 4000 + b', "x": "\\ud83d"}',
        b'{"model": "m", "x": ' + b"[" * 300 + b"]" * 300 + b"}",
        b'{"model": "m", "messages": ' + b"[" * 300 + b"]" * 300 + b"}",
    ]
    async with setting() as (gw, upstreams, client):
        for body in bodies:
            await assert_forwarded(client, upstreams[0], body, CHAT)
        gw.assert_at_rest()


async def test_unknown_and_odd_headers_do_no_harm() -> None:
    odd = [
        ("x-session-id", ""),
        ("x-session-id", "é" * 2000),
        ("x-claude-code-agent-id", "a"),
        ("x-request-id", "has spaces and \xff"),
        ("x-empty", ""),
        ("accept-encoding", "gzip;q=0"),
        ("connection", "keep-alive, content-type"),
        ("x-warmroute-class", "no such class"),
        ("x-warmroute-deadline-ms", "soon"),
        ("x-long", "y" * 30_000),
        *[(f"x-many-{i}", "z") for i in range(300)],
    ]
    async with setting() as (gw, upstreams, client):
        response = await client.ask(chat(), headers=odd)
        assert response.status == 200
        assert " " not in (response.header("x-request-id") or " ")
        await response.read()
        got = upstreams[0].requests[0]
        assert got.header("x-many-299") == "z"
        assert got.header("x-warmroute-class") is None
        await assert_usable(client)
        gw.assert_at_rest()


# Random bodies through the parser and the encoder.

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["\ud83d", "m", "user"]),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=5),
    max_leaves=20,
)
parts = st.dictionaries(st.sampled_from(["type", "text", "image_url", "url"]), json_values | st.just("text"))
messages = st.lists(
    st.dictionaries(
        st.sampled_from(["role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content"]),
        json_values | st.lists(parts | json_values),
    )
    | json_values
)
bodies = st.dictionaries(
    st.sampled_from([*Body.__struct_fields__, "seed", "n"]), json_values | messages, max_size=8
) | st.fixed_dictionaries({"messages": messages, "tools": json_values})


def through_parser_and_encoder(raw: bytes, encoder: BytesEncoder) -> None:
    try:
        body = parse_body(raw)
    except ClientError:
        return
    prompt = Prompt(
        messages=bytes(body.messages) or None,
        prompt=bytes(body.prompt) or None,
        tools=bytes(body.tools) or None,
        template_arguments=bytes(body.chat_template_kwargs) or None,
    )
    for one in (prompt, Prompt(messages=None, prompt=prompt.prompt)):
        encoded = encoder.encode(one, Namespace("m"))
        assert encoded is None or isinstance(encoded, Encoded), "small bodies are encoded at once"
        assert body.streams in (True, False)
        assert body.own_template in (True, False)


@pytest.fixture
def encoder() -> Any:
    made = BytesEncoder(b"secret")
    yield made
    made.close()


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_json_body_is_parsed_and_encoded_or_refused(data: st.DataObject) -> None:
    encoder = BytesEncoder(b"secret")
    try:
        body = data.draw(bodies)
        form = data.draw(st.sampled_from(["escaped", "raw", "utf-16"]))
        if form == "escaped":
            raw = json.dumps(body).encode()
        else:
            raw = json.dumps(body, ensure_ascii=False).encode("utf-8" if form == "raw" else "utf-16", "surrogatepass")
        through_parser_and_encoder(raw, encoder)
    finally:
        encoder.close()


@settings(max_examples=300, deadline=None)
@given(raw=st.binary() | st.text().map(str.encode) | st.from_regex(rb'[\[\]{}",:\\0-9aeu \n]*', fullmatch=True))
def test_any_bytes_are_parsed_or_refused(raw: bytes) -> None:
    encoder = BytesEncoder(b"secret")
    try:
        through_parser_and_encoder(raw, encoder)
    finally:
        encoder.close()


@pytest.mark.parametrize("cut", range(0, 120, 7))
def test_a_body_cut_short_is_invalid_json(cut: int) -> None:
    whole = json.dumps(chat("\ud83d" * 10)).encode()
    with pytest.raises(ClientError) as caught:
        parse_body(whole[:cut])
    assert caught.value.code == "invalid_json"

"""HTTP/1.1 towards clients, byte by byte on real sockets."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
from typing import Any

import pytest

from tests.support.gateway import RawClient, chat, request_bytes, running_gateway
from tests.support.upstream import DONE, SSE_HEAD, ScriptedUpstream, Served, answer, chunk, token

ONE_MB = {"max_body_mb": 0.1}


async def echo(served: Served) -> None:
    """Answers with what was asked, so that order and wholeness show."""
    await served.respond({"echo": served.json["messages"][0]["content"]})


async def assert_usable(client: RawClient) -> None:
    """The next request on the same connection works."""
    response = await client.ask(chat("still here"))
    assert response.status == 200
    await response.read()
    assert response.complete


async def assert_closed(client: RawClient) -> None:
    async with asyncio.timeout(10):
        assert await client.reader.read() == b""


# Pipelining and keep-alive.


async def test_a_connection_serves_request_after_request() -> None:
    async with ScriptedUpstream(echo) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        for number in range(50):
            response = await client.ask(chat(str(number)))
            assert await response.json() == {"echo": str(number)}
        assert (await client.ask(b"", path="/livez", method="GET")).status == 200
        assert upstream.accepted <= 3, "one connection of the pool, and those of the prober"
        gw.assert_at_rest()


GET_LIVEZ = b"GET /livez HTTP/1.1\r\nhost: g\r\n\r\n"


@pytest.mark.parametrize("order", ["hh", "ha", "ah", "hahah", "aahha"])
async def test_pipelined_requests_are_answered_in_their_order(order: str) -> None:
    async def slow_first(served: Served) -> None:
        if served.number == 0:
            await asyncio.sleep(0.05)
        await echo(served)

    wire = b"".join(GET_LIVEZ if kind == "a" else request_bytes(chat(str(i))) for i, kind in enumerate(order))
    async with ScriptedUpstream(slow_first) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        client.writer.write(wire)
        for number, kind in enumerate(order):
            expected: Any = {"status": "ok"} if kind == "a" else {"echo": str(number)}
            assert await (await client.receive()).json() == expected
        await assert_usable(client)
        gw.assert_at_rest()


async def test_a_thousand_bad_requests_in_one_write_are_all_answered() -> None:
    async with ScriptedUpstream(echo) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        bad = request_bytes(b"x")
        client.writer.write(request_bytes(chat("first")) + bad * 1000 + request_bytes(chat("last")))
        assert await (await client.receive()).json() == {"echo": "first"}
        for _ in range(1000):
            response = await client.receive()
            assert (await response.error())["code"] == "invalid_json"
        assert await (await client.receive()).json() == {"echo": "last"}
        gw.assert_at_rest()


async def test_many_pipelined_requests_are_not_read_without_bound() -> None:
    """A client that sends and sends while one request is answered: what it sent waits in its own socket."""
    release = asyncio.Event()

    async def script(served: Served) -> None:
        if served.number == 0:
            await release.wait()
        await echo(served)

    async with ScriptedUpstream(script) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        one = request_bytes(chat("x" * 10_000))
        for _ in range(2000):
            client.writer.write(one)
        await upstream.until(lambda u: len(u.requests) == 1)
        connection = gw.connections[0]
        before = -1
        while before != len(connection.pipeline):
            before = len(connection.pipeline)
            await asyncio.sleep(0.05)
        assert before < 100
        release.set()
        for number in range(200):
            assert (await client.receive()).status == 200, number
            await client.reader.readexactly(10_013 - 1)
            assert len(connection.pipeline) < 100
        client.reset()
        await gw.until(lambda _: gw.in_flight == 0 and not gw.gateway.connections)
        gw.assert_at_rest()


@pytest.mark.parametrize("reset", [False, True], ids=["fin", "rst"])
async def test_disconnect_while_a_pipelined_request_waits(reset: bool) -> None:
    async def script(served: Served) -> None:
        await served.until_closed()

    async with ScriptedUpstream(script) as upstream, running_gateway([upstream.url]) as gw:
        async with gw.client() as client:
            client.writer.write(request_bytes(chat("1")) + request_bytes(chat("2")))
            await upstream.until(lambda u: len(u.requests) == 1)
            if reset:
                client.reset()
        await upstream.until(lambda u: u.closed == 1)
        await gw.until(lambda g: not g.connections)
        assert len(upstream.requests) == 1, "the second one was never sent"
        gw.assert_at_rest()


async def test_disconnect_while_the_prompt_is_encoded() -> None:
    """Large prompts are encoded in a thread; a client may leave before that has even begun."""
    wire = request_bytes(chat("x" * 300_000))
    async with ScriptedUpstream(echo) as upstream, running_gateway([upstream.url]) as gw:
        for number in range(20):
            client = await gw.connect()
            client.writer.write(wire[:-1])
            await client.writer.drain()
            await asyncio.sleep(0.01)
            client.writer.write(wire[-1:])
            if number % 2:
                await asyncio.sleep(0)
            client.reset() if number % 4 < 2 else await client.close()
        await gw.until(lambda g: gw.in_flight == 0 and not g.connections and not g.tasks)
        gc.collect()
        gw.assert_at_rest()


# Framing of requests.


async def test_a_request_may_arrive_byte_by_byte() -> None:
    async with ScriptedUpstream(echo) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        body = json.dumps(chat("é🙂")).encode()
        framed = chunk(body[:30]) + chunk(body[30:]) + b"0\r\n\r\n"
        for wire in (request_bytes(body), request_bytes(framed, headers={"transfer-encoding": "chunked"})):
            for byte in wire:
                client.writer.write(bytes((byte,)))
                await asyncio.sleep(0)
            response = await client.receive()
            assert await response.json() == {"echo": "é🙂"}
        assert [served.body for served in upstream.requests] == [body, body]
        gw.assert_at_rest()


async def test_chunk_extensions_and_trailers_of_a_request_are_dropped() -> None:
    body = json.dumps(chat()).encode()
    framed = b"%x;name=value\r\n%b\r\n0\r\nx-trailer: 1\r\nx-session-id: s\r\n\r\n" % (len(body), body)
    headers = {"transfer-encoding": "chunked", "trailer": "x-trailer", "x-kept": "1"}
    async with ScriptedUpstream(echo) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        assert (await client.ask(framed, headers=headers)).status == 200
        got = upstream.requests[0]
        assert got.body == body
        assert got.header("x-kept") == "1"
        assert got.header("x-trailer") is None
        assert got.header("x-session-id") is None


async def test_trailers_of_a_response_pass() -> None:
    async def script(served: Served) -> None:
        await served.write(SSE_HEAD + chunk(token()) + b"0\r\nX-Took: 5\r\nx-warmroute-forged: 1\r\n\r\n")

    async with ScriptedUpstream(script) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        response = await client.ask(chat(stream=True))
        assert await response.read() == token()
        assert response.trailers == [b"X-Took: 5"]
        assert (await client.ask(chat(stream=True))).status == 200


@pytest.mark.parametrize("framing", ["content-length", "chunked"])
async def test_expect_100_continue(framing: str) -> None:
    body = json.dumps(chat("patient")).encode()
    headers = {"expect": "100-continue"}
    if framing == "chunked":
        headers["transfer-encoding"] = "chunked"
    wire = request_bytes(body, headers=headers)
    head = wire[: -len(body)]
    async with ScriptedUpstream(echo) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        client.writer.write(head)
        async with asyncio.timeout(5):
            assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.writer.write(body if framing == "content-length" else chunk(body) + b"0\r\n\r\n")
        assert await (await client.receive()).json() == {"echo": "patient"}
        assert upstream.requests[0].header("expect") is None
        await assert_usable(client)


async def test_expect_100_continue_over_the_limit_is_refused_without_the_body() -> None:
    head = request_bytes(b"", headers={"expect": "100-continue", "content-length": "200000", "x-request-id": "mine"})
    async with (
        ScriptedUpstream(echo) as upstream,
        running_gateway([upstream.url], listen=ONE_MB) as gw,
        gw.client() as client,
    ):
        client.writer.write(head)
        async with asyncio.timeout(5):
            first = await client.reader.readuntil(b"\r\n")
        assert first.startswith(b"HTTP/1.1 413 ")
        rest = await client.reader.readuntil(b"\r\n\r\n")
        assert b"x-request-id: mine\r\n" in rest
        assert b"connection: close\r\n" in rest
        body = await client.reader.read()
        assert json.loads(body)["error"]["code"] == "body_too_large"
        assert not upstream.requests


async def test_expect_100_continue_of_a_request_that_waits_its_turn() -> None:
    body = json.dumps(chat("2")).encode()
    head = request_bytes(body, headers={"expect": "100-continue"})[: -len(body)]

    async def script(served: Served) -> None:
        await asyncio.sleep(0.05)
        await echo(served)

    async with ScriptedUpstream(script) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        client.writer.write(request_bytes(chat("1")) + head)
        assert await (await client.receive()).json() == {"echo": "1"}
        async with asyncio.timeout(5):
            assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.writer.write(body)
        assert await (await client.receive()).json() == {"echo": "2"}
        gw.assert_at_rest()


@pytest.mark.parametrize("stream", [False, True])
async def test_an_http_1_0_client_gets_a_body_up_to_the_end_of_the_connection(stream: bool) -> None:
    async def chunked(served: Served) -> None:
        if stream:
            await served.stream(token("a"), token("b"))
        else:
            head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
            await served.write(head + chunk(b'{"a":') + chunk(b"1}") + b"0\r\n\r\n")

    async with ScriptedUpstream(chunked) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        response = await client.ask(chat(stream=stream), version="1.0")
        assert response.status == 200
        assert response.header("transfer-encoding") is None
        assert response.header("connection") == "close"
        body = await response.read()
        assert body == (token("a") + token("b") + DONE if stream else b'{"a":1}')
        gw.assert_at_rest()


async def test_an_http_1_0_client_gets_a_known_length() -> None:
    async with ScriptedUpstream(echo) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        response = await client.ask(chat("old"), version="1.0")
        assert response.header("content-length") is not None
        assert await response.json() == {"echo": "old"}
        await assert_closed(client)


async def test_a_client_that_asks_to_close_is_closed() -> None:
    async with ScriptedUpstream(echo) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        response = await client.ask(chat("bye"), headers={"connection": "close"})
        assert response.header("connection") == "close"
        assert await response.json() == {"echo": "bye"}
        await assert_closed(client)


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH"])
async def test_other_methods_on_hot_paths_are_405(method: str) -> None:
    async with ScriptedUpstream(echo) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        for path in ("/v1/chat/completions", "/v1/completions"):
            response = await client.ask(b"", path=path, method=method)
            assert response.status == 405
            assert response.header("allow") == "POST"
            assert response.header("content-type") == "application/json"
            if method != "HEAD":
                assert (await response.error())["code"] == "method_not_allowed"
        await assert_usable(client)


async def test_unknown_paths_are_a_json_404_and_the_connection_works_on() -> None:
    async with ScriptedUpstream(echo) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        for path, method in (("/", "GET"), ("/v1/nothing", "POST"), ("/v1/%FF", "GET"), ("/v2?x=1", "POST")):
            response = await client.ask(b"{}", path=path, method=method)
            assert response.status == 404
            assert (await response.error())["code"] == "not_found"
        await assert_usable(client)


async def test_query_strings_pass() -> None:
    async with ScriptedUpstream(echo) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        assert (await client.ask(chat(), path="/v1/chat/completions?api-version=1&x=%20y")).status == 200
        assert upstream.requests[0].target == "/v1/chat/completions?api-version=1&x=%20y"


async def test_a_target_in_absolute_form_is_served() -> None:
    """RFC 9112 3.2.2: a server must accept it; some proxies send it."""
    async with ScriptedUpstream(echo) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        response = await client.ask(chat("abs"), path="http://gateway/v1/chat/completions?a=1")
        assert response.status == 200
        assert await response.json() == {"echo": "abs"}
        assert upstream.requests[0].target == "/v1/chat/completions?a=1"


JAVA = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2-settings": "AAEAAEAAAAIAAAABAAMAAABkAAQBAAAA"}


@pytest.mark.parametrize("split", [False, True], ids=["one write", "head and body apart"])
async def test_an_offer_to_upgrade_to_h2c_is_ignored(split: bool) -> None:
    """Java's HttpClient sends it with its first request unless told not to."""
    body = json.dumps(chat("java")).encode()
    wire = request_bytes(body, headers=JAVA)
    async with ScriptedUpstream(echo) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        for _ in range(2):
            if split:
                client.writer.write(wire[: -len(body)])
                await client.writer.drain()
                await asyncio.sleep(0.02)
                client.writer.write(body)
            else:
                client.writer.write(wire)
            response = await client.receive()
            assert response.status == 200
            assert await response.json() == {"echo": "java"}
        await assert_usable(client)
        for name in JAVA:
            assert upstream.requests[0].header(name) is None
        client.writer.write(request_bytes(b"", path="/v1/models", method="GET", headers=JAVA))
        response = await client.receive()
        assert (await response.json())["object"] == "list"
        await assert_usable(client)
        gw.assert_at_rest()


async def test_a_request_pipelined_behind_an_upgrade_offer_is_answered() -> None:
    async with ScriptedUpstream(echo) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        client.writer.write(request_bytes(chat("1"), headers=JAVA) + request_bytes(chat("2")))
        assert await (await client.receive()).json() == {"echo": "1"}
        assert await (await client.receive()).json() == {"echo": "2"}


# Malformed requests, and those that mean two things.

GOOD = json.dumps(chat()).encode()
CL = b"content-length: %d\r\n" % len(GOOD)
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\ncontent-type: application/json\r\n"
TE = b"transfer-encoding: chunked\r\n"
AMBIGUOUS = {
    "length and chunked": HEAD + CL + TE + b"\r\n0\r\n\r\n",
    "chunked and length": HEAD + TE + CL + b"\r\n0\r\n\r\n",
    "two lengths": HEAD + CL + b"content-length: 5\r\n\r\n" + GOOD,
    "two equal lengths": HEAD + CL + CL + b"\r\n" + GOOD,
    "signed length": HEAD + b"content-length: +5\r\n\r\n" + GOOD,
    "negative length": HEAD + b"content-length: -1\r\n\r\n" + GOOD,
    "hex length": HEAD + b"content-length: 0x10\r\n\r\n" + GOOD,
    "list of lengths": HEAD + b"content-length: 5, 5\r\n\r\n" + GOOD,
    "huge length": HEAD + b"content-length: 99999999999999999999999\r\n\r\n" + GOOD,
    "length without digits": HEAD + b"content-length: \r\n\r\n" + GOOD,
    "obs-fold": HEAD + b"x-a: 1\r\n folded: 2\r\n" + CL + b"\r\n" + GOOD,
    "space before colon": HEAD + b"transfer-encoding : chunked\r\n" + CL + b"\r\n" + GOOD,
    "coding after chunked": HEAD + b"transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "NUL in a header": HEAD + b"x-a: a\0b\r\n" + CL + b"\r\n" + GOOD,
    "CR in a header": HEAD + b"x-a: a\rb\r\n" + CL + b"\r\n" + GOOD,
    "header without a name": HEAD + b": x\r\n" + CL + b"\r\n" + GOOD,
    "header without a colon": HEAD + b"nonsense\r\n" + CL + b"\r\n" + GOOD,
    "chunk size not hex": HEAD + TE + b"\r\nzz\r\n" + GOOD,
    "chunk size negative": HEAD + TE + b"\r\n-5\r\nhello\r\n0\r\n\r\n",
    "chunk size too large": HEAD + TE + b"\r\nfffffffffffffffff\r\n",
    "chunk longer than its size": HEAD + TE + b"\r\n2\r\nabcd\r\n0\r\n\r\n",
    "chunk size with 0x": HEAD + TE + b"\r\n0x5\r\nhello\r\n0\r\n\r\n",
    "chunk size ended by LF": HEAD + TE + b"\r\n5\nhello\r\n0\r\n\r\n",
    "no HTTP": b"hello there\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "CONNECT": b"CONNECT example.com:443 HTTP/1.1\r\nhost: example.com:443\r\n\r\n",
    "unknown method": b"BREW /v1/chat/completions HTTP/1.1\r\n\r\n",
    "space in the target": b"POST /v1/chat completions HTTP/1.1\r\n\r\n",
    "unknown version": b"POST /v1/chat/completions HTTP/9.9\r\n" + CL + b"\r\n" + GOOD,
}


async def test_malformed_and_ambiguous_requests_are_400_and_reach_no_backend() -> None:
    async with ScriptedUpstream(echo) as upstream, running_gateway([upstream.url]) as gw:
        for name, wire in AMBIGUOUS.items():
            async with gw.client() as client:
                client.writer.write(wire)
                response = await client.receive()
                assert response.status == 400, name
                assert response.header("content-type") == "application/json", name
                assert response.header("connection") == "close", name
                assert (await response.error())["code"] == "bad_http", name
                await assert_closed(client)
            assert not upstream.requests, name
        gw.assert_at_rest()


async def test_smuggled_requests_stay_body() -> None:
    """What looks like a second request inside a body of known length is body."""
    inner = request_bytes(chat("smuggled"))
    async with ScriptedUpstream(echo) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        body = json.dumps(chat(inner.decode())).encode()
        response = await client.ask(body)
        assert response.status == 200
        await response.read()
        client.writer.write(GET_LIVEZ)
        assert await (await client.receive()).json() == {"status": "ok"}
        assert len(upstream.requests) == 1


@pytest.mark.parametrize("first", ["hot", "asgi"])
async def test_an_answer_is_finished_before_a_malformed_request_behind_it_is_refused(first: str) -> None:
    release = asyncio.Event()

    async def script(served: Served) -> None:
        await served.write(SSE_HEAD + chunk(token("a")))
        await release.wait()
        await served.write(chunk(DONE) + b"0\r\n\r\n")

    async with ScriptedUpstream(script) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        if first == "hot":
            client.writer.write(request_bytes(chat(stream=True)) + b"nonsense\r\n\r\n")
            response = await client.receive()
            release.set()
            assert await response.read() == token("a") + DONE
            assert response.complete
        else:
            client.writer.write(GET_LIVEZ + b"nonsense\r\n\r\n")
            assert await (await client.receive()).json() == {"status": "ok"}
        response = await client.receive()
        assert response.status == 400
        assert (await response.error())["code"] == "bad_http"
        await assert_closed(client)
        gw.assert_at_rest()


# What backends answer.


async def test_a_response_without_framing_ends_with_its_connection() -> None:
    async def script(served: Served) -> None:
        await served.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + token("a") + DONE)
        served.writer.close()

    async with ScriptedUpstream(script) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        for _ in range(2):
            response = await client.ask(chat(stream=True))
            assert response.header("transfer-encoding") == "chunked"
            assert await response.read() == token("a") + DONE
            assert response.complete
        gw.assert_at_rest()


@pytest.mark.parametrize("interim", [b"103 Early Hints\r\nlink: </x>\r\n", b"100 Continue\r\n", b"102 Processing\r\n"])
async def test_interim_answers_of_a_backend_stay_there(interim: bytes) -> None:
    async def script(served: Served) -> None:
        await served.write(b"HTTP/1.1 " + interim + b"\r\n")
        await served.write(b"HTTP/1.1 " + interim + b"\r\n")
        await echo(served)

    async with ScriptedUpstream(script) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        for text in ("a", "b"):
            await client.send(chat(text))
            assert (await client.reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200 ")
            await client.reader.readuntil(b"\r\n\r\n")
            assert await client.reader.readexactly(13) == b'{"echo": "%b"}' % text.encode()
        gw.assert_at_rest()


async def test_bytes_after_a_response_poison_the_connection_but_not_the_answer() -> None:
    async def script(served: Served) -> None:
        body = b'{"a": 1}'
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        await served.write(head + body + b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\nforged!")

    async with ScriptedUpstream(script) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        for _ in range(3):
            assert await (await client.ask(chat())).json() == {"a": 1}
        assert len({id(served.writer) for served in upstream.requests}) == 3
        gw.assert_at_rest()


@pytest.mark.parametrize("status", [204, 304])
async def test_answers_without_a_body(status: int) -> None:
    async def script(served: Served) -> None:
        await served.write(b"HTTP/1.1 %d X\r\nx-engine: 1\r\n\r\n" % status)

    async with ScriptedUpstream(script) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        for _ in range(2):
            response = await client.ask(chat())
            assert response.status == status
            assert response.header("transfer-encoding") is None
            assert response.header("x-engine") == "1"
        gw.assert_at_rest()


async def test_an_empty_answer() -> None:
    async def script(served: Served) -> None:
        await served.respond(b"")

    async with ScriptedUpstream(script) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        for _ in range(2):
            response = await client.ask(chat())
            assert await response.read() == b""
            assert response.complete


@pytest.mark.parametrize("garbage", [b"not http\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n", b"\0" * 64])
async def test_a_backend_that_speaks_no_http_is_502(garbage: bytes) -> None:
    async def script(served: Served) -> None:
        await served.write(garbage)
        await served.until_closed()

    async with ScriptedUpstream(script) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        response = await client.ask(chat())
        assert response.status == 502
        assert (await response.error())["code"] == "upstream_protocol_error"
        assert (await client.ask(b"", path="/livez", method="GET")).status == 200
        gw.assert_at_rest()


async def test_connection_options_of_a_backend_never_pass() -> None:
    async def script(served: Served) -> None:
        lines = b"connection: x-first\r\nconnection: keep-alive\r\nx-first: 1\r\nkeep-alive: timeout=5\r\nx-end: 1\r\n"
        await served.respond({}, headers=lines)

    async with ScriptedUpstream(script) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        response = await client.ask(chat())
        assert response.header("x-end") == "1"
        for name in ("x-first", "keep-alive", "connection"):
            assert response.header(name) is None


# Size and pace.


async def test_five_megabytes_both_ways() -> None:
    async def script(served: Served) -> None:
        await served.respond(served.body)

    text = "".join(chr(0x61 + i % 26) for i in range(5_000_000))
    body = json.dumps(chat(text)).encode()
    async with ScriptedUpstream(script) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        for framed in (body, b"".join(chunk(body[i : i + 99_999]) for i in range(0, len(body), 99_999)) + b"0\r\n\r\n"):
            headers = {} if framed is body else {"transfer-encoding": "chunked"}
            response = await client.ask(framed, headers=headers)
            assert response.status == 200
            assert await response.read() == body
        gw.assert_at_rest()


async def stalled(sent: Any) -> int:
    """The count when it has stopped to grow."""
    before = -1
    while before != sent():
        before = sent()
        await asyncio.sleep(0.1)
    return int(before)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_does_not_read_stops_the_backend(stream: bool) -> None:
    total = 64 << 20
    piece = b"data: " + b"x" * 65_528 + b"\n\n"

    async def script(served: Served) -> None:
        if stream:
            await served.write(SSE_HEAD)
        else:
            await served.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n\r\n" % total)
        for _ in range(total // len(piece)):
            await served.write(chunk(piece) if stream else piece)
        await served.write(b"0\r\n\r\n" if stream else b"")

    async with ScriptedUpstream(script) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await client.send(chat(stream=stream))
        await upstream.until(lambda u: len(u.requests) == 1)
        served = upstream.requests[0]
        sent = await stalled(lambda: served.sent)
        assert 0 < sent < 24 << 20, "the sockets' own buffers, and little more"
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        response = await client.receive()
        size = 0
        async with asyncio.timeout(60):
            async for data in response.chunks():
                size += len(data)
        assert size == total // len(piece) * len(piece)
        assert response.complete
        await gw.until(lambda _: gw.in_flight == 0)
        gw.assert_at_rest()


@pytest.mark.parametrize("size", [100_000, 20], ids=["large answers", "small answers"])
async def test_a_client_that_pipelines_but_does_not_read_is_not_answered_without_bound(size: int) -> None:
    async def script(served: Served) -> None:
        await served.respond({"a": "x" * size})

    async with ScriptedUpstream(script) as upstream, running_gateway([upstream.url]) as gw:
        # small buffers in the kernel: what it cannot take shows in ours
        gw.process._traffic.listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
        client = await gw.connect()
        client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        request = request_bytes(chat()) if size > 1000 else request_bytes(b"x")
        client.writer.write(request * (500 if size > 1000 else 20_000))
        connection = None
        async with asyncio.timeout(10):
            while connection is None:
                connection = next(iter(gw.connections), None)
                await asyncio.sleep(0)
        transport = connection.transport
        buffered = 0
        async with asyncio.timeout(30):
            quiet = 0
            while quiet < 10:
                now = transport.get_write_buffer_size()
                quiet = quiet + 1 if now == buffered else 0
                buffered = now
                await asyncio.sleep(0.02)
        assert 0 < buffered < 2 << 20
        client.reset()
        await client.close()
        await gw.until(lambda g: gw.in_flight == 0 and not g.connections)
        gw.assert_at_rest()


async def test_half_read_responses_leave_nothing_behind() -> None:
    async def script(served: Served) -> None:
        if served.json["stream"]:
            await served.write(SSE_HEAD)
            for _ in range(200):
                await served.write(chunk(b"data: " + b"x" * 30_000 + b"\n\n"))
            await served.write(b"0\r\n\r\n")
        else:
            await served.respond(b"y" * 3_000_000)

    async with ScriptedUpstream(script) as upstream, running_gateway([upstream.url]) as gw:
        for number in range(20):
            client = await gw.connect()
            await client.send(chat(stream=number % 2 == 0))
            response = await client.receive()
            await client.reader.read(1 + number * 5_000)
            assert response.status == 200
            if number % 4 < 2:
                client.reset()
            await client.close()
        await gw.until(lambda g: gw.in_flight == 0 and not g.connections)
        gw.assert_at_rest()
        async with gw.client() as client:
            response = await client.ask(chat())
            assert len(await response.read()) == 3_000_000


async def test_a_backend_that_reads_slowly_gets_the_whole_body() -> None:
    body = json.dumps(chat("z" * 4_000_000)).encode()
    got = bytearray()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"GET"):
            listed = json.dumps({"data": [{"id": "m"}]}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(listed) + listed)
        else:
            while len(got) < len(body):
                got.extend(await reader.read(200_000))
                await asyncio.sleep(0.001)
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=65_536)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, running_gateway([url]) as gw, gw.client() as client:
        response = await client.ask(body)
        assert await response.read() == b"{}"
        assert bytes(got) == body
        gw.assert_at_rest()


async def test_an_answer_before_the_body_was_read_passes() -> None:
    """An engine that refuses early: its answer counts, its connection is not used again."""
    body = json.dumps(chat("z" * 4_000_000)).encode()

    async def script(served: Served) -> None:
        await answer(served)

    async def early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"GET"):
            listed = json.dumps({"data": [{"id": "m"}]}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(listed) + listed)
        else:
            writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\n{}")
            await writer.drain()
            while await reader.read(1 << 20):
                pass
        writer.close()

    server = await asyncio.start_server(early, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, running_gateway([url]) as gw, gw.client() as client:
        response = await client.ask(body)
        assert (response.status, await response.read()) == (413, b"{}")
        assert (await client.ask(b"", path="/livez", method="GET")).status == 200
        gw.assert_at_rest()

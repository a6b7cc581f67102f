"""Requests that could mean two things, byte by byte: each is refused, or is one request and framed anew."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING

import pytest

from tests.support.gateway import RawClient, RunningGateway, chat, request_bytes, running_gateway
from tests.support.oracle import Oracle
from tests.support.scrape import counted
from tests.support.upstream import chunk

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PATHS = {"hot": b"/v1/chat/completions", "asgi": b"/v1/models", "passed": b"/v1/files/x"}
BODY = json.dumps(chat("first")).encode()
INNER = request_bytes(chat("smuggled"))
"""What would be a second request upstream, if somebody read the first one differently."""
LENGTH = b"content-length: %d\r\n" % len(BODY)
TE = b"transfer-encoding: chunked\r\n"
CHUNKS = chunk(BODY) + b"0\r\n\r\n"


def head(path: bytes, lines: bytes, *, method: bytes = b"POST", version: bytes = b"HTTP/1.1") -> bytes:
    return b"%b %b %b\r\nhost: g\r\ncontent-type: application/json\r\n%b\r\n" % (method, path, version, lines)


@contextlib.asynccontextmanager
async def before_oracle() -> AsyncIterator[tuple[RunningGateway, Oracle]]:
    async with Oracle() as oracle, running_gateway([oracle.url], listen={"paths": ["/v1/files/*"]}) as gw:
        yield gw, oracle
        assert oracle.faults == []
        assert counted(gw.gateway, "warmroute_requests_total", status="500") == 0
        await gw.until(lambda g: not g.connections)
        gw.assert_at_rest()
        assert gw.gateway.request_buffer.used == 0


async def all_answers(client: RawClient) -> list[int]:
    """Statuses up to the end of the connection, every answer whole."""
    statuses = []
    with contextlib.suppress(asyncio.IncompleteReadError):
        while True:
            response = await client.receive()
            statuses.append(response.status)
            if response.status not in (204, 304):
                await response.read()
                assert response.complete
    return statuses


# Framing that is refused, on whatever path: nothing reaches a backend, and what follows is never read as a request.

REFUSED = {
    "length, then chunked": LENGTH + TE,
    "chunked, then length": TE + LENGTH,
    "chunked, then length 0": TE + b"content-length: 0\r\n",
    "chunked twice": TE + TE,
    "chunked, chunked": b"transfer-encoding: chunked, chunked\r\n",
    "identity and chunked": b"transfer-encoding: identity\r\n" + TE,
    "chunked and identity": TE + b"transfer-encoding: identity\r\n",
    "chunked, identity": b"transfer-encoding: chunked, identity\r\n",
    "gzip, chunked": b"transfer-encoding: gzip, chunked\r\n",
    "xchunked": b"transfer-encoding: xchunked\r\n",
    "quoted chunked": b'transfer-encoding: "chunked"\r\n',
    "chunked with a parameter": b"transfer-encoding: chunked;q=1\r\n",
    "no coding": b"transfer-encoding:\r\n",
    "vertical tab before chunked": b"transfer-encoding: \x0bchunked\r\n",
    "folded coding": b"transfer-encoding:\r\n chunked\r\n",
    "space before the colon": b"transfer-encoding : chunked\r\n",
    "tab before the colon": b"content-length\t: 5\r\n",
    "line feed inside a name": b"transfer\n-encoding: chunked\r\n",
    "equal lengths": LENGTH + LENGTH,
    "different lengths": LENGTH + b"content-length: 5\r\n",
    "list of lengths": b"content-length: 5, 5\r\n",
    "plus": b"content-length: +5\r\n",
    "minus": b"content-length: -5\r\n",
    "hex": b"content-length: 0x5\r\n",
    "underscore": b"content-length: 1_0\r\n",
    "two numbers": b"content-length: 5 5\r\n",
    "letters": b"content-length: five\r\n",
    "fraction": b"content-length: 5.0\r\n",
    "no length": b"content-length:\r\n",
    "more than 64 bits": b"content-length: 18446744073709551616\r\n",
    "length ended by LF": LENGTH[:-2] + b"\n",
    "LF inside a value": b"x: a\ntransfer-encoding: chunked\r\n" + LENGTH,
    "CR inside a value": b"x: a\rtransfer-encoding: chunked\r\n" + LENGTH,
    "NUL inside a value": b"x: a\0b\r\n" + LENGTH,
    "NUL inside a name": b"x\0y: a\r\n" + LENGTH,
    "control character in a value": b"x: a\x08b\r\n" + LENGTH,
    "DEL in a value": b"x: a\x7fb\r\n" + LENGTH,
    "folded line": b"x: a\r\n content-length: 5\r\n" + LENGTH,
    "folded with tab": b"x: a\r\n\tb\r\n" + LENGTH,
    "no colon": b"nonsense\r\n" + LENGTH,
    "no name": b": x\r\n" + LENGTH,
    "space in a name": b"x y: a\r\n" + LENGTH,
    "non-ASCII name": "é: a\r\n".encode() + LENGTH,
    "second host": b"host: evil\r\n" + LENGTH,
    "host list": LENGTH,
    "end of head by LF": LENGTH + b"\n",
}


@pytest.mark.parametrize("path", PATHS)
async def test_ambiguous_heads_are_refused_and_nothing_of_them_reaches_a_backend(path: str) -> None:
    async with before_oracle() as (gw, oracle):
        for name, lines in REFUSED.items():
            wire = head(PATHS[path], lines)
            if name == "host list":
                wire = wire.replace(b"host: g", b"host: g, evil")
            for rest in (BODY + INNER, CHUNKS + INNER):
                async with gw.client() as client:
                    client.writer.write(wire + rest)
                    statuses = await all_answers(client)
                    assert statuses in ([400], [501]), (name, statuses)
        assert oracle.requests == []


CHUNK_FAULTS = {
    "plus": b"+5\r\nhello\r\n0\r\n\r\n",
    "minus": b"-5\r\nhello\r\n0\r\n\r\n",
    "0x": b"0x5\r\nhello\r\n0\r\n\r\n",
    "underscore": b"0_5\r\nhello\r\n0\r\n\r\n",
    "space before": b" 5\r\nhello\r\n0\r\n\r\n",
    "space after": b"5 \r\nhello\r\n0\r\n\r\n",
    "no size": b"\r\nhello\r\n0\r\n\r\n",
    "more than 64 bits": b"10000000000000005\r\nhello\r\n0\r\n\r\n",
    "size ended by LF": b"5\nhello\r\n0\r\n\r\n",
    "size ended by CR": b"5\rhello\r\n0\r\n\r\n",
    "data ended by LF": b"5\r\nhello\n0\r\n\r\n",
    "data too long": b"5\r\nhelloX\r\n0\r\n\r\n",
    "LF in an extension": b"5;a\nb\r\nhello\r\n0\r\n\r\n",
    "CR in an extension": b"5;a\rb\r\nhello\r\n0\r\n\r\n",
    "NUL in an extension": b"5;a\0b\r\nhello\r\n0\r\n\r\n",
    "length as a trailer": b"5\r\nhello\r\n0\r\ncontent-length: 9\r\n\r\n",
    "coding as a trailer": b"5\r\nhello\r\n0\r\ntransfer-encoding: chunked\r\n\r\n",
    "trailer ended by LF": b"5\r\nhello\r\n0\r\nx: y\n\n",
    "folded trailer": b"5\r\nhello\r\n0\r\nx: y\r\n z\r\n\r\n",
    "last chunk without its end": b"5\r\nhello\r\n0\r\nPOST / HTTP/1.1\r\n",
}


@pytest.mark.parametrize("path", PATHS)
async def test_faulty_chunks_are_refused_and_nothing_of_them_reaches_a_backend(path: str) -> None:
    async with before_oracle() as (gw, oracle):
        for name, chunks in CHUNK_FAULTS.items():
            async with gw.client() as client:
                client.writer.write(head(PATHS[path], TE) + chunks + INNER)
                statuses = await all_answers(client)
                assert statuses == [400] or (path == "asgi" and statuses == [405]), (name, statuses)
        assert oracle.requests == []


TARGETS = {
    "authority": b"example.com:443",
    "relative": b"v1/chat/completions",
    "asterisk": b"*",
    "fragment": b"/v1/chat/completions#x",
    "fragment in a query": b"/v1/chat/completions?a#x",
    "other scheme": b"ftp://g/v1/chat/completions",
    "absolute without host": b"http:///v1/chat/completions",
    "space": b"/v1/chat completions",
    "tab": b"/v1/chat\tcompletions",
    "form feed": b"/v1/chat\x0ccompletions",
    "non-ASCII": b"/v1/chat\xffcompletions",
    "NUL": b"/v1/chat\0completions",
}
LINES = {
    "HTTP/0.9": b"POST /v1/chat/completions\r\n\r\n",
    "HTTP/0.9 with a head": b"POST /v1/chat/completions\r\nhost: g\r\n\r\n",
    "HTTP/1.2": head(PATHS["hot"], LENGTH, version=b"HTTP/1.2") + BODY,
    "HTTP/2.0": head(PATHS["hot"], LENGTH, version=b"HTTP/2.0") + BODY,
    "HTTP/1.10": head(PATHS["hot"], LENGTH, version=b"HTTP/1.10") + BODY,
    "lower case": head(PATHS["hot"], LENGTH, version=b"http/1.1") + BODY,
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0",
    "CONNECT": b"CONNECT g:1 HTTP/1.1\r\nhost: g\r\n\r\n" + INNER,
    "lower case method": head(PATHS["hot"], LENGTH, method=b"post") + BODY,
    "unknown method": head(PATHS["hot"], LENGTH, method=b"BREW") + BODY,
    "no host": b"POST /v1/chat/completions HTTP/1.1\r\n" + LENGTH + b"\r\n" + BODY,
    "no host, asgi": b"GET /livez HTTP/1.1\r\n\r\n",
    "chunked in HTTP/1.0": head(PATHS["hot"], TE, version=b"HTTP/1.0") + CHUNKS,
    "chunked in HTTP/1.0, asgi": head(PATHS["asgi"], TE, version=b"HTTP/1.0") + CHUNKS,
    "line ended by LF": b"POST /v1/chat/completions HTTP/1.1\nhost: g\n\n",
    "line ended by CR": b"POST /v1/chat/completions HTTP/1.1\rhost: g\r\n\r\n",
    "space first": b" " + head(PATHS["hot"], LENGTH) + BODY,
    "folded first line": b"POST /v1/chat/completions HTTP/1.1\r\n host: g\r\n\r\n",
}


async def test_other_targets_lines_and_protocols_are_refused() -> None:
    async with before_oracle() as (gw, oracle):
        wires = {name: head(target, LENGTH) + BODY for name, target in TARGETS.items()} | LINES
        for name, wire in wires.items():
            async with gw.client() as client:
                client.writer.write(wire + INNER)
                statuses = await all_answers(client)
                assert statuses == [400], (name, statuses)
        assert oracle.requests == []


# What is unambiguous is forwarded, framed anew.

SERVED = {
    "length": head(PATHS["hot"], LENGTH) + BODY,
    "length with spaces around": head(PATHS["hot"], b"content-length: \t%d \r\n" % len(BODY)) + BODY,
    "length with zeros": head(PATHS["hot"], b"content-length: 000%d\r\n" % len(BODY)) + BODY,
    "chunks": head(PATHS["hot"], TE) + CHUNKS,
    "CHUNKED": head(PATHS["hot"], b"TRANSFER-ENCODING:\tCHUNKED\r\n") + CHUNKS,
    "extensions": head(PATHS["hot"], TE) + b'%x;a=b;c="d"\r\n%b\r\n0;z\r\n\r\n' % (len(BODY), BODY),
    "size with zeros": head(PATHS["hot"], TE) + b"00000000000000000000%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY),
    "forbidden trailers": head(PATHS["hot"], TE) + CHUNKS[:-2] + b"host: evil\r\nauthorization: x\r\ncookie: a\r\n\r\n",
    "absolute form": head(b"http://evil:1" + PATHS["hot"], LENGTH) + BODY,
    "connection names host": head(PATHS["hot"], b"connection: host, content-length, x-a\r\nx-a: b\r\n" + LENGTH) + BODY,
    "expect": head(PATHS["hot"], b"expect: 100-continue\r\n" + LENGTH) + BODY,
    "upgrade": head(PATHS["hot"], b"connection: upgrade\r\nupgrade: websocket\r\n" + LENGTH) + BODY,
    "upgrade and chunks": head(PATHS["hot"], b"connection: upgrade\r\nupgrade: h2c\r\n" + TE) + CHUNKS,
    "empty lines first": b"\r\n\r\n" + head(PATHS["hot"], LENGTH) + BODY,
    "x-http-method-override": head(PATHS["hot"], b"x-http-method-override: DELETE\r\n" + LENGTH) + BODY,
    "raw bytes in a value": head(PATHS["hot"], b"x-a: \xff\x85\xa0\r\n" + LENGTH) + BODY,
    "body on GET": head(PATHS["passed"], LENGTH, method=b"GET") + BODY,
    "chunks on GET": head(PATHS["passed"], TE, method=b"GET") + CHUNKS,
    "encoded line end": head(PATHS["hot"] + b"?a=%0d%0ax:y", LENGTH) + BODY,
}


@pytest.mark.parametrize("name", SERVED)
async def test_what_is_unambiguous_is_one_request_framed_anew(name: str) -> None:
    wire = SERVED[name]
    async with before_oracle() as (gw, oracle), gw.client() as client:
        client.writer.write(wire + request_bytes(chat("last"), headers={"connection": "close"}))
        assert await all_answers(client) == [200, 200]
        assert oracle.bodies() == [BODY, json.dumps(chat("last")).encode()]
        first = oracle.requests[0]
        assert first.all(b"content-length") == [b"%d" % len(BODY)]
        assert first.all(b"host") == [f"127.0.0.1:{oracle.port}".encode()]
        own = {b"host", b"content-length", b"x-request-id"}
        sent = wire.lower()
        for key, value in first.fields:
            assert key.lower() in own or b"%b: %b" % (key.lower(), value.lower()) in sent, key
        assert not {b"connection", b"upgrade", b"expect", b"cookie", b"x-a"} & {
            key.lower() for key, value in first.fields if value != b"\xff\x85\xa0"
        }


@pytest.mark.parametrize("framing", ["length", "chunks"])
@pytest.mark.parametrize("method", [b"GET", b"HEAD", b"DELETE", b"OPTIONS"])
async def test_a_body_that_nobody_expects_is_no_request(method: bytes, framing: str) -> None:
    inner = INNER if framing == "length" else chunk(INNER) + b"0\r\n\r\n"
    lines = b"content-length: %d\r\n" % len(INNER) if framing == "length" else TE
    async with before_oracle() as (gw, oracle), gw.client() as client:
        for path in (b"/v1/models", b"/livez", b"/nowhere"):
            client.writer.write(head(path, lines, method=method) + inner)
            response = await client.receive()
            assert response.status in (200, 404, 405)
            if method != b"HEAD":
                await response.read()
        assert (await client.ask(chat())).status == 200
        assert len(oracle.requests) == 1


async def test_what_follows_a_last_request_is_not_read() -> None:
    """The client itself said that nothing follows."""
    async with before_oracle() as (gw, oracle), gw.client() as client:
        client.writer.write(request_bytes(chat("first"), headers={"connection": "close"}) + INNER)
        assert await all_answers(client) == [200]
        assert oracle.bodies() == [BODY]


async def test_what_follows_a_refused_body_is_not_read() -> None:
    async with (
        Oracle() as oracle,
        running_gateway([oracle.url], listen={"max_body_mb": 0.001}) as gw,
        gw.client() as client,
    ):
        large = b"x" * 5_000
        client.writer.write(head(PATHS["hot"], TE) + chunk(large) + b"0\r\n\r\n" + INNER + INNER)
        assert await all_answers(client) == [413]
        await gw.until(lambda g: not g.connections)
        assert oracle.requests == []

"""Field cases C: byte fidelity."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib

import brotli
import pytest
import zstandard

from tests.support.gateway import chat, running_gateway
from tests.support.upstream import DONE, SSE_HEAD, ScriptedUpstream, Served, chunk, token

VENDOR_BODY = (
    '{"model": "m", "messages": [{"role": "user", "content": "caf\\u00e9 \\ud83d\\ude00 ünï"}],  '
    '"return_token_ids": true, "vllm_xargs": {"a": [1, {"b": null}]}, "seed": 123456789012345678901234567890, '
    '"temperature": 1e-7, "temperature": 1E-7, "x": "one", "x": "two"\n, "logit_bias": {"1": -100.0}}'
).encode()


async def test_o21_unknown_fields_and_all_bytes_of_the_body_pass() -> None:
    async with ScriptedUpstream() as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        assert (await client.ask(VENDOR_BODY)).status == 200
        assert upstream.requests[0].body == VENDOR_BODY


async def test_o21_a_chunked_request_body_arrives_whole() -> None:
    async with ScriptedUpstream() as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        framed = b"".join(chunk(VENDOR_BODY[i : i + 7]) for i in range(0, len(VENDOR_BODY), 7)) + b"0\r\n\r\n"
        assert (await client.ask(framed, headers={"transfer-encoding": "chunked"})).status == 200
        assert upstream.requests[0].body == VENDOR_BODY
        assert upstream.requests[0].header("content-length") == str(len(VENDOR_BODY))
        assert upstream.requests[0].header("transfer-encoding") is None


@pytest.mark.parametrize("tool_calls", [False, True])
async def test_o23_each_chunk_is_forwarded_as_it_comes(tool_calls: bool) -> None:
    go = asyncio.Event()

    def piece(number: int) -> bytes:
        if not tool_calls:
            return token(str(number))
        call = {"index": 0, "function": {"arguments": str(number)}}
        return b"data: " + json.dumps({"choices": [{"delta": {"tool_calls": [call]}}]}).encode() + b"\n\n"

    async def script(served: Served) -> None:
        await served.write(SSE_HEAD)
        for number in range(20):
            await served.write(chunk(piece(number)))
            await go.wait()  # the next one only when the client has this one
            go.clear()
        await served.write(b"0\r\n\r\n")

    async with ScriptedUpstream(script) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        response = await client.ask(chat(stream=True))
        got = []
        async with asyncio.timeout(20):
            async for data in response.chunks():
                got.append(data)
                go.set()
        assert got == [piece(number) for number in range(20)]


@pytest.mark.parametrize("encoding", ["gzip", "br", "zstd"])
@pytest.mark.parametrize("status", [200, 400])
async def test_o19_compressed_bodies_pass_as_they_are(encoding: str, status: int) -> None:
    plain = json.dumps({"choices": [{"message": {"content": "x" * 5000}}]}).encode()
    packed = {
        "gzip": gzip.compress(plain),
        "br": brotli.compress(plain),
        "zstd": zstandard.ZstdCompressor().compress(plain),
    }[encoding]

    async def script(served: Served) -> None:
        assert served.header("accept-encoding") == encoding
        await served.respond(packed, status, f"content-encoding: {encoding}\r\n".encode())

    async with ScriptedUpstream(script) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        response = await client.ask(chat(), headers={"accept-encoding": encoding})
        assert response.status == status
        assert response.header("content-encoding") == encoding
        assert response.header("content-length") == str(len(packed))
        assert await response.read() == packed


async def test_o19_no_encoding_is_asked_for_that_the_client_did_not_ask_for() -> None:
    plain = json.dumps({"choices": [{"message": {"content": "x" * 5000}}]}).encode()

    async def script(served: Served) -> None:
        assert served.header("accept-encoding") is None
        await served.respond(plain)

    async with ScriptedUpstream(script) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        response = await client.ask(chat())
        assert response.header("content-encoding") is None
        assert await response.read() == plain


async def test_o19_a_compressed_stream_passes_as_it_is() -> None:
    packer = zlib.compressobj(wbits=31)
    pieces = [packer.compress(token(str(number))) + packer.flush(zlib.Z_SYNC_FLUSH) for number in range(5)]
    pieces.append(packer.compress(DONE) + packer.flush())

    async def script(served: Served) -> None:
        await served.write(SSE_HEAD.replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n"))
        for piece in pieces:
            await served.write(chunk(piece))
        await served.write(b"0\r\n\r\n")

    async with ScriptedUpstream(script) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        response = await client.ask(chat(stream=True), headers={"accept-encoding": "gzip"})
        assert response.header("content-encoding") == "gzip"
        body = await response.read()
        assert body == b"".join(pieces)
        assert gzip.decompress(body) == b"".join(token(str(number)) for number in range(5)) + DONE
        assert response.complete


async def test_o19_a_compressed_stream_that_dies_is_not_patched_with_plain_text() -> None:
    packer = zlib.compressobj(wbits=31)
    piece = packer.compress(token("a")) + packer.flush(zlib.Z_SYNC_FLUSH)

    async def script(served: Served) -> None:
        await served.write(SSE_HEAD.replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n") + chunk(piece))
        served.reset()

    async with ScriptedUpstream(script) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        response = await client.ask(chat(stream=True), headers={"accept-encoding": "gzip"})
        assert await response.read() == piece
        assert not response.complete, "never a clean end"


async def test_headers_pass_but_for_hop_by_hop_credentials_and_internal_names() -> None:
    async def script(served: Served) -> None:
        lines = (b"X-Engine: E", b"connection: keep-alive, x-hop", b"x-hop: 1", b"x-warmroute-a: 1", b"")
        await served.respond({}, headers=b"\r\n".join(lines))

    sent = {
        "X-Custom": "Value, with  spaces",
        "authorization": "Bearer secret",
        "x-api-key": "secret",
        "connection": "keep-alive, x-private",
        "x-private": "1",
        "te": "trailers",
        "x-warmroute-backend": "forged",
        "x-request-id": "abc-123",
    }
    async with ScriptedUpstream(script) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        response = await client.ask(chat(), headers=sent)
        got = upstream.requests[0]
        assert got.header("x-custom") == "Value, with  spaces"
        assert got.header("x-request-id") == "abc-123"
        for name in ("authorization", "x-api-key", "x-private", "te", "x-warmroute-backend", "connection"):
            assert got.header(name) is None
        assert ("X-Engine", "E") in response.headers
        assert response.header("x-hop") is None
        assert response.header("x-warmroute-a") is None
        assert response.header("x-request-id") == "abc-123"
        assert response.header("x-warmroute-backend") == "a"

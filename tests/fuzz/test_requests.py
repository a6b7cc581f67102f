"""Valid pipelined requests, cut and spoilt at random: what a backend sees are whole requests that the client sent, in
their order, and the gateway neither hangs nor breaks."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from typing import TYPE_CHECKING

from hypothesis import given, note
from hypothesis import strategies as st

from tests.support.fuzz import CUTS, ErrorLog, Stage, examples, faults, pieces, spoil
from tests.support.gateway import chat, running_gateway
from tests.support.oracle import Oracle
from tests.support.reading import read_requests
from tests.support.upstream import chunk

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from tests.support.gateway import RunningGateway

QUIET_TURNS = 12
TOKENS = [
    *(
        b"\r",
        b"\n",
        b"\r\n",
        b"\r\n\r\n",
        b"\0",
        b" ",
        b"\t",
        b":",
        b";",
        b",",
        b"\x0b",
        b"\xff",
        b"0",
        b"+",
        b"-",
        b"0x",
    ),
    b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding : chunked\r\n",
    b"Content-Length: 5\r\n",
    b"content-length: 0\r\n",
    b"\r\n Content-Length: 5",
    b"Connection: close\r\n",
    b"Connection: upgrade\r\nUpgrade: h2c\r\n",
    b"Expect: 100-continue\r\n",
    b"Host: evil\r\n",
    b"0\r\n\r\n",
    b"5\r\nhello\r\n",
    b" HTTP/1.1\r\n",
    b" HTTP/1.0\r\n",
    b"GET /livez HTTP/1.1\r\nhost: g\r\n\r\n",
    b"http://g",
    b"#",
]
TEXTS = [
    "plain",
    "é🙂",
    "GET / HTTP/1.1\r\n\r\n",
    "0\r\n\r\nPOST /v1/chat/completions HTTP/1.1\r\nhost: g\r\n\r\n",
    "x" * 3000,
]
FIELDS = [b"x-a: b\r\n", b"X-Session-Id: s\r\n", b"accept: */*\r\n", b"connection: keep-alive\r\n", b"x-empty:\r\n"]


@st.composite
def requests(draw: Callable[[Any], Any]) -> bytes:
    kind = draw(st.sampled_from(["length", "length", "chunks", "get", "bad json", "get with body"]))
    fields = b"".join(draw(st.lists(st.sampled_from(FIELDS), max_size=3)))
    if kind == "get":
        return b"GET %b HTTP/1.1\r\nhost: g\r\n%b\r\n" % (draw(st.sampled_from([b"/livez", b"/v1/models"])), fields)
    body = json.dumps(chat(draw(st.sampled_from(TEXTS))), ensure_ascii=False).encode()
    if kind == "get with body":
        return b"GET /livez HTTP/1.1\r\nhost: g\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    if kind == "bad json":
        body = body[1:]
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\ncontent-type: application/json\r\n" + fields
    if kind == "chunks":
        framed = b"".join(chunk(piece) for piece in pieces(body, draw(CUTS)))
        trailer: bytes = draw(st.sampled_from([b"", b"x-trailer: 1\r\n"]))
        return head + b"transfer-encoding: chunked\r\n\r\n" + framed + b"0\r\n" + trailer + b"\r\n"
    return head + b"content-length: %d\r\n\r\n%b" % (len(body), body)


class Edge:
    """A gateway before an oracle, for all examples of a test."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.oracle = stage.enter(Oracle())
        listen = {"header_timeout_s": 60, "body_timeout_s": 60, "max_header_kb": 16}
        self.gw: RunningGateway = stage.enter(running_gateway([self.oracle.url], listen=listen))
        self.log = ErrorLog(self.gw.gateway)

    def send(self, wire: bytes, cuts: list[int]) -> bytes:
        """All that comes back, once nothing more comes."""
        self.oracle.requests.clear()
        answers = self._stage.run(self._send(pieces(wire, cuts)))
        assert self.oracle.faults == []
        assert self.log.errors == []
        return answers

    async def _send(self, parts: list[bytes]) -> bytes:
        client = await self.gw.connect()
        answers = b""
        reading = asyncio.ensure_future(client.reader.read(1 << 20))
        with contextlib.suppress(ConnectionError):
            for part in parts:
                client.writer.write(part)
                await asyncio.sleep(0)
            quiet = 0
            while quiet < QUIET_TURNS:
                done, _ = await asyncio.wait([reading], timeout=0.002)
                if not done:
                    quiet = quiet + 1 if not self.gw.in_flight and not self.gw.gateway.tasks else 0
                    continue
                quiet = 0
                data = reading.result()
                if not data:
                    break
                answers += data
                reading = asyncio.ensure_future(client.reader.read(1 << 20))
        reading.cancel()
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            await reading
        client.reset()
        await client.close()
        await self.gw.until(lambda g: not g.connections and self.gw.in_flight == 0 and not g.tasks)
        self.gw.assert_at_rest()
        assert self.gw.gateway.request_buffer.used == 0
        return answers


def statuses(answers: bytes) -> list[int]:
    """Of a sequence of answers of known length; raises where it is none. 100 Continue is left out."""
    found = []
    while answers:
        head, separator, rest = answers.partition(b"\r\n\r\n")
        line = re.match(rb"HTTP/1\.1 ([1-5][0-9][0-9]) ", head)
        assert line is not None, answers[:200]
        assert separator, answers[:200]
        length = re.search(rb"\r\ncontent-length: ([0-9]+)", head)
        size = int(length[1]) if length else 0
        assert length or line[1] == b"100", head
        assert len(rest) >= size, "an answer was cut"
        answers = rest[size:]
        if line[1] != b"100":
            found.append(int(line[1]))
    return found


def test_valid_requests_are_all_answered_however_they_are_cut() -> None:
    with Stage() as stage:
        edge = Edge(stage)

        @examples(25)
        @given(st.lists(requests(), min_size=1, max_size=6), CUTS)
        def check(wires: list[bytes], cuts: list[int]) -> None:
            sent, whole = read_requests(b"".join(wires))
            assert whole
            assert len(sent) == len(wires)
            found = statuses(edge.send(b"".join(wires), cuts))
            chats = [read.body for read in sent if read.path.endswith(b"completions") and read.body.startswith(b"{")]
            assert edge.oracle.bodies() == chats
            assert found == [400 if read.method == b"POST" and not read.body.startswith(b"{") else 200 for read in sent]

        check()


def test_whatever_is_spoilt_a_backend_sees_only_what_was_sent_whole() -> None:
    with Stage() as stage:
        edge = Edge(stage)

        @examples(60)
        @given(st.lists(requests(), min_size=1, max_size=4), faults(TOKENS), CUTS)
        def check(wires: list[bytes], found: list[tuple[str, int, int, bytes]], cuts: list[int]) -> None:
            wire = spoil(b"".join(wires), found)
            note(repr(wire))
            sent, _ = read_requests(wire)
            answered = statuses(edge.send(wire, cuts))
            left = iter([read.body for read in sent if read.path == b"/v1/chat/completions"])
            for body in edge.oracle.bodies():
                assert body in left, "not sent, or not whole, or not in this order"
            assert len(answered) <= len(sent) + 1, "one answer each, and one refusal"

        check()


def test_noise_is_refused() -> None:
    with Stage() as stage:
        edge = Edge(stage)

        @examples(40)
        @given(st.lists(st.sampled_from(TOKENS) | st.binary(max_size=20), max_size=12).map(b"".join), CUTS)
        def check(wire: bytes, cuts: list[int]) -> None:
            note(repr(wire))
            statuses(edge.send(wire, cuts))
            assert edge.oracle.requests == []

        check()

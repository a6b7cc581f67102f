"""A DNS server on loopback, UDP and TCP, that answers what a test says."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Self, cast

import dns.asyncresolver
import dns.exception
import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset

if TYPE_CHECKING:
    from types import TracebackType


class NameServer:
    """Names without records do not exist. `rcodes` and `silent` go before the records."""

    def __init__(self) -> None:
        self.port = 0
        self.records: dict[tuple[str, str], tuple[int, list[str]]] = {}
        """(TTL, rdata as text) by (name, type)."""
        self.rcodes: dict[tuple[str, str], dns.rcode.Rcode] = {}
        self.silent = False
        self.questions: list[tuple[str, str]] = []
        self.tcp_questions = 0

    def set(self, name: str, kind: str, *values: str, ttl_s: int = 300) -> None:
        """No values: the name exists, but has none of this type."""
        self.records[name, kind] = ttl_s, list(values)

    def resolver(self) -> dns.asyncresolver.Resolver:
        resolver = dns.asyncresolver.Resolver(configure=False)
        resolver.nameservers = ["127.0.0.1"]
        resolver.port = self.port
        resolver.timeout = resolver.lifetime = 0.3
        return resolver

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        for _ in range(20):  # one port for both protocols
            self._tcp = await asyncio.start_server(self._serve, "127.0.0.1", 0)
            self.port = self._tcp.sockets[0].getsockname()[1]
            with contextlib.suppress(OSError):
                self._udp, _ = await loop.create_datagram_endpoint(
                    lambda: _Datagrams(self), local_addr=("127.0.0.1", self.port)
                )
                return self
            self._tcp.close()
            await self._tcp.wait_closed()
        raise OSError("no port that is free for UDP and TCP")

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._udp.close()
        self._tcp.close()
        await self._tcp.wait_closed()

    def answer(self, wire: bytes, max_bytes: int) -> bytes | None:
        query = dns.message.from_wire(wire)
        question = query.question[0]
        name = question.name.to_text(omit_final_dot=True)
        kind = dns.rdatatype.to_text(question.rdtype)
        self.questions.append((name, kind))
        if self.silent:
            return None
        response = dns.message.make_response(query)
        ttl_s, values = self.records.get((name, kind), (0, []))
        if (name, kind) in self.rcodes:
            response.set_rcode(self.rcodes[name, kind])
        elif values:
            response.answer.append(dns.rrset.from_text_list(question.name, ttl_s, "IN", kind, values))
        elif not any(known == name for known, _ in self.records):
            response.set_rcode(dns.rcode.NXDOMAIN)
        try:
            return response.to_wire(max_size=max_bytes)
        except dns.exception.TooBig:
            response.answer.clear()
            response.flags |= dns.flags.TC
            return response.to_wire()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            wire = await reader.readexactly(int.from_bytes(await reader.readexactly(2), "big"))
            self.tcp_questions += 1
            answer = self.answer(wire, 65_535)
            if answer is not None:
                writer.write(len(answer).to_bytes(2, "big") + answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, server: NameServer) -> None:
        self._server = server
        self._transport: asyncio.DatagramTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        answer = self._server.answer(data, 512)
        if answer is not None:
            self._transport.sendto(answer, addr)

"""Backends behind a DNS name: the addresses of a host, or the targets of an SRV record.

Invariant: a name server that fails or is away changes nothing, and an answer without records is believed only when it
came three times in a row. /etc/hosts is not read.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import dns.asyncresolver
import dns.exception
import dns.resolver

from backends.addresses import Address, unsafe
from backends.discovery.backoff import Backoff
from backends.discovery.protocol import AddressRefused, EmptyAnswer, Found, opaque_name

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from backends.discovery.protocol import Failed, Report, Sleep

_LEAST_WAIT_S: Final = 1.0
_LIFETIME_S: Final = 5.0
"""Of one question, over all name servers."""
_EMPTY_ANSWERS: Final = 3
_PARALLEL: Final = 16
_UDP_BYTES: Final = 1232  # fits every path; what is longer comes by TCP


def system_resolver() -> dns.asyncresolver.Resolver:
    """By /etc/resolv.conf, which it reads: not for the event loop. Raises dns.exception.DNSException."""
    resolver = dns.asyncresolver.Resolver()
    resolver.use_edns(0, 0, _UDP_BYTES)
    resolver.lifetime = _LIFETIME_S
    return resolver


@dataclass(slots=True)
class _Round:
    """What one time of asking has met."""

    ttl_s: float
    errors: list[Exception] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    asked: set[tuple[str, str]] = field(default_factory=set)


class DnsSource:
    """`host` names addresses, or SRV records where it begins with an underscore: then ports come from the records, only
    those of the lowest priority count, and weights are ignored: the policies know the load better.

    Where a name has IPv4 addresses, its IPv6 addresses are taken for the same engines and left aside.
    """

    def __init__(
        self,
        host: str,
        port: int,
        scheme: str,
        refresh_s: float,
        rng: random.Random,
        make_resolver: Callable[[], dns.asyncresolver.Resolver] = system_resolver,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """`port` is of no meaning for SRV names."""
        self._host = host
        self._port = port
        self._scheme = scheme
        self._refresh_s = refresh_s
        self._make_resolver = make_resolver
        self._sleep = sleep
        self._resolver: dns.asyncresolver.Resolver | None = None
        self._backoff = Backoff(rng)
        self._slots = asyncio.Semaphore(_PARALLEL)
        self._last: dict[tuple[str, str], tuple[Any, ...]] = {}
        """Last answer by (name, record type), for the questions of the last round."""
        self._found: tuple[Found, ...] = ()
        self._empty_answers = 0

    async def run(self, report: Report, failed: Failed) -> None:
        while True:
            wait_s = await self._round(report, failed)
            await self._sleep(wait_s)

    async def _round(self, report: Report, failed: Failed) -> float:
        """Ask once; returns the seconds to wait."""
        asked = _Round(self._refresh_s)
        found = await self._ask(asked)
        for error in asked.errors:
            failed(error)
        if asked.refused:
            failed(AddressRefused(f"{self._host}: {len(asked.refused)} addresses are refused: {asked.refused[0]}"))
        if found:
            self._empty_answers = 0
            self._found = found
            report(found)
        elif not asked.errors and not asked.refused:
            return self._empty(report, failed)
        if asked.errors:
            self._resolver = None  # its settings may be what has changed
            return self._backoff.next_s()
        self._backoff.reset()
        return max(_LEAST_WAIT_S, min(asked.ttl_s, self._refresh_s))

    def _empty(self, report: Report, failed: Failed) -> float:
        self._empty_answers += 1
        failed(EmptyAnswer(f"{self._host}: no records"))
        if not self._found:
            return min(self._backoff.next_s(), max(_LEAST_WAIT_S, self._refresh_s))
        if self._empty_answers >= _EMPTY_ANSWERS:
            self._found = ()
            report(())
        return max(_LEAST_WAIT_S, self._refresh_s)

    async def _ask(self, asked: _Round) -> tuple[Found, ...]:
        if self._resolver is None:
            try:
                self._resolver = await asyncio.to_thread(self._make_resolver)
            except (dns.exception.DNSException, OSError) as error:
                asked.errors.append(error)
                return ()
        if self._host.startswith("_"):
            places = await self._targets(asked)
        else:
            places = [(self._host, self._port)]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._addresses(name, port, asked)) for name, port in places]
        self._last = {key: values for key, values in self._last.items() if key in asked.asked}
        found = {one.address: one for task in tasks for one in task.result()}
        return tuple(found[address] for address in sorted(found, key=str))

    async def _targets(self, asked: _Round) -> list[tuple[str, int]]:
        """(name, port) of the SRV records that count."""
        records = await self._records(self._host, "SRV", asked)
        first = min((record.priority for record in records), default=0)
        return sorted(
            {
                (str(record.target), record.port)
                for record in records
                # a target of "." says that the service is not there (RFC 2782)
                if record.priority == first and record.port and str(record.target) != "."
            }
        )

    async def _addresses(self, name: str, port: int, asked: _Round) -> list[Found]:
        async with self._slots:
            records = await self._records(name, "A", asked) or await self._records(name, "AAAA", asked)
        found = []
        for record in records:
            reason = unsafe(record.address)
            if reason is not None:
                asked.refused.append(reason)
                continue
            address = Address(self._scheme, record.address, port)
            certificate = name.rstrip(".") if self._scheme == "https" else None
            found.append(Found(opaque_name(address), address, certificate))
        return found

    async def _records(self, name: str, kind: str, asked: _Round) -> tuple[Any, ...]:
        """Of one question; those of the last answer where there is none now."""
        key = name, kind
        asked.asked.add(key)
        assert self._resolver is not None
        try:
            answer = await self._resolver.resolve(name, kind, raise_on_no_answer=False, search=True)
        except dns.resolver.NXDOMAIN:
            self._last[key] = ()
        except (dns.exception.DNSException, OSError) as error:
            asked.errors.append(error)
        else:
            self._last[key] = tuple(answer)
            if self._last[key]:
                asked.ttl_s = min(asked.ttl_s, answer.chaining_result.minimum_ttl)
        return self._last.get(key, ())

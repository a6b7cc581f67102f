"""DNS sources against a scripted name server on real sockets."""

from __future__ import annotations

import random

import dns.rcode
import dns.resolver
import pytest

from backends.discovery.dns import DnsSource
from tests.support.discovery import Ticker, running
from tests.support.name_server import NameServer

HOST = "vllm.test"
SRV = "_http._tcp.vllm.test"


def source(server: NameServer, ticker: Ticker, host: str = HOST, scheme: str = "http") -> DnsSource:
    return DnsSource(host, 8000, scheme, 30.0, random.Random(1), server.resolver, ticker.sleep)


async def test_addresses_of_a_name() -> None:
    async with NameServer() as server:
        server.set(HOST, "A", "10.0.0.2", "10.0.0.1", ttl_s=20)
        ticker = Ticker()
        async with running(source(server, ticker)) as seen:
            assert await ticker.asleep() == 20, "asked again when the TTL ends"
            assert [str(found.address) for found in seen.last] == ["http://10.0.0.1:8000", "http://10.0.0.2:8000"]
            assert all(found.takes_traffic and found.server_hostname is None for found in seen.last)
            names = {found.address.host: found.name for found in seen.last}
            server.set(HOST, "A", "10.0.0.3", "10.0.0.2", ttl_s=0)
            assert await ticker.tick() == 1, "never in a tight loop"
            assert seen.hosts == ["10.0.0.2", "10.0.0.3"]
            assert seen.last[0].name == names["10.0.0.2"], "the name stays that of the address"
            assert len(set(names.values()) | {seen.last[1].name}) == 3
            assert not any("10.0" in name or "10-0" in name for name in names.values())
            assert not seen.errors


async def test_long_ttls_do_not_delay_what_is_new() -> None:
    async with NameServer() as server:
        server.set(HOST, "A", "10.0.0.1", ttl_s=86_400)
        ticker = Ticker()
        async with running(source(server, ticker)):
            assert await ticker.asleep() == 30


async def test_ipv6_only_where_there_is_no_ipv4() -> None:
    async with NameServer() as server:
        server.set(HOST, "AAAA", "fd00::7")
        ticker = Ticker()
        async with running(source(server, ticker)) as seen:
            await ticker.asleep()
            assert [str(found.address) for found in seen.last] == ["http://[fd00::7]:8000"]
            server.set(HOST, "A", "10.0.0.7")
            await ticker.tick()
            assert seen.hosts == ["10.0.0.7"], "both are one engine"


async def test_certificates_are_checked_for_the_name() -> None:
    async with NameServer() as server:
        server.set(HOST, "A", "10.0.0.1")
        server.set(SRV, "SRV", f"0 0 8443 a.{HOST}.")
        server.set(f"a.{HOST}", "A", "10.0.0.9")
        ticker = Ticker()
        async with running(source(server, ticker, scheme="https")) as seen:
            await ticker.asleep()
            assert [(str(f.address), f.server_hostname) for f in seen.last] == [("https://10.0.0.1:8000", HOST)]
        ticker = Ticker()
        async with running(source(server, ticker, SRV, "https")) as seen:
            await ticker.asleep()
            assert [(str(f.address), f.server_hostname) for f in seen.last] == [("https://10.0.0.9:8443", f"a.{HOST}")]


async def test_srv_targets_of_the_lowest_priority() -> None:
    async with NameServer() as server:
        server.set(
            SRV,
            "SRV",
            f"10 0 8001 a.{HOST}.",
            f"10 90 8002 a.{HOST}.",
            f"10 5 8001 b.{HOST}.",
            f"20 100 8001 c.{HOST}.",
            ttl_s=25,
        )
        for label, host in (("a", "10.0.0.1"), ("b", "10.0.0.2"), ("c", "10.0.0.3")):
            server.set(f"{label}.{HOST}", "A", host, ttl_s=15)
        ticker = Ticker()
        async with running(source(server, ticker, SRV)) as seen:
            assert await ticker.asleep() == 15, "the shortest TTL of all that was asked"
            assert {(f.address.host, f.address.port) for f in seen.last} == {
                ("10.0.0.1", 8001),
                ("10.0.0.1", 8002),
                ("10.0.0.2", 8001),
            }
            server.rcodes[f"b.{HOST}", "A"] = dns.rcode.SERVFAIL
            await ticker.tick()
            assert len(seen.last) == 3, "a target that cannot be asked for now keeps its addresses"
            assert seen.kinds == ["NoNameservers"]


async def test_a_long_answer_comes_by_tcp() -> None:
    async with NameServer() as server:
        server.set(HOST, "A", *(f"10.0.1.{i}" for i in range(200)))
        ticker = Ticker()
        async with running(source(server, ticker)) as seen:
            await ticker.asleep()
            assert len(seen.last) == 200
            assert server.tcp_questions == 1


@pytest.mark.parametrize("fault", ["silent", "servfail", "refused"])
async def test_a_failing_name_server_changes_nothing(fault: str) -> None:
    async with NameServer() as server:
        server.set(HOST, "A", "10.0.0.1", ttl_s=5)
        ticker = Ticker()
        async with running(source(server, ticker)) as seen:
            await ticker.asleep()
            if fault == "silent":
                server.silent = True
            else:
                rcode = {"servfail": dns.rcode.SERVFAIL, "refused": dns.rcode.REFUSED}[fault]
                server.rcodes = {(HOST, "A"): rcode, (HOST, "AAAA"): rcode}
            waits = [await ticker.tick() for _ in range(4)]
            assert all(report == seen.reports[0] for report in seen.reports)
            assert len(seen.errors) == 4
            assert set(seen.kinds) == {"LifetimeTimeout" if fault == "silent" else "NoNameservers"}
            assert waits[0] <= 0.5 < waits[3], "with a growing pause"
            server.silent, server.rcodes = False, {}
            server.set(HOST, "A", "10.0.0.2", ttl_s=5)
            assert await ticker.tick() == 5
            assert seen.hosts == ["10.0.0.2"]


@pytest.mark.parametrize("empty", ["nxdomain", "no records"])
async def test_an_empty_answer_is_believed_the_third_time(empty: str) -> None:
    async with NameServer() as server:
        server.set(HOST, "A", "10.0.0.1", ttl_s=5)
        ticker = Ticker()
        async with running(source(server, ticker)) as seen:
            await ticker.asleep()
            server.records.clear()
            if empty == "no records":
                server.set(HOST, "TXT", "x")
            await ticker.tick()
            await ticker.tick()
            assert seen.hosts == ["10.0.0.1"]
            server.set(HOST, "A", "10.0.0.1", ttl_s=5)
            await ticker.tick()
            server.records[HOST, "A"] = 0, []
            await ticker.tick()
            await ticker.tick()
            assert seen.hosts == ["10.0.0.1"], "an answer in between: it counts anew"
            await ticker.tick()
            assert seen.last == ()
            assert seen.kinds == ["EmptyAnswer"] * 5


async def test_a_failure_between_empty_answers_is_none_of_them() -> None:
    async with NameServer() as server:
        server.set(HOST, "A", "10.0.0.1")
        ticker = Ticker()
        async with running(source(server, ticker)) as seen:
            await ticker.asleep()
            server.records.clear()
            await ticker.tick()
            await ticker.tick()
            server.rcodes = {(HOST, "A"): dns.rcode.SERVFAIL, (HOST, "AAAA"): dns.rcode.SERVFAIL}
            for _ in range(3):
                await ticker.tick()
            assert seen.hosts == ["10.0.0.1"]


async def test_a_name_that_does_not_exist_yet() -> None:
    async with NameServer() as server:
        ticker = Ticker()
        async with running(source(server, ticker)) as seen:
            waits = [await ticker.asleep(), *[await ticker.tick() for _ in range(8)]]
            assert not seen.reports, "no answer is not an empty fleet"
            assert waits[0] <= 0.5, "soon again"
            assert max(waits) <= 30
            server.set(HOST, "A", "10.0.0.1")
            await ticker.tick()
            assert seen.hosts == ["10.0.0.1"]


@pytest.mark.parametrize("address", ["169.254.169.254", "224.0.0.1", "0.0.0.0", "100.100.100.200"])
async def test_o74_poisoned_answers(address: str) -> None:
    async with NameServer() as server:
        server.set(HOST, "A", "10.0.0.1", address, ttl_s=5)
        ticker = Ticker()
        async with running(source(server, ticker)) as seen:
            assert await ticker.asleep() == 5
            assert seen.hosts == ["10.0.0.1"]
            assert seen.kinds == ["AddressRefused"]
            assert address not in str(seen.errors[0])
            server.set(HOST, "A", address, ttl_s=5)
            for _ in range(4):
                await ticker.tick()
            assert seen.hosts == ["10.0.0.1"], "and they do not empty the fleet"


async def test_o74_poisoned_ipv6_and_srv_answers() -> None:
    async with NameServer() as server:
        server.set(HOST, "AAAA", "fe80::1", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "fd00:ec2::254", "fd00::1")
        ticker = Ticker()
        async with running(source(server, ticker)) as seen:
            await ticker.asleep()
            assert seen.hosts == ["fd00::1"]
        server.set(SRV, "SRV", "0 0 80 evil.test.", f"0 0 80 a.{HOST}.", "0 0 0 a.test.")
        server.set("evil.test", "A", "169.254.169.254")
        server.set(f"a.{HOST}", "A", "10.0.0.1")
        ticker = Ticker()
        async with running(source(server, ticker, SRV)) as seen:
            await ticker.asleep()
            assert seen.hosts == ["10.0.0.1"]
            assert seen.kinds == ["AddressRefused"]


async def test_a_service_that_says_it_is_not_there() -> None:
    async with NameServer() as server:
        server.set(SRV, "SRV", "0 0 0 .")
        ticker = Ticker()
        async with running(source(server, ticker, SRV)) as seen:
            await ticker.asleep()
            assert seen.kinds == ["EmptyAnswer"]
            assert not seen.reports


async def test_a_machine_without_name_servers() -> None:
    def none() -> dns.asyncresolver.Resolver:
        raise dns.resolver.NoResolverConfiguration

    ticker = Ticker()
    async with NameServer() as server:
        server.set(HOST, "A", "10.0.0.1")
        made = iter([none, server.resolver])
        lazily = DnsSource(HOST, 8000, "http", 30.0, random.Random(1), lambda: next(made)(), ticker.sleep)
        async with running(lazily) as seen:
            await ticker.asleep()
            assert seen.kinds == ["NoResolverConfiguration"]
            await ticker.tick()
            assert seen.hosts == ["10.0.0.1"], "settings are read again after an error"


async def test_cancelled_while_asking() -> None:
    async with NameServer() as server:
        server.silent = True
        async with running(source(server, Ticker())):
            while not server.questions:
                await Ticker(1.0).sleep(0)

"""Orders to the fleet through the admin port and the command line, while requests run."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from gateway.cli import cli
from tests.support.gateway import RunningGateway, chat, running_gateway
from tests.support.process import client_of
from tests.support.upstream import DONE, SSE_HEAD, ScriptedUpstream, Served, answer, chunk, token

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from backends.backend import Backend

LOCAL = {"host": "localhost"}


@dataclass
class Held:
    """Streams send their first token at once, and the rest when they may."""

    release: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, served: Served) -> None:
        if not served.json.get("stream"):
            await answer(served)
            return
        await served.write(SSE_HEAD + chunk(token("a")))
        await self.release.wait()
        await served.write(chunk(token("b")) + chunk(DONE) + b"0\r\n\r\n")


@contextlib.asynccontextmanager
async def two(**sections: Any) -> AsyncIterator[tuple[RunningGateway, Held]]:
    held = Held()
    async with (
        ScriptedUpstream(held) as a,
        ScriptedUpstream(held) as b,
        running_gateway([a.url, b.url], **sections) as gw,
    ):
        yield gw, held
        held.release.set()


def backend(gw: RunningGateway, name: str) -> Backend:
    return next(one for one in gw.gateway.registry if one.name == name)


async def order(gw: RunningGateway, path: str, status: int = 200) -> dict[str, Any]:
    async with client_of(gw.admin_url) as client:
        response = await client.ask({}, path=f"/admin/v1/{path}", headers=LOCAL)
        assert response.status == status, path
        answered = await response.json()
        assert isinstance(answered, dict)
        return answered


async def status_of(gw: RunningGateway, name: str) -> dict[str, Any]:
    async with client_of(gw.admin_url) as client:
        shown = await (await client.ask(b"", path="/admin/v1/status", method="GET", headers=LOCAL)).json()
        return next(one for one in shown["backends"] if one["name"] == name)


async def ask(gw: RunningGateway, session: str = "s") -> tuple[int, str | None]:
    async with gw.client() as client:
        response = await client.ask(chat(f"{session} " * 200), headers={"x-session-id": session})
        await response.read()
        return response.status, response.header("x-warmroute-backend")


async def test_what_runs_ends_and_what_comes_goes_elsewhere() -> None:
    async with two() as (gw, held), gw.client() as streaming:
        response = await streaming.ask(chat("x" * 600, stream=True), headers={"x-session-id": "s"})
        home = str(response.header("x-warmroute-backend"))
        other = "b" if home == "a" else "a"
        shown = await order(gw, f"backends/{home}/drain")
        assert (shown["name"], shown["draining"], shown["in_flight"], shown["empty"]) == (home, ["admin"], 1, False)
        assert await order(gw, f"backends/{home}/drain") == {**shown, **_times(await status_of(gw, home))}
        for session in ("s", "t", "u"):
            assert await ask(gw, session) == (200, other)
        assert shown["state"] == (await status_of(gw, home))["state"] == "up", "it is still probed"
        held.release.set()
        assert await response.read() == token("a") + token("b") + DONE
        assert response.complete
        await gw.until(lambda _: gw.in_flight == 0)
        shown = await status_of(gw, home)
        assert (shown["in_flight"], shown["empty"], shown["draining"]) == (0, True, ["admin"])
        shown = await order(gw, f"backends/{home}/undrain")
        assert (shown["draining"], shown["empty"]) == ([], False)
        assert {(await ask(gw, f"new {number}"))[1] for number in range(10)} == {"a", "b"}
        gw.assert_at_rest()


def _times(shown: dict[str, Any]) -> dict[str, Any]:
    """What goes on by itself."""
    return {name: shown[name] for name in ("uptime_s", "slow_start", "engine", "capacity_tokens")}


async def test_a_fleet_of_which_all_rest_is_not_ready_and_says_so() -> None:
    async with two() as (gw, _), gw.client() as client:
        for name in "ab":
            await order(gw, f"backends/{name}/drain")
        response = await client.ask(chat())
        assert response.status == 503
        assert (await response.error())["code"] == "no_backend_available"
        assert response.header("retry-after") == "1"
        assert (await client.ask(b"", path="/readyz", method="GET")).status == 503
        await order(gw, "backends/a/undrain")
        assert await ask(gw) == (200, "a")


async def test_flush_of_one_and_of_all() -> None:
    async with two() as (gw, _):
        await order(gw, "backends/b/drain")
        await ask(gw, "on a")
        await order(gw, "backends/b/undrain")
        await order(gw, "backends/a/drain")
        await ask(gw, "on b")
        assert (await status_of(gw, "a"))["indexed_blocks"] > 0
        shown = await order(gw, "backends/a/flush")
        assert (shown["indexed_blocks"], shown["live_tokens"]) == (0, 0)
        assert (await status_of(gw, "b"))["indexed_blocks"] > 0
        both = (await order(gw, "flush"))["backends"]
        assert [(one["name"], one["indexed_blocks"], one["live_tokens"]) for one in both] == [("a", 0, 0), ("b", 0, 0)]
        assert gw.gateway.index.stats().entries == 0
        assert (await ask(gw, "on b"))[0] == 200


async def test_orders_are_refused_from_where_they_should_not_come() -> None:
    paths = ("backends/a/drain", "backends/a/undrain", "backends/a/flush", "flush")
    async with two() as (gw, _), client_of(gw.admin_url) as client:
        for path in paths:
            for headers, method, status in (
                ({**LOCAL, "content-type": "text/plain"}, "POST", 415),
                ({**LOCAL, "origin": "http://example.com"}, "POST", 403),
                ({"host": "example.com"}, "POST", 421),
                (LOCAL, "GET", 405),
            ):
                response = await client.ask(b"{}", path=f"/admin/v1/{path}", method=method, headers=headers)
                assert response.status == status, (path, headers)
                await response.read()
        for name in ("nobody", "a%2Fdrain", "%00"):
            for path in ("drain", "undrain", "flush"):
                error = (await order(gw, f"backends/{name}/{path}", 404))["error"]
                assert error["code"] in ("backend_not_found", "not_found")
        assert not any(one.draining for one in gw.gateway.registry)


# Commands.


async def run(*arguments: str, env: dict[str, str] | None = None) -> tuple[int, str]:
    result = await asyncio.to_thread(CliRunner().invoke, cli, arguments, env=env)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    # the gateway logs into the same stream, as it runs in this process
    return result.exit_code, "\n".join(line for line in result.output.splitlines() if "source=gateway" not in line)


async def test_drain_waits_until_it_is_empty_and_undo_brings_it_back() -> None:
    async with two() as (gw, held), gw.client() as streaming:
        admin = ("--admin", gw.admin_url)
        response = await streaming.ask(chat(stream=True))
        home = str(response.header("x-warmroute-backend"))
        code, out = await run("drain", home, "--wait", "--timeout", "0", *admin)
        assert (code, out.splitlines()) == (
            1,
            [f"{home} drains, 1 requests run on it", f"Error: {home} still runs 1 requests after 0 s"],
        )
        waiting = asyncio.create_task(run("drain", home, "--wait", *admin))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        held.release.set()
        await response.read()
        code, out = await waiting
        assert (code, out.splitlines()[-1]) == (0, f"{home} is empty")
        assert "up, drained (admin)" in (await run("status", *admin))[1]
        gw.gateway.control.drain(home, "discovery")
        assert await run("drain", home, "--undo", *admin) == (0, f"{home} still drains (discovery)")
        gw.gateway.control.undrain(home, "discovery")
        assert await run("drain", home, "--undo", *admin) == (0, f"{home} takes requests")
        assert (await run("drain", home, "--undo", "--wait", *admin))[0] == 2
        code, out = await run("drain", "nobody", *admin)
        assert (code, out) == (1, "Error: the gateway answered 404: there is no backend of that name")


async def test_a_wait_ends_when_somebody_ends_the_drain() -> None:
    async with two() as (gw, _), gw.client() as streaming:
        response = await streaming.ask(chat(stream=True))
        home = str(response.header("x-warmroute-backend"))
        waiting = asyncio.create_task(run("drain", home, "--wait", "--admin", gw.admin_url))
        await gw.until(lambda _: backend(gw, home).draining)
        gw.gateway.control.undrain(home)
        code, out = await waiting
        assert code == 1
        assert "takes requests again" in out


async def test_flush_command() -> None:
    async with two() as (gw, _):
        await ask(gw)
        assert await run("flush", "--admin", gw.admin_url) == (0, "a flushed\nb flushed")
        assert gw.gateway.index.stats().entries == 0
        assert await run("flush", "b", "--admin", gw.admin_url) == (0, "b flushed")
        assert (await run("flush", "nobody", "--admin", gw.admin_url))[0] == 1


@pytest.mark.parametrize("command", [("status",), ("drain", "a"), ("drain", "a", "--undo"), ("flush",)])
async def test_the_admin_token_comes_from_the_environment(command: tuple[str, ...]) -> None:
    async with two(admin={"token": "an-admin-token"}) as (gw, _):
        code, out = await run(*command, "--admin", gw.admin_url)
        assert code == 1
        assert "401" in out
        for token_of in ({"env": {"WARMROUTE_ADMIN_TOKEN": "an-admin-token"}}, {}):
            arguments = () if token_of else ("--token", "an-admin-token")
            code, out = await run(*command, "--admin", gw.admin_url, *arguments, **token_of)
            assert code == 0, out
            assert "an-admin-token" not in out


# Changes under running streams.


@pytest.mark.parametrize("change", ["another address", "another key", "other settings", "removal"])
async def test_o07_a_running_stream_ends_normally_whatever_becomes_of_its_backend(change: str) -> None:
    held = Held()
    async with (
        ScriptedUpstream(held) as a,
        ScriptedUpstream() as elsewhere,
        running_gateway([a.url]) as gw,
        gw.client() as streaming,
    ):
        response = await streaming.ask(chat(stream=True))
        old = backend(gw, "a")
        control, spec = gw.gateway.control, old.spec
        pool = old.upstream
        if change == "another address":
            control.change(replace(spec, endpoint=replace(spec.endpoint, port=elsewhere.port)))
            await gw.until(lambda _: backend(gw, "a").health.reachable)
            assert await ask(gw) == (200, "a")
            assert len(elsewhere.requests) == 1
        elif change == "another key":
            control.change(replace(spec, endpoint=replace(spec.endpoint, authorization="Bearer new")))
            assert await ask(gw) == (200, "a")
            assert a.requests[-1].header("authorization") == "Bearer new"
        elif change == "other settings":
            control.change(replace(spec, capacity_tokens=1000))
            assert await ask(gw) == (200, "a")
        else:
            control.remove_later("a")
            assert (await ask(gw))[0] == 503
        assert old.in_flight == 1
        held.release.set()
        assert await response.read() == token("a") + token("b") + DONE
        assert response.complete
        await gw.until(lambda _: old.in_flight == 0)
        if change != "other settings":
            await gw.until(lambda _: pool.sockets == 0)  # type: ignore[attr-defined]
        if change == "removal":
            await gw.until(lambda g: len(g.registry) == 0)
            assert b'backend="a"' not in gw.gateway.metrics.render()
        gw.assert_at_rest()

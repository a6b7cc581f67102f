"""Field cases F: sessions when backends come, go and fail, and ids that are the caller's own."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from backends.backend import BackendSpec
from backends.health import State
from backends.upstream import Endpoint
from tests.support.gateway import chat, running_gateway
from tests.support.holding import Holding, fleet, place
from tests.support.upstream import ScriptedUpstream, Served
from vocabulary import BackendId

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from backends.backend import Backend
    from tests.support.gateway import RawClient, RunningGateway

SECRET = {"secret": "${WARMROUTE_TEST_SECRET}"}
FAST = {"slow_start_s": 0, "interval_s": 0.05, "fail_threshold": 1}


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of sessions depend on it: gateways agree, and every run is the same."""
    monkeypatch.setenv("WARMROUTE_TEST_SECRET", "a secret of sixteen bytes or more")


@asynccontextmanager
async def setting(
    names: str, policy: str = "warm", models: tuple[str, ...] = ("m",), **sections: Any
) -> AsyncIterator[tuple[RunningGateway, RawClient, dict[str, ScriptedUpstream]]]:
    async with AsyncExitStack() as stack:
        upstreams, backends = await fleet(stack, dict.fromkeys(names, models), Holding())
        sections = {"routes": [{"name": "r", "policy": policy}], "store": SECRET, "health": FAST, **sections}
        gw = await stack.enter_async_context(running_gateway(backends, **sections))
        yield gw, await stack.enter_async_context(gw.client()), upstreams
        await gw.until(lambda _: gw.in_flight == 0)
        gw.assert_at_rest()


def id_of(number: int) -> dict[str, str]:
    return {"x-session-id": f"session {number}"}


def backend(gw: RunningGateway, name: str) -> Backend:
    found = gw.gateway.registry.get(BackendId(name))
    assert found is not None
    return found


async def remove(gw: RunningGateway, name: str) -> None:
    gone = backend(gw, name)
    await gw.gateway.prober.unwatch(gone)
    gw.gateway.registry.remove(gone.name)
    await gone.upstream.close()


async def add(gw: RunningGateway, name: str, upstream: ScriptedUpstream) -> None:
    spec = BackendSpec(BackendId(name), Endpoint("127.0.0.1", upstream.port))
    gw.gateway.prober.watch(gw.gateway.registry.add(spec))
    await gw.until(lambda _: backend(gw, name).health.state is State.UP)


async def test_o53_a_fifth_backend_takes_a_fifth_of_the_sessions_and_gives_them_back() -> None:
    count = 500
    async with setting("abcd", "session_hash") as (gw, client, _), ScriptedUpstream(Holding()) as fifth:

        async def places() -> list[str]:
            return [await place(client, chat("x"), id_of(number)) for number in range(count)]

        before = await places()
        await add(gw, "e", fifth)
        during = await places()
        moved = [number for number in range(count) if before[number] != during[number]]
        assert {during[number] for number in moved} == {"e"}, "none moves between the others"
        assert 0.15 * count <= len(moved) <= 0.25 * count
        await remove(gw, "e")
        assert await places() == before, "the same ones come back"


async def test_o53_with_the_default_policy_nobody_moves_for_a_newcomer_and_only_its_own_when_it_leaves() -> None:
    count = 120
    async with setting("abcd") as (gw, client, _), ScriptedUpstream(Holding()) as fifth:

        async def places(start: int = 0) -> list[str]:
            return [await place(client, chat(f"{number} " * 50), id_of(number)) for number in range(start, count)]

        before = await places()
        await add(gw, "e", fifth)
        assert await places() == before
        count = 150
        late = await places(120)
        assert "e" in late, "new sessions go there"
        count = 120
        await remove(gw, "e")
        assert await places() == before


# The home cannot take it.


async def make_unavailable(gw: RunningGateway, upstreams: dict[str, ScriptedUpstream], name: str, why: str) -> None:
    home = backend(gw, name)
    match why:
        case "unhealthy":
            upstreams[name].health_status = 503
            await gw.until(lambda _: home.health.state is State.DOWN)
        case "dead":
            await upstreams[name].shut()
            await gw.until(lambda _: home.health.state is State.DOWN)
        case "ejected":
            while home.health.state is not State.EJECTED:
                home.health.request_failed(gw.gateway.clock())
        case "draining":
            home.drain("admin", gw.gateway.clock())
        case "lacks the adapter":
            upstreams[name].models = ("other",)
            await gw.until(lambda _: home.models == ("other",))
        case _:
            await remove(gw, name)


WHY = ["unhealthy", "dead", "ejected", "draining", "lacks the adapter", "removed"]


@pytest.mark.parametrize("policy", ["warm", "session_hash"])
@pytest.mark.parametrize("why", WHY)
async def test_o54_a_session_whose_home_cannot_take_it_is_served_elsewhere_and_lives_there(
    why: str, policy: str
) -> None:
    body = chat("the same long story " * 200, model="adapter")
    models = ("m", "adapter")
    async with setting("abc", policy, models, health={**FAST, "eject_s": 600}) as (gw, client, upstreams):
        homes = {number: await place(client, body, id_of(number)) for number in range(9)}
        leaving = homes[0]
        await make_unavailable(gw, upstreams, leaving, why)
        moved = {number: await place(client, body, id_of(number)) for number in homes}
        for number, home in homes.items():
            assert moved[number] != leaving
            assert moved[number] == home or home == leaving, "and only its own sessions move"
        again = {number: await place(client, body, id_of(number)) for number in homes}
        assert again == moved, "they have a new home"
        if why in ("unhealthy", "draining") and policy == "warm":  # a hash gives them back, by what it is
            upstreams[leaving].health_status = 200
            backend(gw, leaving).undrain("admin")
            await gw.until(lambda _: backend(gw, leaving).health.state is State.UP)
            assert {number: await place(client, body, id_of(number)) for number in homes} == moved, (
                "the old pin is gone"
            )


async def test_o54_a_session_whose_home_dies_under_its_request_is_served_by_the_next() -> None:
    """Before any probe could know."""
    never = {"interval_s": 600, "metrics_interval_s": 600, "slow_start_s": 0}
    async with setting("abc", health=never) as (_, client, upstreams):
        body = chat("the same long story " * 200)
        home = await place(client, body, id_of(1))
        await upstreams[home].shut()
        moved = await place(client, body, id_of(1))
        assert moved != home
        for _ in range(3):
            assert await place(client, body, id_of(1)) == moved, "it does not try the dead one again"


# Ids of the caller's own.

OPAQUE = {
    "plain": "chat-1",
    "emoji": "🙂👩‍🚀",
    "an address": "http://10.0.0.1:8000",
    "looks encoded": "MTAuMC4wLjE6ODAwMA==",
    "a kilobyte": "x" * 1024,
}
INVALID = {"empty": "", "blank": "   ", "four kilobytes": "y" * 4096, "control": "a\tb"}


async def ten_at_once(gw: RunningGateway, bodies: list[dict[str, Any]], headers: dict[str, str]) -> list[str]:
    async def one(body: dict[str, Any]) -> str:
        async with gw.client() as client:
            response = await client.ask(body, headers=headers)
            assert response.status == 200
            shown = str(response.headers) + (await response.read()).decode()
            for value in headers.values():
                assert not value.strip() or value not in shown, "never echoed"
            return response.header("x-warmroute-backend") or ""

    return await asyncio.gather(*map(one, bodies))


def latin(text: str) -> str:
    """As UTF-8 bytes on the wire."""
    return text.encode().decode("latin-1")


async def test_o55_parallel_first_requests_with_one_id_go_to_one_backend() -> None:
    """`session_hash` spreads them on an idle fleet: its bound is 2 at the least, as where it comes from."""
    async with setting("abcd") as (gw, _, upstreams):
        with capture_logs() as lines:
            for kind, raw in OPAQUE.items():
                bodies = [chat(f"{number} is quite another prompt " * 30) for number in range(10)]
                in_header = await ten_at_once(gw, bodies, {"x-session-id": latin(raw)})
                assert len(set(in_header)) == 1, kind
                in_body = await ten_at_once(gw, [{**body, "session_id": raw} for body in bodies], {})
                assert set(in_body) == set(in_header), "the same id, wherever it stands"
        assert not any(raw in str(lines) for raw in OPAQUE.values())
        assert not any(raw in gw.gateway.metrics.render().decode() for raw in OPAQUE.values())
        assert sum(len(upstream.requests) for upstream in upstreams.values()) == 20 * len(OPAQUE)


@pytest.mark.parametrize("kind", INVALID)
async def test_o55_an_id_that_is_none_pins_nobody(kind: str) -> None:
    async with setting("abcd") as (gw, _, _):
        bodies = [chat(f"{number} is quite another prompt " * 30) for number in range(12)]
        places = Counter(await ten_at_once(gw, bodies, {"x-session-id": INVALID[kind]}))
        assert max(places.values()) < 12, "told apart by their prompts"
        in_body = [{**body, "session_id": INVALID[kind]} for body in bodies]
        assert max(Counter(await ten_at_once(gw, in_body, {})).values()) < 12


@pytest.mark.parametrize("attempt", ["a\nb: c", "a\rb", "a\r\nx-session-id: other", "a\x00b"])
async def test_o55_line_breaks_in_an_id_forge_no_header(attempt: str) -> None:
    async def script(served: Served) -> None:
        await served.respond({"choices": []})

    async with ScriptedUpstream(script) as upstream, running_gateway([upstream.url]) as gw:
        async with gw.client() as client:
            response = await client.ask(chat(session_id=attempt))
            assert response.status == 200, "as a body field it is only text"
            await response.read()
        names = {name.lower() for name, _ in upstream.requests[0].headers}
        assert not names & {b"b", b"x-session-id"}
        async with gw.client() as client:
            response = await client.ask(chat(), headers={"x-session-id": attempt})
            assert response.status in (200, 400)
            await response.read()
        for served in upstream.requests:
            lines = [name + b": " + value for name, value in served.headers]
            assert not any(b"\n" in line or b"\r" in line or b"\x00" in line for line in lines)
        await gw.until(lambda g: not g.connections)
        gw.assert_at_rest()


async def test_o55_gateways_agree_on_a_hash_whatever_the_order_of_their_lists() -> None:
    async with AsyncExitStack() as stack:
        _, backends = await fleet(stack, dict.fromkeys("abcde", ("m",)), Holding())
        routes = [{"name": "r", "policy": "session_hash"}]
        found = []
        for entries in (backends, backends[::-1], [*backends[2:], *backends[:2]]):
            gw = await stack.enter_async_context(running_gateway(entries, routes=routes, store=SECRET))
            client = await stack.enter_async_context(gw.client())
            found.append([await place(client, chat("x"), id_of(number)) for number in range(60)])
        assert found[0] == found[1] == found[2]
        assert len(set(found[0])) == 5

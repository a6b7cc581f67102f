"""A new config while requests run: taken in whole or not at all, and no stream notices."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.test_lifecycle import LOCAL, config_file
from tests.support.gateway import RunningGateway, chat, running_gateway
from tests.support.load import Load
from tests.support.process import Command, client_of, command
from tests.support.upstream import DONE, SSE_HEAD, ScriptedUpstream, Served, answer, chunk, token

if TYPE_CHECKING:
    from pathlib import Path

    Entries = list[str | dict[str, Any]]


async def get_json(url: str, path: str) -> Any:
    async with client_of(url) as client:
        return await (await client.ask(b"", path=path, method="GET", headers=LOCAL)).json()


async def served_by(url: str, session: str) -> str | None:
    async with client_of(url) as client:
        response = await client.ask(chat(session), headers={"x-session-id": session})
        assert response.status == 200
        await response.read()
        return response.header("x-warmroute-backend")


async def test_o68_a_bad_file_changes_nothing_and_a_good_one_heals(tmp_path: Path) -> None:
    async with ScriptedUpstream() as upstream:
        config = config_file(tmp_path, [upstream.url])
        file = tmp_path / "warmroute.yaml"
        good = file.read_text()
        async with command("serve", "-c", config) as process:
            listening = await process.event("listening")
            url, admin = listening["traffic"], listening["admin"]
            load = Load(url)
            await load.some()
            for n, again in enumerate((good, good.replace('"grace_s": 5', '"grace_s": 6')), start=1):
                file.write_text("backends:\n  - name: a\n    url: nonsense\n")
                refused = await nth(process, "reload_refused", n)
                assert refused["problems"][0].startswith(f"{file}:3:10: backends[0].url: ")
                reload = (await get_json(admin, "/admin/v1/status"))["reload"]
                assert reload["problems"] == refused["problems"]
                await load.some()
                file.write_text(again)
                applied = await nth(process, "reloaded", n)
                assert applied["changed"] == (["listen.grace_s"] if n == 2 else [])
                assert (await get_json(admin, "/admin/v1/status"))["reload"]["problems"] == []
            await load.some()
            await load.end()
            process.terminate()
            assert await process.ended() == 0


async def nth(process: Command, name: str, count: int) -> dict[str, Any]:
    async with asyncio.timeout(30):
        while len(found := [event for event in process.events if event["event"] == name]) < count:
            await asyncio.sleep(0.01)
    return found[count - 1]


async def test_by_signal_by_admin_call_and_by_a_secret_that_changes(tmp_path: Path) -> None:
    async def script(served: Served) -> None:
        await served.respond({"key": served.header("authorization")})

    async with ScriptedUpstream(script) as upstream:
        config_file(tmp_path, [])
        file, secret = tmp_path / "warmroute.yaml", tmp_path / "key"
        secret.write_text("first-secret")
        document = json.loads(file.read_text())
        document["backends"] = [{"name": "a", "url": upstream.url, "api_key_file": "key"}]
        file.write_text(json.dumps(document))
        async with command("serve", "-c", str(file)) as process:
            listening = await process.event("listening")
            url, admin = listening["traffic"], listening["admin"]

            async def key() -> str:
                async with client_of(url) as client:
                    return str((await (await client.ask(chat())).json())["key"])

            assert await key() == "Bearer first-secret"
            secret.write_text("second-secret")
            assert (await nth(process, "reloaded", 1))["cause"] == "file"
            assert await key() == "Bearer second-secret"
            process.reload()
            assert (await nth(process, "reloaded", 2))["cause"] == "signal"
            async with client_of(admin) as client:
                response = await client.ask(b"{}", path="/admin/v1/reload", headers=LOCAL)
                assert (response.status, await response.json()) == (
                    200,
                    {"config": listening_id(process), "changes": []},
                )
            assert "second-secret" not in "\n".join(process.lines)


def listening_id(process: Command) -> str:
    return str(next(event["config"] for event in process.events if event["event"] == "reloaded"))


async def test_a_reload_over_http_tells_what_is_wrong_and_where(tmp_path: Path) -> None:
    async with ScriptedUpstream() as upstream:
        config = config_file(tmp_path, [upstream.url])
        file = tmp_path / "warmroute.yaml"
        async with command("serve", "-c", config) as process:
            admin = (await process.event("listening"))["admin"]
            file.write_text("listen: {port: x}\nbackends: []\n")
            async with client_of(admin) as client:
                response = await client.ask(b"{}", path="/admin/v1/reload", headers=LOCAL)
                assert response.status == 422
                problems = (await response.error())["problems"]
                assert [problem.split(": ")[0].rsplit("/", 1)[-1] for problem in problems] == [
                    "warmroute.yaml:1:16",
                    "warmroute.yaml:2:11",
                ]
                plain = await client.ask(
                    b"", path="/admin/v1/reload", headers={**LOCAL, "content-type": "application/x-www-form-urlencoded"}
                )
                assert plain.status == 415, "no form on a web page can send this"


async def test_a_config_map_that_is_swapped(tmp_path: Path) -> None:
    async with ScriptedUpstream() as upstream:
        config_file(tmp_path, [upstream.url])
        good = (tmp_path / "warmroute.yaml").read_text()
        mounted = tmp_path / "mounted"
        for version, text in (("..v1", good), ("..v2", good.replace('"grace_s": 5', '"grace_s": 7'))):
            (mounted / version).mkdir(parents=True)
            (mounted / version / "warmroute.yaml").write_text(text)
        (mounted / "..data").symlink_to("..v1")
        (mounted / "warmroute.yaml").symlink_to("..data/warmroute.yaml")
        async with command("serve", "-c", str(mounted / "warmroute.yaml")) as process:
            await process.event("listening")
            (mounted / "..tmp").symlink_to("..v2")
            (mounted / "..tmp").rename(mounted / "..data")
            assert (await nth(process, "reloaded", 1))["changed"] == ["listen.grace_s"]


async def test_o07_streams_outlive_whatever_a_reload_replaces() -> None:
    release = asyncio.Event()

    async def script(served: Served) -> None:
        if not served.json["stream"]:
            await answer(served)
            return
        await served.write(SSE_HEAD + chunk(token("a")))
        await release.wait()
        await served.write(chunk(token("b")) + chunk(DONE) + b"0\r\n\r\n")

    async with ScriptedUpstream(script) as one, ScriptedUpstream(script) as two:
        async with running_gateway({"a": one.url}) as gateway:
            async with gateway.client() as client:
                response = await client.ask(chat(stream=True))
                assert (await gateway.reload({"a": two.url}, limits={"idle_timeout_s": 7})).applied
                await gateway.until(lambda g: g.ready)
                async with gateway.client() as other:
                    assert (await other.ask(chat())).status == 200
                assert len(two.requests) == 1, "new requests go to the new address"
                assert (await gateway.reload({"b": two.url})).applied
                await gateway.until(lambda g: g.ready)
                release.set()
                assert await response.read() == token("a") + token("b") + DONE
                assert response.complete
            await gateway.until(lambda g: [b.name for b in g.registry] == ["b"])
            gateway.assert_at_rest()
        await one.until(lambda u: u.connections == 0)


async def test_removing_one_of_five_backends_moves_only_its_own_sessions() -> None:
    sessions = [f"session-{n}" for n in range(60)]
    async with contextlib.AsyncExitStack() as stack:
        urls = {name: (await stack.enter_async_context(ScriptedUpstream())).url for name in "abcde"}
        gateway = await stack.enter_async_context(running_gateway(urls))
        await gateway.until(lambda g: all(backend.health.reachable for backend in g.registry))
        before = {session: await served_by(gateway.url, session) for session in sessions}
        assert set(before.values()) == set("abcde")
        load = Load(gateway.url)
        await load.some(20)
        assert (await gateway.reload({name: url for name, url in urls.items() if name != "c"})).applied
        await load.some(20)
        await load.end()
        after = {session: await served_by(gateway.url, session) for session in sessions}
        moved = {session for session in sessions if before[session] != after[session]}
        assert moved == {session for session in sessions if before[session] == "c"}
        assert "c" not in after.values()


async def test_o69_five_reloads_leave_one_checker_per_backend_and_it_works() -> None:
    async with ScriptedUpstream() as a, ScriptedUpstream() as b, running_gateway([a.url, b.url]) as gateway:
        for n in range(5):
            assert (await gateway.reload(limits={"max_attempts": 2 + n})).applied
        probes = [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("probe ")]
        assert sorted(probes) == ["probe a", "probe b"]
        await b.shut()
        await gateway.until(lambda g: [x.health.reachable for x in g.registry] == [True, False])


async def test_o80_what_was_learned_survives_a_reload_of_other_settings() -> None:
    async with ScriptedUpstream() as a, ScriptedUpstream() as b, running_gateway([a.url, b.url]) as gateway:
        prompt = "the same words over and over " * 50

        async def cached() -> int:
            async with gateway.client() as client:
                response = await client.ask(chat(prompt))
                assert response.status == 200
                return int(response.header("x-warmroute-cached-tokens") or 0)

        assert await cached() == 0
        first = await cached()
        assert first > 0
        routes = [{"name": "default", "policy": "warm"}]
        assert (await gateway.reload(health={"interval_s": 0.3}, routes=routes)).applied
        assert await cached() >= first


async def test_every_setting_of_a_running_gateway_follows() -> None:
    async with ScriptedUpstream() as a, running_gateway([a.url]) as gateway:
        outcome = await gateway.reload(
            listen={"max_body_mb": 0.001, "paths": ["/v1/other"]},
            limits={"retry_statuses": [500]},
            routes=[{"name": "chats", "policy": "round_robin"}],
            sessions={"max_sessions": 7, "lineage": False},
            telemetry={"decision_headers": False},
        )
        assert outcome.applied
        async with gateway.client() as client:
            response = await client.ask(chat())
            assert (response.status, response.header("x-warmroute-backend")) == (200, None)
            await response.read()
            assert (await client.ask(chat("x" * 2000))).status == 413
        async with gateway.client() as client:
            assert (await client.ask(chat(), path="/v1/other")).status == 200
        metrics = gateway.gateway.metrics.render().decode()
        labels = 'backend="a",class="interactive",model="m",route="chats",status="200"'
        assert f"warmroute_requests_total{{{labels}}} 2.0" in metrics
        assert f'warmroute_config_info{{id="{outcome.config_id}"}} 1' in metrics


async def test_knobs_that_need_a_restart_are_named_and_wait() -> None:
    async with ScriptedUpstream() as a, running_gateway([a.url]) as gateway:
        outcome = await gateway.reload(store={"max_entries": 5}, limits={"max_attempts": 1})
        assert outcome.applied
        assert gateway.process.reloader.restart_needed == ("store.max_entries",)
        assert gateway.gateway.limits.max_attempts == 1


async def test_a_model_that_nobody_serves_any_more_is_unknown_again() -> None:
    second = ScriptedUpstream(models=("n",))
    async with ScriptedUpstream() as a, second as b, running_gateway([a.url, b.url]) as gateway:
        async with gateway.client() as client:
            assert (await client.ask(chat(model="n"))).status == 200
        assert (await gateway.reload([a.url])).applied
        await gateway.until(lambda g: len(g.registry) == 1)
        async with gateway.client() as client:
            assert (await client.ask(chat(model="n"))).status == 404


@pytest.mark.parametrize("change", ["add", "change", "remove"])
async def test_0_requests_fail_while_the_config_is_reloaded_under_load(change: str) -> None:
    async with ScriptedUpstream() as a, ScriptedUpstream() as b, running_gateway([a.url, b.url]) as gateway:
        await gateway.until(lambda g: all(backend.health.reachable for backend in g.registry))
        load = Load(gateway.url, clients=8)
        await load.some()
        await one_reload(gateway, load, change, a.url, b.url)
        await load.some(200)
        await load.end()
        gateway.assert_at_rest()


async def one_reload(gateway: RunningGateway, load: Load, change: str, a: str, b: str) -> None:
    if change == "add":
        async with ScriptedUpstream() as third:
            assert (await gateway.reload([a, b, third.url])).applied
            await gateway.until(lambda g: all(backend.health.reachable for backend in g.registry))
            await load.some()
            assert (await gateway.reload([a, b])).applied
            await gateway.until(lambda g: len(g.registry) == 2)
    elif change == "change":
        other_key = {"name": "b", "url": b, "api_key": "some-new-key"}
        entries: Entries = [{"name": "a", "url": a, "capacity_tokens": 5000}, other_key]
        assert (await gateway.reload(entries)).applied
    else:
        assert (await gateway.reload([a])).applied
        await gateway.until(lambda g: len(g.registry) == 1)

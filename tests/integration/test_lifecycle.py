"""`warmroute serve` from start to exit, as a process."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.gateway import chat
from tests.support.process import client_of, command
from tests.support.upstream import DONE, SSE_HEAD, ScriptedUpstream, Served, answer, chunk, token

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.gateway import Response

LOCAL = {"host": "localhost"}
"""The admin port answers to nothing else."""


def config_file(folder: Path, urls: list[str], **sections: dict[str, Any]) -> str:
    """YAML is a superset of JSON."""
    config: dict[str, Any] = {
        "listen": {"port": 0, "drain_delay_s": 0, "grace_s": 5},
        "admin": {"port": 0},
        "backends": [{"name": f"b{i}", "url": url} for i, url in enumerate(urls)],
    }
    for name, section in sections.items():
        config[name] = {**config.get(name, {}), **section}
    path = folder / "warmroute.yaml"
    path.write_text(json.dumps(config, indent=2))
    return str(path)


async def get(url: str, path: str) -> int:
    async with client_of(url) as client:
        return (await client.ask(b"", path=path, method="GET", headers=LOCAL)).status


async def test_o64_sigterm_is_not_ready_at_once_serves_on_and_lets_streams_end(tmp_path: Path) -> None:
    release = asyncio.Event()

    async def script(served: Served) -> None:
        if not served.json["stream"]:
            await answer(served)
            return
        await served.write(SSE_HEAD + chunk(token("a")))
        await release.wait()
        await served.write(chunk(token("b")) + chunk(DONE) + b"0\r\n\r\n")

    async with ScriptedUpstream(script) as upstream:
        config = config_file(tmp_path, [upstream.url], listen={"drain_delay_s": 1.5, "grace_s": 20})
        async with command("serve", "-c", config) as process:
            listening = await process.event("listening")
            url, admin = listening["traffic"], listening["admin"]
            assert (await get(url, "/readyz"), await get(admin, "/readyz")) == (200, 200)
            async with client_of(url) as streaming, client_of(url) as idle:
                response = await streaming.ask(chat(stream=True))
                assert response.status == 200
                assert (await idle.ask(chat())).status == 200
                process.terminate()
                await process.event("draining")
                assert (await get(url, "/readyz"), await get(admin, "/readyz")) == (503, 503)
                assert (await get(url, "/livez"), await get(admin, "/livez")) == (200, 200)
                async with client_of(url) as late:
                    served = await late.ask(chat())
                    assert served.status == 200, "serving goes on"
                    assert served.header("connection") == "close", "but no connection is kept"
                await asyncio.sleep(2)  # past the delay: the listener is closed, the stream is not
                with pytest.raises(ConnectionError):
                    await get(url, "/livez")
                assert process.process.returncode is None
                release.set()
                assert await response.read() == token("a") + token("b") + DONE
                assert response.complete
                assert await process.ended() == 0
            assert [event["event"] for event in process.events][-1] == "stopped"


async def test_a_second_signal_skips_the_delay(tmp_path: Path) -> None:
    async with ScriptedUpstream() as upstream:
        config = config_file(tmp_path, [upstream.url], listen={"drain_delay_s": 300})
        async with command("serve", "-c", config) as process:
            await process.event("listening")
            process.terminate()
            await process.event("draining")
            process.terminate()
            assert await process.ended() == 0


async def test_a_stream_that_does_not_end_is_cut_after_the_grace(tmp_path: Path) -> None:
    async def endless(served: Served) -> None:
        await served.write(SSE_HEAD + chunk(token()))
        await served.until_closed()

    async with ScriptedUpstream(endless) as upstream:
        config = config_file(tmp_path, [upstream.url], listen={"grace_s": 1})
        async with command("serve", "-c", config) as process:
            url = (await process.event("listening"))["traffic"]
            async with client_of(url) as client:
                response = await client.ask(chat(stream=True))
                process.terminate()
                await response.read()
                assert not response.complete
                assert await process.ended() == 0
            await upstream.until(lambda u: u.closed == 1)


async def test_sigterm_while_it_waits_for_the_first_probes(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        admin_port = free.getsockname()[1]
        free.close()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        config = config_file(tmp_path, [url], admin={"port": admin_port}, health={"timeout_s": 1.5})
        async with command("serve", "-c", config) as process:
            async with asyncio.timeout(20):
                while True:
                    try:
                        assert await get(f"http://127.0.0.1:{admin_port}", "/readyz") == 503
                        break
                    except ConnectionError:
                        await asyncio.sleep(0.02)
            process.terminate()
            assert await process.ended() == 0


@pytest.mark.parametrize("knob", ["listen.port", "admin.port"])
async def test_a_port_in_use_is_exit_2_and_names_the_knob(knob: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = config_file(tmp_path, ["http://127.0.0.1:9"], **{knob.split(".")[0]: {"port": port}})
        async with command("serve", "-c", config) as process:
            assert await process.ended() == 2
            assert process.lines == [f"{knob}: cannot listen on 127.0.0.1:{port} (Address already in use)"]


async def test_a_bad_config_is_exit_2_with_every_problem_at_its_place(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("listen:\n  prot: 8000\nbackends:\n  - name: a\n    url: ftp://x\n    api_key: sk-plain-secret\n")
    for name in ("serve -c", "check"):
        async with command(*name.split(), str(path)) as process:
            assert await process.ended() == 2
            text = "\n".join(process.lines + process.out)
            assert f"{path}:2:3: " in text
            assert "did you mean port?" in text
            assert f"{path}:5:" in text
            assert f"{path}:6:" in text
            assert "sk-plain-secret" not in text
            assert "Traceback" not in text


async def test_a_missing_file_and_no_file(tmp_path: Path) -> None:
    async with command("serve", "-c", str(tmp_path / "none.yaml")) as process:
        assert await process.ended() == 2
        assert "cannot be read" in process.lines[0]
    async with command("serve") as process:
        assert await process.ended() == 2
        assert any("--config" in line for line in process.lines)


async def test_a_log_that_nobody_reads_any_more_fails_no_request(tmp_path: Path) -> None:
    async def dies(served: Served) -> None:
        served.reset()

    async with ScriptedUpstream(dies) as upstream:
        config = config_file(tmp_path, [upstream.url], health={"interval_s": 0.1, "eject_after_failures": 3})
        async with command("serve", "-c", config) as process:
            url = (await process.event("listening"))["traffic"]
            process.close_log()
            for _ in range(3):
                async with client_of(url) as client:
                    response = await client.ask(chat())
                    assert (await response.error())["code"] == "upstream_reset"
            async with client_of(url) as client:
                assert (await client.ask(chat())).status == 503, "ejected, which is logged too"
            upstream.script = answer
            await upstream.shut()
            async with asyncio.timeout(20):
                while await get(url, "/readyz") == 200:
                    await asyncio.sleep(0.02)
                await upstream.listen()
                while await get(url, "/readyz") == 503:
                    await asyncio.sleep(0.02)
            async with client_of(url) as client:
                assert (await client.ask(chat())).status == 200
            process.terminate()
            assert await process.ended() == 0


async def all_of(response: Response) -> str:
    return str(response.headers) + (await response.read()).decode()


CANARIES = {
    "prompt": "canary-prompt-9071",
    "key": "canary-key-9072",
    "session": "canary-session-9073",
    "backend key": "canary-backend-9074",
    "answer": "canary-answer-9075",
    "secret": "canary-secret-9076",
    "query": "canary-query-9077",
    "header": "canary-header-9078",
    "model": "canary-model-9079",
}


async def test_o72_no_content_and_no_credential_in_debug_logs_errors_metrics_or_status(tmp_path: Path) -> None:
    canary = CANARIES

    async def script(served: Served) -> None:
        text = served.json["messages"][0]["content"]
        if "reset" in text:
            served.reset()
        elif "garbage" in text:
            await served.write(canary["answer"].encode() + b"\r\n\r\n")
        elif "truncated" in text:
            await served.write(SSE_HEAD + chunk(token(canary["answer"])))
            served.reset()
        elif "error" in text:
            await served.respond({"error": {"message": canary["answer"]}}, 500)
        else:
            await served.stream(token(canary["answer"]))

    async with ScriptedUpstream(script) as upstream:
        config = config_file(
            tmp_path,
            [],
            telemetry={"log_level": "debug"},
            store={"secret": "${WARMROUTE_TEST_SECRET}"},
            health={"interval_s": 0.1, "metrics_interval_s": 0.1},
        )
        document = json.loads((tmp_path / "warmroute.yaml").read_text())
        document["backends"] = [{"name": "a", "url": upstream.url, "api_key": "${WARMROUTE_TEST_KEY}"}]
        (tmp_path / "warmroute.yaml").write_text(json.dumps(document))
        secrets = {"WARMROUTE_TEST_SECRET": canary["secret"], "WARMROUTE_TEST_KEY": canary["backend key"]}
        headers = {
            "authorization": f"Bearer {canary['key']}",
            "x-session-id": canary["session"],
            "x-custom": canary["header"],
        }
        async with command("serve", "-c", config, env=secrets) as process:
            listening = await process.event("listening")
            url, admin = listening["traffic"], listening["admin"]
            shown = ""
            for text in ("plain", "reset", "garbage", "truncated", "error"):
                async with client_of(url) as client:
                    body = chat(f"{canary['prompt']} {text}", stream=True, user=canary["session"])
                    path = f"/v1/chat/completions?x={canary['query']}"
                    response = await client.ask(body, headers=headers, path=path)
                    shown += str(response.headers)
                    answered = (await response.read()).decode()
                    shown += answered.replace(canary["answer"], "")  # the backend's own words
            async with client_of(url) as client:
                shown += await all_of(await client.ask(chat(model=canary["model"]), headers=headers))
            async with client_of(url) as client:
                shown += await all_of(await client.ask(b'{"' + canary["prompt"].encode(), headers=headers))
            async with client_of(url) as client:
                client.writer.write(canary["prompt"].encode() + b"\r\n\r\n")
                shown += await all_of(await client.receive())
            async with client_of(url) as client:
                shown += await all_of(await client.ask(b"{}", path=f"/{canary['query']}", headers=headers))
            assert shown.count('"error"') >= 7, "the errors were forced"
            async with client_of(url) as client:
                await client.send(chat(canary["prompt"] * 100_000), headers=headers)
                client.reset()
            async with client_of(admin) as client:
                sent = {**headers, **LOCAL}
                explained = await client.ask(chat(canary["prompt"]), path="/admin/v1/explain", headers=sent)
                assert explained.status == 200
                shown += (await explained.read()).decode()
            async with client_of(admin) as client:
                shown += (await (await client.ask(b"", path="/metrics", method="GET", headers=LOCAL)).read()).decode()
            async with client_of(admin) as client:
                shown += (
                    await (await client.ask(b"", path="/admin/v1/status", method="GET", headers=LOCAL)).read()
                ).decode()
            assert "warmroute_requests_total" in shown
            assert '"in_flight"' in shown
            process.terminate()
            assert await process.ended() == 0
            log = "\n".join(process.lines + process.out)
            assert process.events, "each line is a JSON object"
            assert all({"timestamp", "level", "event"} <= event.keys() for event in process.events)
            assert len(upstream.requests) >= 5
            for name, text in canary.items():
                assert text not in log, name
                assert text not in shown, name

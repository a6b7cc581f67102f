"""`status --json` and `explain --json`: operators' scripts read these. Snapshots of keys and types."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from click.testing import CliRunner

from gateway.cli import cli
from tests.support.gateway import RunningGateway, chat, running_gateway
from tests.support.snapshots import assert_snapshot
from tests.support.upstream import ScriptedUpstream, Served

if TYPE_CHECKING:
    from pathlib import Path

METRICS = (
    'vllm:num_requests_running{model_name="m"} 1.0\n'
    'vllm:num_requests_waiting{model_name="m"} 0.0\n'
    'vllm:kv_cache_usage_perc{model_name="m"} 0.5\n'
    'vllm:cache_config_info{block_size="16",num_gpu_blocks="1000"} 1.0\n'
    "process_start_time_seconds 1000\n"
)


async def run(*arguments: str, stdin: bytes | None = None) -> str:
    """A command against a gateway on this loop: in a thread, as it blocks."""
    result = await asyncio.to_thread(CliRunner().invoke, cli, arguments, input=stdin, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


async def serve_one(gw: RunningGateway) -> None:
    async with gw.client() as client:
        await (await client.ask(chat("x" * 1000), headers={"x-session-id": "s"})).read()


async def test_status_json() -> None:
    async with (
        ScriptedUpstream(metrics=METRICS) as a,
        ScriptedUpstream(metrics="") as b,
        running_gateway([a.url, b.url]) as gw,
    ):
        await serve_one(gw)
        shown = json.loads(await run("status", "--json", "--admin", gw.admin_url))
        assert_snapshot("status", shown)
        assert [one["name"] for one in shown["backends"]] == ["a", "b"]
        assert {one["state"] for one in shown["backends"]} == {"up"}
        assert sum(one["indexed_blocks"] for one in shown["backends"]) == shown["index"]["entries"] > 0
        assert sum(one["live_tokens"] for one in shown["backends"]) > 0
        assert shown["ready"] is True
        assert shown["sessions"]["sessions"] == 1
        assert shown["backends"][0]["capacity_tokens"] == 16_000
        assert shown["config"] == gw.gateway.config.id


async def test_status_follows_what_happens() -> None:
    release = asyncio.Event()

    async def script(served: Served) -> None:
        await release.wait()
        await served.respond({})

    async with ScriptedUpstream(script) as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        await client.send(chat("y" * 4000, stream=True))
        await upstream.until(lambda u: len(u.requests) == 1)
        (backend,) = json.loads(await run("status", "--json", "--admin", gw.admin_url))["backends"]
        assert (backend["in_flight"], backend["pending"]) == (1, 1)
        assert backend["pending_uncached_tokens"] > 900
        release.set()
        await (await client.receive()).read()
        await upstream.shut()
        await gw.until(lambda g: not g.ready)
        shown = json.loads(await run("status", "--json", "--admin", gw.admin_url))
        (backend,) = shown["backends"]
        assert (backend["in_flight"], backend["pending"], backend["state"]) == (0, 0, "down")
        assert backend["last_error"] == "ConnectError"
        assert shown["ready"] is False


async def test_explain_json(tmp_path: Path) -> None:
    async with (
        ScriptedUpstream(metrics=METRICS) as a,
        ScriptedUpstream(metrics=METRICS) as b,
        ScriptedUpstream(metrics="") as c,
        running_gateway([a.url, b.url, c.url]) as gw,
    ):
        await serve_one(gw)
        home = next(o.name for o in gw.gateway.registry if gw.gateway.sessions.live_tokens(o.instance.id))
        drained = next(o for o in gw.gateway.registry if o.name not in (home, "a"))
        drained.draining = True
        request = tmp_path / "request.json"
        request.write_text(json.dumps(chat("x" * 1000)))
        arguments = ("explain", str(request), "--header", "X-Session-Id: s", "--json", "--admin", gw.admin_url)
        record: dict[str, Any] = json.loads(await run(*arguments))
        rows = {row["backend"]: row for row in record["candidates"]}
        assert (record["backend"], record["kind"]) == (home, "session")
        assert rows[home]["chosen"]
        assert rows[home]["home"]
        assert rows[drained.name]["rejected"] == "draining"
        assert record["has_session"] is True
        assert record["cached_tokens"] > 50
        # one row of each kind, whichever backends it was
        other = next(row for row in record["candidates"] if not row["chosen"] and row["rejected"] is None)
        ordered = [rows[home], other, rows[drained.name]]
        for row in ordered:  # only two of the three engines report these
            row.update(capacity_tokens=1, waiting=1, kv_usage=0.5)
        assert_snapshot("explain", {**record, "candidates": ordered})
        assert len(a.requests) + len(b.requests) + len(c.requests) == 1, "nothing was sent"
        piped = json.loads(await run("explain", "-", "--json", "--admin", gw.admin_url, stdin=request.read_bytes()))
        assert piped.keys() == record.keys()
        gw.assert_at_rest()

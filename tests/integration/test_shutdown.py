"""SIGTERM under load: no client sees an error, as long as its balancer heeds /readyz within the drain delay."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.integration.test_lifecycle import LOCAL, config_file
from tests.support.load import Load
from tests.support.process import client_of, command
from tests.support.upstream import ScriptedUpstream, Served, answer, token

if TYPE_CHECKING:
    from pathlib import Path


async def test_sigterm_under_load_fails_no_request(tmp_path: Path) -> None:
    async def script(served: Served) -> None:
        if served.json["stream"]:
            await served.stream(*[token()] * 10, gap_s=0.01)
        else:
            await answer(served)

    async with ScriptedUpstream(script) as one, ScriptedUpstream(script) as two:
        config = config_file(tmp_path, [one.url, two.url], listen={"drain_delay_s": 1, "grace_s": 20})
        async with command("serve", "-c", config) as process:
            listening = await process.event("listening")
            load = Load(listening["traffic"], clients=8)
            await load.some(100)
            process.terminate()
            async with asyncio.timeout(10):
                while await ready(listening["admin"]) == 200:
                    await asyncio.sleep(0.02)
            await load.some(20)
            await load.end()
            assert await process.ended() == 0


async def ready(url: str) -> int:
    async with client_of(url) as client:
        return (await client.ask(b"", path="/readyz", method="GET", headers=LOCAL)).status

"""`warmroute demo` as a person tries it, with the real client."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import socket
from typing import Any

import openai
import pytest

from tests.support.gateway import chat
from tests.support.process import Command, client_of, command

FREE = ("--port", "0", "--admin-port", "0")
FAST = ("--backends", "2", "--speed", "50")


async def urls(demo: Command) -> tuple[str, str]:
    """(traffic, admin), as it prints them."""
    line = (await demo.printed(4))[0]
    found = re.search(r"gateway on (http://127\.0\.0\.1:\d+), admin on (http://127\.0\.0\.1:\d+)$", line)
    assert found is not None, line
    return found[1], found[2]


async def test_the_demo_serves_the_openai_client_and_its_own_commands() -> None:
    async with command("demo", *FREE, *FAST) as demo:
        traffic, admin = await urls(demo)
        assert demo.out[0].startswith("2 simulated backends (llama-3.1-8b), ")
        messages: Any = [{"role": "system", "content": "be brief " * 200}, {"role": "user", "content": "hi"}]
        async with openai.AsyncOpenAI(base_url=traffic + "/v1", api_key="none", max_retries=0) as sdk:
            assert [model.id async for model in await sdk.models.list()] == ["demo"]
            text = ""
            stream = await sdk.chat.completions.create(
                model="demo",
                messages=messages,
                stream=True,
                max_tokens=8,
                stream_options={"include_usage": True},
            )
            usage = None
            async for chunk in stream:
                usage = chunk.usage or usage
                text += chunk.choices[0].delta.content or "" if chunk.choices else ""
            assert text
            assert usage is not None
            assert usage.completion_tokens == 8
            turn: Any = [*messages, {"role": "assistant", "content": text}, {"role": "user", "content": "and?"}]
            second = await sdk.chat.completions.with_raw_response.create(
                model="demo",
                messages=turn,
                max_tokens=4,
            )
            assert second.headers["x-warmroute-decision"] == "session"
            details = second.parse().usage
            assert details is not None
            assert details.prompt_tokens_details is not None
            assert (details.prompt_tokens_details.cached_tokens or 0) > 300, "the warm backend answered"
            completion = await sdk.completions.create(model="demo", prompt="once", max_tokens=3)
            assert completion.usage is not None
            with pytest.raises(openai.NotFoundError):
                await sdk.chat.completions.create(model="gpt-none", messages=messages)
        async with command("status", "--json", "--admin", admin) as status:
            assert await status.ended() == 0
            shown = json.loads("\n".join(status.out))
            assert [backend["name"] for backend in shown["backends"]] == ["gpu-1", "gpu-2"]
            assert shown["sessions"]["sessions"] >= 1
        async with command("status", "--admin", admin) as status:
            assert await status.ended() == 0
            assert "gpu-2" in "\n".join(status.out)
        demo.terminate()
        assert await demo.ended() == 0
        assert not demo.lines, "nothing to complain about"


async def test_the_line_to_try_works_as_it_is_printed() -> None:
    async with command("demo", *FREE, *FAST) as demo:
        await urls(demo)
        words = shlex.split(demo.out[2])
        assert words[:2] == ["curl", "-N"]
        url, body = words[2], words[words.index("-d") + 1]
        name, _, value = words[words.index("-H") + 1].partition(": ")
        base, _, path = url.partition("/v1/")
        async with client_of(base) as client:
            response = await client.ask(body.encode(), path=f"/v1/{path}", headers={name: value})
            assert response.status == 200
            assert (await response.read()).endswith(b"data: [DONE]\n\n")
        hint = shlex.split(demo.out[3])
        assert hint[:2] == ["warmroute", "status"]
        async with command(*hint[1:]) as status:
            assert await status.ended() == 0


async def test_sigterm_lets_a_stream_end() -> None:
    async with command("demo", *FREE, "--backends", "1", "--speed", "5") as demo:
        traffic, _ = await urls(demo)
        async with client_of(traffic) as client:
            response = await client.ask(chat(stream=True, model="demo", max_tokens=200))
            demo.terminate()
            body = await response.read()
            assert body.endswith(b"data: [DONE]\n\n")
            assert response.complete
        assert await demo.ended() == 0


@pytest.mark.parametrize("option", ["--port", "--admin-port"])
async def test_a_port_in_use_is_exit_2(option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ports = dict(zip(FREE[::2], FREE[1::2], strict=True)) | {option: port}
        async with command("demo", "--backends", "1", *(word for pair in ports.items() for word in pair)) as demo:
            assert await demo.ended() == 2
            assert f"cannot listen on 127.0.0.1:{port}" in demo.lines[0]
            assert len(demo.lines) == 1


async def test_the_engine_command_is_a_backend() -> None:
    async with command("engine", "--port", "0", "--speed", "50", "--model", "x", "--output-tokens", "3") as engine:
        line = (await engine.printed(1))[0]
        url = line.removeprefix("engine ready on ")
        assert url != line
        async with client_of(url) as client:
            response = await client.ask(chat(model="x"))
            assert (await response.json())["usage"]["completion_tokens"] == 3
        engine.terminate()
        async with asyncio.timeout(20):
            await engine.ended()

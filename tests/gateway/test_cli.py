"""The command line without a gateway behind it: help, bad arguments, and what people read when nobody answers."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from gateway.cli import cli
from tests.support.gateway import running_gateway
from tests.support.process import command
from tests.support.upstream import ScriptedUpstream
from vocabulary import VERSION

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

COMMANDS = ["serve", "check", "demo", "status", "explain", "engine", "drain", "flush"]


def invoke(*arguments: str, stdin: bytes | None = None) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli, arguments, input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def test_help_lists_every_command_and_each_has_a_help() -> None:
    code, out, _ = invoke("--help")
    assert code == 0
    for name in COMMANDS:
        assert f"  {name} " in out
        code, text, _ = invoke(name, "-h")
        assert code == 0
        assert "Usage: " in text
        assert text.splitlines()[2].strip(), "says what it does"


def test_version() -> None:
    assert invoke("--version")[1] == f"warmroute, version {VERSION}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("serv",),
        ("serve",),
        ("serve", "--config"),
        ("demo", "--backends", "0"),
        ("demo", "--backends", "65"),
        ("demo", "--speed", "0"),
        ("demo", "--port", "70000"),
        ("demo", "--kv-tokens", "0"),
        ("explain",),
        ("explain", "/no/such/file"),
        ("explain", "-", "--header", "no colon"),
        ("status", "extra"),
        ("drain",),
        ("drain", "a", "--undo", "--wait"),
        ("drain", "a", "--timeout", "-1"),
        ("flush", "a", "b"),
        ("engine", "--port", "x"),
    ],
)
def test_bad_arguments_are_exit_2_with_a_line_that_says_why(arguments: tuple[str, ...]) -> None:
    code, _, err = invoke(*arguments, stdin=b"{}")
    assert code == 2
    assert "Error: " in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "arguments",
    [("demo", "--setup", "no-such-gpu"), ("demo", "--policy", "no-such-policy"), ("demo", "--kv-tokens", "1")],
)
async def test_the_demo_says_what_it_does_not_know(arguments: tuple[str, ...]) -> None:
    async with command(*arguments, "--port", "0", "--admin-port", "0") as demo:
        assert await demo.ended() == 2
        err = "\n".join(demo.lines)
    assert any(hint in err for hint in ("llama-3.1-8b", "power_of_two", "kv_tokens")), "says what there is"
    assert "Traceback" not in err


@pytest.mark.parametrize("name", ["status", "explain"])
def test_nobody_answers(name: str, unused_tcp_port: int) -> None:
    arguments = [name, "-"] if name == "explain" else [name]
    for url in (f"http://127.0.0.1:{unused_tcp_port}", "localhost:8001", "http://[", "ftp://x", "http://"):
        code, _, err = invoke(*arguments, "--admin", url, stdin=b"{}")
        assert code == 1, url
        assert "Error: " in err
        assert url.rstrip("/") in err


@contextlib.asynccontextmanager
async def another_server(answer: bytes, status: int = 200) -> AsyncIterator[str]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 %d X\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % (status, len(answer)) + answer
        )
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize("status", [200, 404, 500])
@pytest.mark.parametrize(
    "answer", [b"<html>", b"", b"[]", b"null", b'"x"', b"{}", b'{"error": "text"}', b'{"detail": "x"}', b"\xff"]
)
async def test_another_server_answers(answer: bytes, status: int) -> None:
    async with another_server(answer, status) as url:
        code, _, err = await asyncio.to_thread(invoke, "status", "--admin", url)
        assert code == 1
        assert "Error: " in err
        assert "Traceback" not in err


async def test_the_traffic_port_is_not_the_admin_port() -> None:
    async with ScriptedUpstream() as upstream, running_gateway([upstream.url]) as gw:
        code, _, err = await asyncio.to_thread(invoke, "status", "--admin", gw.url)
        assert code == 1
        assert "404" in err


async def run(*arguments: str, stdin: bytes | None = None) -> tuple[int, str, str]:
    return await asyncio.to_thread(invoke, *arguments, stdin=stdin)


async def test_tables_and_errors_of_a_running_gateway(tmp_path: Path) -> None:
    request: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "é" * 200}]}
    file = tmp_path / "request.json"
    file.write_text(json.dumps(request))
    async with ScriptedUpstream() as upstream, running_gateway([upstream.url]) as gw:
        admin = ("--admin", gw.admin_url + "/")
        code, out, _ = await run("status", *admin)
        assert code == 0
        assert "ready, config" in out
        code, out, _ = await run("explain", str(file), "--header", "x-session-id:s", *admin)
        assert code == 0
        assert "a by warm (forced), model m" in out
        code, out, _ = await run(
            "explain", "-", "--path", "/v1/completions", *admin, stdin=b'{"model": "m", "prompt": "x"}'
        )
        assert code == 0
        for stdin, arguments, text in (
            (b"{", (), "not valid JSON"),
            (b'{"model": "x"}', (), "no backend serves this model"),
            (b"{}", ("--path", "/x"), "path must be one of"),
        ):
            code, _, err = await run("explain", "-", *arguments, *admin, stdin=stdin)
            assert code == 1
            assert text in err
        code, _, err = await run("explain", "-", "--header", "x-odd: \u2603", *admin, stdin=b"{}")
        assert code != 0
        assert "admin port" not in err, "it is the header that is wrong"
        gw.assert_at_rest()

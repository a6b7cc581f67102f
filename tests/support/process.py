"""`warmroute` as a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tests.support.gateway import RawClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

ROOT = Path(__file__).parents[2]


@dataclass
class Command:
    process: asyncio.subprocess.Process
    lines: list[str] = field(default_factory=list)
    """Of standard error, as they come."""
    out: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._changed = asyncio.Condition()
        streams = (self.process.stderr, self.lines), (self.process.stdout, self.out)
        self.readers = [asyncio.create_task(self._read(stream, lines)) for stream, lines in streams if stream]

    async def _read(self, stream: asyncio.StreamReader, lines: list[str]) -> None:
        while line := await stream.readline():
            lines.append(line.decode().rstrip("\n"))
            async with self._changed:
                self._changed.notify_all()

    @property
    def events(self) -> list[dict[str, Any]]:
        """The log, one object per line."""
        return [json.loads(line) for line in self.lines]

    async def event(self, name: str, timeout_s: float = 30.0) -> dict[str, Any]:
        """The first log line of that name, once it is there."""

        def found() -> dict[str, Any] | None:
            return next((event for event in self.events if event["event"] == name), None)

        async with asyncio.timeout(timeout_s), self._changed:
            await self._changed.wait_for(lambda: found() is not None)
        event = found()
        assert event is not None
        return event

    async def printed(self, count: int, timeout_s: float = 30.0) -> list[str]:
        """Standard output, once it has so many lines."""
        async with asyncio.timeout(timeout_s), self._changed:
            await self._changed.wait_for(lambda: len(self.out) >= count)
        return self.out

    def close_log(self) -> None:
        """As when the program that reads standard error dies."""
        pipe = self.process._transport.get_pipe_transport(2)  # type: ignore[attr-defined]
        pipe.close()

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def reload(self) -> None:
        self.process.send_signal(signal.SIGHUP)

    async def ended(self, timeout_s: float = 30.0) -> int:
        """The exit code, with all output read."""
        async with asyncio.timeout(timeout_s):
            code = await self.process.wait()
            await asyncio.gather(*self.readers)
        return code


@contextlib.asynccontextmanager
async def command(*arguments: str, env: Mapping[str, str] | None = None) -> AsyncIterator[Command]:
    """`warmroute ARGUMENTS`; killed at the end of the block if it still runs."""
    program = [sys.executable, "-c", "from gateway.cli import main; main()", *arguments]
    process = await asyncio.create_subprocess_exec(
        *program,
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "200", **(env or {})},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    running = Command(process)
    try:
        yield running
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await running.ended()
        process._transport.close()  # type: ignore[attr-defined]


@contextlib.asynccontextmanager
async def client_of(url: str) -> AsyncIterator[RawClient]:
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=1 << 26)
    client = RawClient(reader, writer)
    try:
        yield client
    finally:
        await client.close()

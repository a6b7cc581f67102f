"""The gateway and the engines of a soak: processes of their own, which may be killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx2

from tests.bench.contenders import free_port

PROGRAM: Final = (sys.executable, "-c", "from gateway.cli import main; main()")
START_TIMEOUT_S: Final = 60.0


async def _start(log: Path, *arguments: str) -> asyncio.subprocess.Process:
    with log.open("ab") as stream:
        return await asyncio.create_subprocess_exec(
            *PROGRAM, *arguments, stdin=asyncio.subprocess.DEVNULL, stdout=stream, stderr=stream
        )


async def _until_up(url: str, process: asyncio.subprocess.Process) -> None:
    async with asyncio.timeout(START_TIMEOUT_S), httpx2.AsyncClient(trust_env=False) as client:
        while True:
            assert process.returncode is None, f"ended at its start with {process.returncode}"
            with contextlib.suppress(httpx2.HTTPError):
                if (await client.get(url)).status_code == 200:
                    return
            await asyncio.sleep(0.1)


@dataclass
class Engine:
    """One simulated engine, always on the same port."""

    name: str
    folder: Path
    port: int = field(default_factory=free_port)
    killed_at: list[float] = field(default_factory=list)
    """Loop times."""
    process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        options = f"--port {self.port} --speed 20 --kv-tokens 40000 --output-tokens 24".split()
        self.process = await _start(self.folder / "engines.log", "engine", *options)
        await _until_up(f"{self.url}/health", self.process)

    async def kill(self) -> None:
        assert self.process is not None
        self.killed_at.append(asyncio.get_running_loop().time())
        self.process.kill()
        await self.process.wait()

    def freeze(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    async def end(self) -> None:
        if self.process is not None and self.process.returncode is None:
            self.thaw()
            self.process.kill()
            await self.process.wait()


class Gateway:
    def __init__(self, folder: Path, config: dict[str, Any], token: str) -> None:
        self.port, self.admin_port = free_port(), free_port()
        self.file = folder / "warmroute.yaml"
        self.log = folder / "gateway.log"
        self._config = {
            **config,
            "listen": {**config["listen"], "port": self.port},
            "admin": {**config["admin"], "port": self.admin_port},
        }
        self._process: asyncio.subprocess.Process | None = None
        self._admin = httpx2.AsyncClient(
            base_url=f"http://127.0.0.1:{self.admin_port}",
            headers={"authorization": f"Bearer {token}"},
            trust_env=False,
            timeout=30,
        )

    async def start(self) -> None:
        self.write()
        self._process = await _start(self.log, "serve", "--config", str(self.file))
        await _until_up(f"http://127.0.0.1:{self.admin_port}/readyz", self._process)

    def write(self, **sections: Any) -> None:
        """The config file anew, with these sections instead; by a rename, so that no half is read."""
        fresh = self.file.with_suffix(".new")
        fresh.write_text(json.dumps({**self._config, **sections}, indent=1))
        fresh.replace(self.file)

    def write_nonsense(self) -> None:
        self.file.write_text("backends: [{name: x, url: nonsense}]\n")

    def hang_up(self) -> None:
        self._running.send_signal(signal.SIGHUP)

    @property
    def _running(self) -> asyncio.subprocess.Process:
        assert self._process is not None
        assert self._process.returncode is None, "the gateway has died"
        return self._process

    @property
    def rss_mb(self) -> float:
        pages = int(Path(f"/proc/{self._running.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    @property
    def open_files(self) -> int:
        return len(os.listdir(f"/proc/{self._running.pid}/fd"))

    async def order(self, path: str) -> None:
        response = await self._admin.post(f"/admin/v1/{path}", json={})
        response.raise_for_status()

    async def status(self) -> dict[str, Any]:
        answer: dict[str, Any] = (await self._admin.get("/admin/v1/status")).raise_for_status().json()
        return answer

    async def metric(self, name: str) -> float:
        """Sum over all labels."""
        text = (await self._admin.get("/metrics")).raise_for_status().text
        lines = [line for line in text.splitlines() if line.startswith((f"{name}{{", f"{name} "))]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    async def end(self) -> int | None:
        """SIGTERM; the exit code."""
        await self._admin.aclose()
        if self._process is None:
            return None
        if self._process.returncode is None:
            self._process.terminate()
            try:
                await asyncio.wait_for(self._process.wait(), 60)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
        return self._process.returncode

"""Starts real llama.cpp servers, and asks them about themselves past the gateway."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.tiny_model import TinyModel

NAME = "tiny"
_SCRIPT = Path(__file__).with_name("llama_server.py")


@dataclass
class LlamaCpp:
    process: subprocess.Popen[bytes]
    url: str
    model: TinyModel

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    async def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        async with httpx2.AsyncClient(base_url=self.url, trust_env=False) as client:
            response = await (client.get(path) if body is None else client.post(path, json=body))
            assert response.is_success, response.text
            return response.json() if "json" in response.headers["content-type"] else response.text

    async def busy_slots(self) -> int:
        return sum(slot["is_processing"] for slot in await self.ask("/slots"))

    async def metric(self, name: str) -> float:
        lines = (await self.ask("/metrics")).splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith(f"llamacpp:{name} "))


@contextlib.contextmanager
def llama_cpp(model: TinyModel, *, slots: int = 4, cache_mib: int = 1024, port: int = 0) -> Iterator[LlamaCpp]:
    """`slots`: sequences that it holds at once. `cache_mib`: memory for those that had to make room. Blocks until it
    takes requests; killed at the end."""
    arguments = (str(model.gguf), str(port), NAME, str(slots), str(cache_mib))
    with subprocess.Popen(
        [sys.executable, str(_SCRIPT), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().decode().strip()
            assert url, f"it ended with {process.wait()}: run {_SCRIPT.name} {' '.join(arguments)}"
            _await_health(url)
            yield LlamaCpp(process, url, model)
        finally:
            process.kill()


def _await_health(url: str, timeout_s: float = 30.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    with httpx2.Client(base_url=url, trust_env=False) as client:
        while time.monotonic() < deadline_s:
            with contextlib.suppress(httpx2.TransportError):
                if client.get("/health").is_success:
                    return
            time.sleep(0.02)
    raise TimeoutError("the engine did not become healthy")

"""Starts a real vLLM on the CPU, as a process group of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import httpx2

from tests.bench.contenders import free_port
from tests.real.llama import NAME

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.tiny_model import TinyModel

BLOCK_TOKENS: Final = 32
BLOCKS: Final = 2048
_TOPIC: Final = "kv-events"
_ENVIRONMENT: Final = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else both take the same core
}


@dataclass(frozen=True)
class Vllm:
    process: subprocess.Popen[bytes]
    url: str
    events: str
    replay: str

    def entry(self, name: str, **changed: Any) -> dict[str, Any]:
        """Of the gateway's config, with the engine's events."""
        source = {"endpoint": self.events, "replay_endpoint": self.replay, "topic": _TOPIC, "bind": True, **changed}
        return {"name": name, "url": self.url, "kv_events": source}

    async def forget(self) -> None:
        """Empty its cache."""
        async with httpx2.AsyncClient(base_url=self.url, trust_env=False) as client:
            assert (await client.post("/reset_prefix_cache")).is_success


@contextlib.contextmanager
def vllm(python: str, model: TinyModel, log: Path) -> Iterator[Vllm]:
    """Returns at once; `until_up` waits. All its processes are ended with the block."""
    port, events, replay = free_port(), f"tcp://127.0.0.1:{free_port()}", f"tcp://127.0.0.1:{free_port()}"
    publish = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": events,
        "replay_endpoint": replay,
        "topic": _TOPIC,
    }
    options = f"--host 127.0.0.1 --port {port} --served-model-name {NAME} --enforce-eager --enable-prefix-caching"
    sizes = f"--block-size {BLOCK_TOKENS} --num-gpu-blocks-override {BLOCKS} --max-model-len 8192 --max-num-seqs 16"
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model.folder), *options.split()]
    command += [*sizes.split(), "--enable-prompt-tokens-details", "--kv-events-config", json.dumps(publish)]
    environment = {**os.environ, **_ENVIRONMENT, "VLLM_SERVER_DEV_MODE": "1", "VLLM_CACHE_ROOT": str(log.parent)}
    with (
        log.open("wb") as stream,
        subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, start_new_session=True
        ) as process,
    ):
        try:
            yield Vllm(process, f"http://127.0.0.1:{port}", events, replay)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def until_up(engine: Vllm, timeout_s: float = 300.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    with httpx2.Client(base_url=engine.url, trust_env=False) as client:
        while time.monotonic() < deadline_s:
            assert engine.process.poll() is None, f"ended at its start with {engine.process.returncode}"
            with contextlib.suppress(httpx2.TransportError):
                if client.get("/health").is_success:
                    return
            time.sleep(0.2)
    raise TimeoutError("the engine did not become healthy")

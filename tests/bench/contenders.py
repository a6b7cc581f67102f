"""The gateways that are measured: ours and the two peers, each started the way its users start it.

Invariant: all get the same four backends, metrics on and their own defaults otherwise; a contender counts as started
when a completion through it is answered with 200, and everything it started is gone when its context is left.
"""

import contextlib
import http.client
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench import bodies
from tests.bench.cpu import process_tree

OURS = "warmroute"
PEERS = {"sglang-router": "sglang_router", "vllm-router": "vllm_router"}
_START_TIMEOUT_S = 90.0
_STOP_TIMEOUT_S = 10.0


class ContenderError(RuntimeError):
    """A gateway that did not start; the text has the end of its log."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A running gateway: its name, its port, and the processes whose CPU counts."""

    name: str
    port: int
    pids: list[int]


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def our_config(port: int, admin_port: int, backend_ports: list[int]) -> dict[str, Any]:
    """The smallest configuration: where to listen and the backends; all else is the default."""
    return {
        "listen": {"host": "127.0.0.1", "port": port, "drain_delay_s": 0},
        "admin": {"port": admin_port},
        "backends": [{"name": f"b{n}", "url": f"http://127.0.0.1:{p}"} for n, p in enumerate(backend_ports)],
    }


def peer_command(python: str, name: str, port: int, backend_ports: list[int]) -> list[str]:
    """How a peer is launched, with its cache-aware policy and its metrics."""
    urls = [f"http://127.0.0.1:{p}" for p in backend_ports]
    where = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port())]
    how = ["--policy", "cache_aware", "--log-level", "error"]
    return [python, "-m", f"{PEERS[name]}.launch_router", *where, "--worker-urls", *urls, *how]


@contextlib.contextmanager
def running(name: str, command: list[str], port: int, log: Path) -> Iterator[Contender]:
    """Start a gateway, wait until it answers, and stop it at the end."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        try:
            body = bodies.small(seed=0, count=1)[0]
            _wait(process, lambda: _status(f"127.0.0.1:{port}", "POST", "/v1/chat/completions", body), log)
            yield Contender(name, port, process_tree(process.pid))
        finally:
            stop(process)


def stop(process: "subprocess.Popen[Any]") -> None:
    """End a process; it may drain first."""
    process.terminate()
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def wait_until_up(process: "subprocess.Popen[bytes]", probe_url: str, log: Path) -> None:
    """Wait until a GET of `probe_url` is answered with 200. Raises ContenderError."""
    host, _, path = probe_url.removeprefix("http://").partition("/")
    _wait(process, lambda: _status(host, "GET", "/" + path), log)


def _wait(process: "subprocess.Popen[bytes]", probe: Callable[[], int], log: Path) -> None:
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    last = "no answer"
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            last = f"it exited with {process.returncode}"
            break
        try:
            status = probe()
        except OSError as error:
            last = str(error)
        else:
            if status == http.HTTPStatus.OK:
                return
            last = f"status {status}"
        time.sleep(0.05)
    raise ContenderError(f"{process.args!r} did not start: {last}\n{log.read_text(errors='replace')[-2000:]}")


def _status(host: str, method: str, path: str, body: bytes | None = None) -> int:
    connection = http.client.HTTPConnection(host, timeout=10)
    try:
        connection.request(method, path, body, {"content-type": "application/json"} if body else {})
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()


class Helper:
    """A process of ours that talks JSON lines: the mock or the load generator. Ends when its input closes."""

    def __init__(self, module: str) -> None:
        command = [sys.executable, "-m", module]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input = self._process.stdin
        self._output = self._process.stdout

    def read(self) -> Any:
        """The next answer; EOFError if the process has died (its own words are on standard error)."""
        line = self._output.readline()
        if not line:
            raise EOFError(f"{self._process.args!r} died")
        return json.loads(line)

    def ask(self, command: dict[str, Any]) -> Any:
        """Send a command and wait for its answer."""
        self._input.write(json.dumps(command) + "\n")
        self._input.flush()
        return self.read()

    def close(self) -> None:
        """Close its input and wait for its end."""
        self._input.close()
        self._output.close()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            stop(self._process)

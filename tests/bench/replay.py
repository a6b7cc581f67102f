"""`python -m tests.bench.replay`: recorded agent sessions through the real `openai` client, `warm` and `round_robin`.

Invariant: both runs send the same requests and start them in the same order; no session id or header is sent, so the
gateway has to find out by itself what belongs together. Every figure is what the engines reported in `usage`.
"""

import argparse
import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI, OpenAIError

from tests.bench.contenders import free_port, stop, wait_until_up
from tests.bench.transcripts import Transcript, interleave, load, mean_live_blocks

ENGINES = 4
SESSIONS_AT_ONCE = 16
CACHE_BLOCKS = 1238  # per engine: a third of the mean live set of 16 sessions
TOKENS_PER_BLOCK = 16
BOUND = 0.5
MODEL = "demo"
POLICIES = ("warm", "round_robin")
_REQUEST_TIMEOUT_S = 120.0
_SEED = 0


@dataclass(slots=True)
class ReplayResult:
    """Sums over all answers. `errors` counts requests without a complete answer with usage."""

    requests: int = 0
    errors: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    first_errors: list[str] = field(default_factory=list)

    @property
    def uncached_tokens(self) -> int:
        """Prompt tokens that an engine had to prefill."""
        return self.prompt_tokens - self.cached_tokens

    def failed(self, why: str) -> None:
        """Count a failed request."""
        self.errors += 1
        if len(self.first_errors) < 3:
            self.first_errors.append(why)


async def replay(
    base_url: str, transcripts: Sequence[Transcript], sessions_at_once: int, *, model: str = MODEL, max_tokens: int = 16
) -> ReplayResult:
    """Send every turn of every transcript to `base_url` (with /v1), every second one as a stream.

    A request starts when all before it in the order have started and the session's last turn is answered.
    """
    result = ReplayResult()
    order = interleave([len(t.turns) for t in transcripts], sessions_at_once, _SEED)
    last: dict[int, asyncio.Task[None]] = {}
    async with (
        AsyncOpenAI(base_url=base_url, api_key="replay", max_retries=0, timeout=_REQUEST_TIMEOUT_S) as client,
        asyncio.TaskGroup() as group,
    ):
        for number, (session, turn) in enumerate(order):
            if session in last:
                await last.pop(session)
            messages: Any = transcripts[session].request(turn)
            asked = _ask(client, result, model, messages, max_tokens, stream=number % 2 == 1)
            last[session] = group.create_task(asked)
    return result


async def _ask(
    client: AsyncOpenAI, result: ReplayResult, model: str, messages: Any, max_tokens: int, *, stream: bool
) -> None:
    result.requests += 1
    try:
        usage = None
        if stream:
            async with await client.chat.completions.create(
                model=model,
                messages=messages,
                max_tokens=max_tokens,
                stream=True,
                stream_options={"include_usage": True},
            ) as chunks:
                async for chunk in chunks:
                    usage = chunk.usage or usage
        else:
            answer = await client.chat.completions.create(model=model, messages=messages, max_tokens=max_tokens)
            usage = answer.usage
    except OpenAIError as error:
        result.failed(f"{type(error).__name__}: {error}")
        return
    if usage is None:
        result.failed("no usage in the answer")
        return
    details = usage.prompt_tokens_details
    result.prompt_tokens += usage.prompt_tokens
    result.cached_tokens += (details.cached_tokens or 0) if details is not None else 0


@contextlib.contextmanager
def demo_fleet(command: str, policy: str, speed: float) -> Iterator[str]:
    """Fresh simulated engines and a gateway in front of them; the gateway's base URL with /v1."""
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="replay-")))

        def start(name: str, arguments: list[str], probe: str) -> None:
            log = scratch / f"{name}.log"
            output = stack.enter_context(log.open("wb"))
            process = subprocess.Popen(
                [command, *arguments], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
            stack.callback(stop, process)
            wait_until_up(process, probe, log)

        ports = [free_port() for _ in range(ENGINES)]
        for port in ports:
            capacity = ["--kv-tokens", str(CACHE_BLOCKS * TOKENS_PER_BLOCK)]
            what = ["--setup", "llama-3.1-8b", "--speed", str(speed), "--model", MODEL]
            start(
                f"engine-{port}", ["engine", "--port", str(port), *capacity, *what], f"http://127.0.0.1:{port}/health"
            )
        port = free_port()
        config = {
            "listen": {"port": port, "drain_delay_s": 0},
            "admin": {"port": free_port()},
            "backends": [{"name": f"engine-{n}", "url": f"http://127.0.0.1:{p}"} for n, p in enumerate(ports)],
            "routes": [{"name": "replay", "policy": policy}],
        }
        path = scratch / "warmroute.yaml"
        path.write_text(json.dumps(config))  # JSON is YAML
        start("gateway", ["serve", "--config", str(path)], f"http://127.0.0.1:{port}/readyz")
        yield f"http://127.0.0.1:{port}/v1"


def table(results: dict[str, ReplayResult], wall_s: dict[str, float]) -> str:
    """The figures of all runs, one column per policy."""
    names = ("requests", "errors", "prompt_tokens", "cached_tokens", "uncached_tokens")
    lines = [f"{'':<18}" + "".join(f"{policy:>16}" for policy in results)]
    lines += [f"{name:<18}" + "".join(f"{getattr(r, name):>16,}" for r in results.values()) for name in names]
    lines.append(f"{'wall time, s':<18}" + "".join(f"{s:>16.1f}" for s in wall_s.values()))
    return "\n".join(lines)


def main() -> int:
    """Run both policies; 0 if no request failed and the bound holds."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.replay", description=__doc__)
    parser.add_argument("--command", default=str(Path(sys.executable).with_name("warmroute")), help="our command")
    parser.add_argument("--speed", type=float, default=1.0, help="engines' speed; policies weigh real seconds: keep 1")
    parser.add_argument("--sessions", type=int, help="only the first so many transcripts")
    args = parser.parse_args()
    transcripts = load()[: args.sessions]
    order = list(interleave([len(t.turns) for t in transcripts], SESSIONS_AT_ONCE, _SEED))
    live, distinct = mean_live_blocks(transcripts, order)
    print(
        f"{len(transcripts)} transcripts, {len(order)} requests, {SESSIONS_AT_ONCE} sessions at once\n"
        f"{ENGINES} engines, each with a cache of {CACHE_BLOCKS} blocks of 64 bytes "
        f"({CACHE_BLOCKS * TOKENS_PER_BLOCK} tokens), at speed {args.speed:g}\n"
        f"mean live set: {live:.0f} blocks in the open sessions, {distinct:.0f} distinct ones in their last prompts\n",
        flush=True,
    )
    results: dict[str, ReplayResult] = {}
    wall_s: dict[str, float] = {}
    for policy in POLICIES:
        with demo_fleet(args.command, policy, args.speed) as base_url:
            start_s = time.perf_counter()
            results[policy] = asyncio.run(replay(base_url, transcripts, SESSIONS_AT_ONCE))
            wall_s[policy] = time.perf_counter() - start_s
    warm, round_robin = (results[policy] for policy in POLICIES)
    ratio = warm.uncached_tokens / max(1, round_robin.uncached_tokens)
    holds = ratio <= BOUND and not warm.errors and not round_robin.errors
    print(table(results, wall_s))
    print(f"\nuncached tokens, warm / round_robin: {ratio:.3f} (bound {BOUND}): {'ok' if holds else 'FAILED'}")
    for policy, result in results.items():
        for error in result.first_errors:
            print(f"FAILED {policy}: {error}", file=sys.stderr)
    _write(results, ratio, live)
    return 0 if holds else 1


def _write(results: dict[str, ReplayResult], ratio: float, live_blocks: float) -> None:
    rows = [
        {"name": f"replay_{name}_{policy}", "value": value, "unit": "1", "peer": None, "ratio": None}
        for policy, result in results.items()
        for name, value in {**asdict(result), "uncached_tokens": result.uncached_tokens}.items()
        if name != "first_errors"
    ]
    for name, value in (
        ("uncached_ratio", round(ratio, 4)),
        ("cache_blocks", CACHE_BLOCKS),
        ("live_blocks", round(live_blocks)),
    ):
        rows.append({"name": f"replay_{name}", "value": value, "unit": "1", "peer": None, "ratio": None})
    path = Path("build/bench-replay.json")
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())

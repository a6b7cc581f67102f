"""The command line. Each command only reads its arguments and calls the module that does the work."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from gateway.config import ConfigErrors
from vocabulary import VERSION
from vocabulary.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from gateway.config import Config
    from gateway.serve import Addresses

ADMIN_URL: Final = "http://127.0.0.1:8001"
_CONFIG = click.argument("config", type=click.Path(dir_okay=False, path_type=Path))
_ADMIN = click.option(
    "--admin", "admin_url", default=ADMIN_URL, show_default=True, help="Admin address of the gateway."
)
_TOKEN = click.option(
    "--token", envvar="WARMROUTE_ADMIN_TOKEN", help="Admin token, better given as WARMROUTE_ADMIN_TOKEN."
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="warmroute")
def cli() -> None:
    """A prefix- and session-aware gateway for LLM inference fleets."""


def main() -> None:
    try:
        cli(standalone_mode=False)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except ConfigErrors as error:
        click.echo("\n".join(str(problem) for problem in error.problems), err=True)
        sys.exit(2)
    except ConfigError as error:
        click.echo(str(error), err=True)
        sys.exit(2)


def _run(work: Coroutine[Any, Any, None]) -> None:
    import uvloop

    uvloop.run(work)


def _load(path: Path) -> Config:
    from gateway.config import load

    return load(path, os.environ)


@cli.command()
@click.option("-c", "--config", type=click.Path(dir_okay=False, path_type=Path), required=True, help="The config file.")
def serve(config: Path) -> None:
    """Run the gateway. SIGTERM drains it; SIGHUP, or a change of its files, reloads the config."""
    from gateway.logs import configure
    from gateway.serve import serve as run_gateway

    loaded = _load(config)
    logs = configure(loaded.telemetry.log_level, loaded.telemetry.log_format, sys.stderr, secrets=loaded.secrets)
    _run(run_gateway(loaded, lambda: _load(config), logs))


@cli.command()
@_CONFIG
@click.option(
    "--diff",
    "against",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="OLD",
    help="Also show what differs from OLD, and whether a reload applies it.",
)
@_JSON
def check(config: Path, against: Path | None, as_json: bool) -> None:
    """Check a config file: every problem in one run, each as file:line:column.

    Exit code: 0 for a good file, whatever it would change; 2 for a bad one, or a bad OLD.
    """
    from gateway.check import check as run_check

    sys.exit(run_check(config, os.environ, sys.stdout, against=against, as_json=as_json))


@cli.command()
def schema() -> None:
    """Print the JSON Schema of the config file, for editors."""
    from gateway.config.json_schema import json_schema

    click.echo(json.dumps(json_schema(), indent=2))


@cli.command()
@click.option("--backends", type=click.IntRange(1, 64), default=4, show_default=True, help="Simulated engines.")
@click.option("--setup", default="llama-3.1-8b", show_default=True, help="GPU set-up that they simulate.")
@click.option(
    "--speed", type=click.FloatRange(0, min_open=True), default=1.0, show_default=True, help="Times real speed."
)
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="Traffic port.")
@click.option("--admin-port", type=click.IntRange(0, 65535), default=8001, show_default=True, help="Admin port.")
@click.option("--policy", default="warm", show_default=True, help="Routing policy.")
@click.option("--kv-tokens", type=click.IntRange(1), help="KV cache of each engine, in tokens. [default: the set-up's]")
def demo(
    backends: int, setup: str, speed: float, port: int, admin_port: int, policy: str, kv_tokens: int | None
) -> None:
    """Run a simulated fleet and the gateway in front of it, on this machine, without GPU or Redis."""
    from gateway.demo import demo as run_demo
    from gateway.logs import configure

    configure("warning", "console", sys.stderr)

    def on_ready(addresses: Addresses, urls: list[str]) -> None:
        body = '{"model": "demo", "stream": true, "messages": [{"role": "user", "content": "Hello"}]}'
        click.echo(
            f"{len(urls)} simulated backends ({setup}), gateway on {addresses.traffic}, admin on {addresses.admin}"
        )
        click.echo("Try it:")
        click.echo(f"  curl -N {addresses.traffic}/v1/chat/completions -H 'content-type: application/json' -d '{body}'")
        click.echo(f"  warmroute status --admin {addresses.admin}")

    _run(
        run_demo(
            backends=backends,
            setup=setup,
            speed=speed,
            port=port,
            admin_port=admin_port,
            policy=policy,
            kv_tokens=kv_tokens,
            on_ready=on_ready,
        )
    )


@cli.command()
@_ADMIN
@_TOKEN
@_JSON
def status(admin_url: str, token: str | None, as_json: bool) -> None:
    """Show the fleet as a running gateway sees it."""
    from gateway.client import AdminClient
    from gateway.tables import status_table

    shown = AdminClient(admin_url, token).status()
    if as_json:
        click.echo(json.dumps(shown, indent=2))
    else:
        status_table(shown)


@cli.command()
@click.argument("request_file", type=click.File("rb"))
@click.option("--path", default="/v1/chat/completions", show_default=True, help="Endpoint that the body is for.")
@click.option(
    "--header", "headers", multiple=True, metavar="NAME:VALUE", help="Request header, as a client would send it."
)
@click.option("--tenant", help="Whose request it is, where tenants are configured.")
@_ADMIN
@_TOKEN
@_JSON
def explain(
    request_file: Any,
    path: str,
    headers: tuple[str, ...],
    tenant: str | None,
    admin_url: str,
    token: str | None,
    as_json: bool,
) -> None:
    """Show how a running gateway would place the request in REQUEST_FILE (- for standard input). Sends nothing."""
    from gateway.client import AdminClient
    from gateway.tables import explain_table

    pairs = [tuple(part.strip() for part in header.split(":", 1)) for header in headers]
    if any(len(pair) != 2 for pair in pairs):
        raise click.BadParameter("must be NAME:VALUE", param_hint="--header")
    sent = {pair[0]: pair[1] for pair in pairs}
    decision = AdminClient(admin_url, token).explain(request_file.read(), path, sent, tenant)
    if as_json:
        click.echo(json.dumps(decision, indent=2))
    else:
        explain_table(decision)


@cli.command()
@click.argument("name")
@click.option("--undo", is_flag=True, help="It takes requests again.")
@click.option("--wait", is_flag=True, help="Return once no request runs there. Exit code 1 if that takes too long.")
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(0), default=600.0, show_default=True, help="Seconds to wait."
)
@_ADMIN
@_TOKEN
def drain(name: str, undo: bool, wait: bool, timeout_s: float, admin_url: str, token: str | None) -> None:
    """Send no new requests to the backend NAME. Those that run end; sessions move on their next turn."""
    from gateway.client import AdminClient

    if undo and wait:
        raise click.UsageError("--undo has nothing to wait for")
    client = AdminClient(admin_url, token)
    if undo:
        reasons = client.undrain(name)["draining"]
        click.echo(f"{name} still drains ({', '.join(reasons)})" if reasons else f"{name} takes requests")
        return
    running = client.drain(name)["in_flight"]
    click.echo(f"{name} drains, {running} requests run on it")
    if wait:
        client.until_empty(name, timeout_s)
        click.echo(f"{name} is empty")


@cli.command()
@click.argument("name", required=False)
@_ADMIN
@_TOKEN
def flush(name: str | None, admin_url: str, token: str | None) -> None:
    """Forget what is thought to be cached on the backend NAME, or on all: after its weights were loaded anew."""
    from gateway.client import AdminClient

    for backend in AdminClient(admin_url, token).flush(name):
        click.echo(f"{backend['name']} flushed")


@cli.command()
@_ADMIN
@_TOKEN
def reload(admin_url: str, token: str | None) -> None:
    """Take the config file in anew. A bad one changes nothing: exit code 2, every problem with its place."""
    from gateway.client import AdminClient

    answer = AdminClient(admin_url, token).reload()
    click.echo(f"applied, config id {answer['config']}")
    for change in answer["changes"]:
        click.echo(f"  {change['path']}{' (needs a restart)' if change['needs_restart'] else ''}")


@cli.command()
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=click.IntRange(0, 65535), default=8100, show_default=True, help="0: any free port.")
@click.option("--model", "models", multiple=True, default=("demo",), show_default=True, help="Model name; repeatable.")
@click.option("--adapter", "adapters", multiple=True, help="LoRA adapter name; repeatable.")
@click.option("--setup", default="llama-3.1-8b", show_default=True, help="GPU set-up by name.")
@click.option("--speed", type=float, default=1.0, show_default=True, help="Times real speed.")
@click.option("--block-size", type=int, default=16, show_default=True, help="Tokens per KV block.")
@click.option("--kv-tokens", type=int, help="KV cache in tokens. [default: the set-up's]")
@click.option("--max-model-len", type=int, help="Longest prompt and answer together, in tokens.")
@click.option("--scheduling-policy", type=click.Choice(["fcfs", "priority"]), default="fcfs", show_default=True)
@click.option("--long-prefill-token-threshold", type=int, default=0, show_default=True, help="0: no cap.")
@click.option("--max-num-batched-tokens", type=int, default=8192, show_default=True)
@click.option("--max-num-seqs", type=int, default=256, show_default=True)
@click.option("--max-num-queued-reqs", type=int, help="More waiting requests get 503. [default: no limit]")
@click.option("--output-tokens", type=int, default=64, show_default=True, help="Answer length without max_tokens.")
@click.option("--tokenizer", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="tokenizer.json")
@click.option("--template", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Chat template (jinja).")
@click.option("--kv-events-port", type=int, help="Publish KV events over ZMQ on this port.")
@click.option("--kv-events-replay-port", type=int, help="Serve their replay on this port.")
@click.option("--kv-events-topic", default="", help="Topic of the events.")
def engine(**options: Any) -> None:
    """Run one simulated engine: OpenAI API, metrics, KV events, prefix cache, timing of a named GPU set-up."""
    from backends.engine.command import EngineOptions
    from backends.engine.command import serve as run_engine

    try:
        settings = EngineOptions(**options)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    _run(run_engine(settings, lambda port: click.echo(f"engine ready on http://{settings.host}:{port}")))

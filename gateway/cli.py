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
    """Run the gateway. SIGTERM drains it."""
    from gateway.logs import configure
    from gateway.serve import serve as run_gateway

    loaded = _load(config)
    configure(loaded.telemetry.log_level, loaded.telemetry.log_format, sys.stderr, secrets=_secrets(loaded))
    _run(run_gateway(loaded))


def _secrets(config: Config) -> list[str]:
    store = config.store
    given = [store.secret, store.secret_file, *(backend.credential for backend in config.backends)]
    return [secret.get_secret_value() for secret in given if secret is not None]


@cli.command()
@_CONFIG
def check(config: Path) -> None:
    """Check a config file: every problem in one run, each as file:line:column."""
    from gateway.check import check as run_check

    sys.exit(run_check(config, os.environ, sys.stdout))


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
@_JSON
def status(admin_url: str, as_json: bool) -> None:
    """Show the fleet as a running gateway sees it."""
    from gateway.client import AdminClient
    from gateway.tables import status_table

    shown = AdminClient(admin_url).status()
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
@_ADMIN
@_JSON
def explain(request_file: Any, path: str, headers: tuple[str, ...], admin_url: str, as_json: bool) -> None:
    """Show how a running gateway would place the request in REQUEST_FILE (- for standard input). Sends nothing."""
    from gateway.client import AdminClient
    from gateway.tables import explain_table

    pairs = [tuple(part.strip() for part in header.split(":", 1)) for header in headers]
    if any(len(pair) != 2 for pair in pairs):
        raise click.BadParameter("must be NAME:VALUE", param_hint="--header")
    decision = AdminClient(admin_url).explain(request_file.read(), path, {pair[0]: pair[1] for pair in pairs})
    if as_json:
        click.echo(json.dumps(decision, indent=2))
    else:
        explain_table(decision)


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

"""Tables for the terminal: status and decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PLAIN: Final[dict[str, Any]] = {"highlight": False, "markup": False, "emoji": False}
"""Names of models and backends are text, whatever brackets they have."""


def _number(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:,.1f}"


def _console() -> Console:
    """A pipe has no width: nothing is cut there."""
    console = Console()
    return console if console.is_terminal else Console(width=200)


def _state(backend: Mapping[str, Any]) -> str:
    reasons = backend.get("draining")
    if not reasons:
        return str(backend["state"])
    word = "drained" if backend["empty"] else "draining"
    return f"{backend['state']}, {word} ({'+'.join(reasons)})"


def _column(table: Table, name: str, *, number: bool = False) -> None:
    table.add_column(name, justify="right" if number else "left", overflow="fold")


def _reload_lines(reload: Mapping[str, Any], console: Console) -> None:
    """What an operator should know before the numbers: an older config runs, or a part of it waits."""
    if reload.get("problems"):
        console.print("the config on disk was refused, an older one runs:", **_PLAIN)
        for problem in reload["problems"]:
            console.print(f"  {problem}", **_PLAIN)
    if reload.get("restart_needed"):
        console.print(f"waits for a restart: {', '.join(reload['restart_needed'])}", **_PLAIN)


def _discovery_lines(sources: Sequence[Mapping[str, Any]], console: Console) -> None:
    for source in sources:
        answer = "no answer yet" if source["answer_age_s"] is None else f"answered {source['answer_age_s']:.0f} s ago"
        failed = f", last error {source['last_error']}" if source["last_error"] else ""
        refused = f", {len(source['refused'])} refused" if source["refused"] else ""
        found = f"{source['found']} found, {source['ready']} ready"
        console.print(f"discovery {source['name']} ({source['kind']}): {found}, {answer}{refused}{failed}", **_PLAIN)


def status_table(status: Mapping[str, Any], console: Console | None = None) -> None:
    """The answer of `/admin/v1/status`."""
    console = console or _console()
    ready = "ready" if status["ready"] else "draining" if status["draining"] else "not ready"
    index, sessions = status["index"], status["sessions"]
    console.print(f"warmroute {status['version']}: {ready}, config {status['config']}", **_PLAIN)
    _reload_lines(status.get("reload") or {}, console)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("backend", "state", "trust", "models"):
        _column(table, column)
    for column in (
        "in flight",
        "pending tok",
        "blocks",
        "live tok",
        "KV tok",
        "KV use",
        "engine queue",
        "prefill us/tok",
    ):
        _column(table, column, number=True)
    for backend in status["backends"]:
        engine = backend["engine"] or {}
        usage = engine.get("kv_usage")
        table.add_row(
            backend["name"],
            _state(backend),
            backend["trust"],
            ",".join(backend["models"]) or "-",
            str(backend["in_flight"]),
            _number(backend["pending_uncached_tokens"]),
            _number(backend["indexed_blocks"]),
            _number(backend["live_tokens"]),
            _number(backend["capacity_tokens"]),
            "-" if usage is None else f"{usage:.0%}",
            _number(engine.get("waiting")),
            f"{backend['prefill']['s_per_token'] * 1e6:.1f}",
        )
    console.print(table, **_PLAIN)
    for backend in status["backends"]:
        if suspect := backend.get("suspect"):
            name, cause, since_s = backend["name"], suspect["cause"], suspect["since_s"]
            console.print(f"{name} suspect: {cause}, for {since_s:.0f} s: {suspect['detail']}", **_PLAIN)
    _discovery_lines(status.get("discovery") or (), console)
    console.print(
        f"index: {index['blocks']:,} blocks, {index['entries']:,} of {index['max_entries']:,} entries, "
        f"{index['evicted_total']:,} evicted; sessions: {sessions['sessions']:,} known, {sessions['live']:,} live",
        **_PLAIN,
    )


def explain_table(decision: Mapping[str, Any], console: Console | None = None) -> None:
    """The answer of `/admin/v1/explain`: one row per backend, cost terms in ms, the cheapest first."""
    console = console or _console()
    chosen = decision["backend"] or "no backend"
    console.print(
        f"{chosen} by {decision['policy']} ({decision['kind'] or 'none left'}), model {decision['model']}, "
        f"{decision['prompt_tokens']:,.0f} prompt tokens, {decision['cached_tokens']:,.0f} predicted cached",
        **_PLAIN,
    )
    candidates = sorted(decision["candidates"], key=lambda row: (row["rejected"] is not None, row["cost"] or 0.0))
    terms = list(dict.fromkeys(term for row in candidates for term, part in row["terms"].items() if part))
    in_seconds = decision["policy"] == "warm"
    table = Table(box=None, pad_edge=False, header_style="bold")
    _column(table, "backend")
    for column in ("cached tok", "in flight", "pending", "live tok"):
        _column(table, column, number=True)
    for term in terms:
        _column(table, f"{term} ms" if in_seconds else term, number=True)
    _column(table, "cost ms" if in_seconds else "cost", number=True)
    _column(table, "note")
    show = _ms if in_seconds else _number
    for row in candidates:
        note = row["rejected"] or ("chosen" if row["chosen"] else "home" if row["home"] else "")
        table.add_row(
            row["backend"],
            _number(row["cached_tokens"]),
            str(row["in_flight"]),
            str(row["pending"]),
            _number(row["live_tokens"]),
            *(show(row["terms"].get(term)) for term in terms),
            show(row["cost"]),
            note,
        )
    console.print(table, **_PLAIN)

"""What differs between two configs, knob by knob, and whether a reload applies it.

Invariant: secrets and keys are compared but never shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gateway.config.fields import Section
from gateway.config.root import Config
from gateway.config.schema import secrecy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

RESTART: Final = frozenset(
    (
        "listen.host",
        "listen.port",
        "listen.tls",
        "admin.host",
        "admin.port",
        "admin.metrics_bind",
        "admin.tls",
        "store.url",
        "store.max_entries",
        "store.secret",
        "store.secret_file",
        "telemetry.log_format",
    )
)
"""Sockets, shared state and the shape of log lines stay as they began. Of `tls` only that it is there or not: what
stands below it reloads.
"""

_ENTRY_NOTES: Final[Mapping[str, tuple[str, str]]] = {
    "tenants": ("", "its keys are refused"),
    "models": ("", "its prompts are encoded as bytes"),
    "backends": ("probed, then it gets requests", "drained; its sessions move"),
    "discovery": ("what it finds is probed, then it gets requests", "what it found is drained"),
}
"""(of an added entry, of a removed one)."""
_KNOB_NOTES: Final[Mapping[str, str]] = {
    "backends.url": "at another address it is another backend: the old one finishes its requests, sessions move",
    **dict.fromkeys(
        (f"backends.{key}" for key in ("tls_verify", "ca_file", "cert_file", "key_file", "api_key", "api_key_file")),
        "for new connections; its cache stays known",
    ),
    **dict.fromkeys(
        (f"models.{key}" for key in ("encoding", "tokenizer", "chat_template", "block_size")),
        "prompts get other keys: what is known of the caches no longer matches",
    ),
}
_HIDDEN: Final = "(secret)"
_THERE: Final = "given"
"""For what is more than one value: an entry of a list, an optional section."""


@dataclass(frozen=True, slots=True)
class Change:
    """`before` and `after` are as they would stand in the file; None: unset, or not there. Of secrets `(secret)`."""

    path: str
    """`limits.max_attempts`, `backends[gpu-3].url`; entries of lists go by name: `backends[gpu-3]`."""
    before: str | None
    after: str | None
    needs_restart: bool = False
    note: str = ""

    def __str__(self) -> str:
        if self.path.endswith("]"):
            what = "added" if self.before is None else "removed"
        elif _HIDDEN in (self.before, self.after):
            what = "changed"
        else:
            what = f"{_shown(self.before)} -> {_shown(self.after)}"
        notes = [self.note, "needs a restart" if self.needs_restart else ""]
        noted = "; ".join(note for note in notes if note)
        return f"{self.path}: {what}" + (f" ({noted})" if noted else "")


def changes(old: Config, new: Config) -> tuple[Change, ...]:
    """In the order of the knobs; entries by name, so that their order counts only where it has an effect."""
    return tuple(_sections(old, new, "", ""))


def _sections(old: Section, new: Section, path: str, knob: str) -> Iterator[Change]:
    """`path` is what is shown, `knob` the same without names of entries."""
    for key, info in type(new).model_fields.items():
        before, after = _value(old, key), _value(new, key)
        here = f"{path}.{key}" if path else key
        knob_here = f"{knob}.{key}" if knob else key
        if before == after:
            continue
        if secrecy(info) is not None:
            yield _change(here, knob_here, _HIDDEN if before else None, _HIDDEN if after else None)
        elif isinstance(before, Section) and isinstance(after, Section):
            yield from _sections(before, after, here, knob_here)
        elif _is_list_of_sections(before) or _is_list_of_sections(after):
            yield from _entries(before, after, here, knob_here)
        else:
            yield _change(here, knob_here, _text(before), _text(after))


def _value(section: Section, key: str) -> Any:
    # a default route that is written down is the one that is not
    return section.all_routes if key == "routes" and isinstance(section, Config) else getattr(section, key)


def _change(path: str, knob: str, before: str | None, after: str | None) -> Change:
    return Change(path, before, after, knob in RESTART, _KNOB_NOTES.get(knob, ""))


def _is_list_of_sections(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and isinstance(value[0], Section)


def _entries(old: tuple[Any, ...], new: tuple[Any, ...], path: str, knob: str) -> Iterator[Change]:
    before, after = ({entry.name: entry for entry in entries} for entries in (old, new))
    added, removed = _ENTRY_NOTES.get(knob, ("", ""))
    for name in before:
        if name not in after:
            yield Change(f"{path}[{name}]", _THERE, None, note=removed)
    for name, entry in after.items():
        if name in before:
            yield from _sections(before[name], entry, f"{path}[{name}]", knob)
        else:
            yield Change(f"{path}[{name}]", None, _THERE, note=added)
    stayed = [[name for name in names if name in before and name in after] for names in (before, after)]
    if knob == "routes" and stayed[0] != stayed[1]:
        yield Change(path, ", ".join(stayed[0]), ", ".join(stayed[1]), note="the first that matches counts")


def _text(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, Section):
        return _THERE
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.15g}"
    if isinstance(value, tuple):
        return f"[{', '.join(str(_text(item)) for item in value)}]"
    return str(value) if isinstance(value, int | str | Path) else _HIDDEN


def _shown(value: str | None) -> str:
    return "unset" if value is None else value

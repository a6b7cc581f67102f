"""A new config while requests run: all of it, or nothing.

Everything that can fail (reading, checking, loading vocabularies and certificates) is done first and beside the
running config; then all is put in place in one step of the event loop. A reload that fails changes nothing but what
`status` tells of it. Reloads come one after the other.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from gateway.config import ConfigErrors
from gateway.config.diff import changes
from gateway.listeners import server_context
from gateway.plan import apply, next_plan
from gateway.readings import ReloadReading
from vocabulary.errors import ConfigError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from gateway.app import Gateway
    from gateway.config import Config
    from gateway.config.diff import Change
    from gateway.listeners import Server
    from gateway.logs import LogControl

Cause = Literal["admin", "file", "signal"]

_MAX_LOGGED: Final = 20


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one reload did. `problems` is empty where it was applied."""

    cause: Cause
    config_id: str
    """Of the config that runs now."""
    at_s: float
    """Unix time."""
    problems: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()

    @property
    def applied(self) -> bool:
        return not self.problems


class Reloader:
    def __init__(self, gateway: Gateway, read: Callable[[], Config], logs: LogControl | None = None) -> None:
        """`read` gives the config anew, may block, and raises ConfigError."""
        self._gateway = gateway
        self._read = read
        self._logs = logs
        self._turn = asyncio.Lock()
        self._booted = gateway.config
        self._servers: list[tuple[Literal["listen", "admin"], Server]] = []
        self._wanted: tuple[Path, ...] = ()
        self.last: Outcome | None = None
        """The latest attempt."""
        self.applied = 0
        self.failed = 0

    def renews(self, section: Literal["listen", "admin"], server: Server) -> None:
        """This listener's certificates follow the config."""
        self._servers.append((section, server))

    @property
    def restart_needed(self) -> tuple[str, ...]:
        """Knobs whose new values wait for a restart."""
        return tuple(change.path for change in changes(self._booted, self._gateway.config) if change.needs_restart)

    def reading(self) -> ReloadReading:
        """For the metrics."""
        return ReloadReading(self.applied, self.failed, self.last is None or self.last.applied)

    def status(self) -> dict[str, Any]:
        """As plain JSON values."""
        last = self.last
        return {
            "applied": self.applied,
            "refused": self.failed,
            "last": None if last is None else {"cause": last.cause, "at_s": round(last.at_s), "applied": last.applied},
            "problems": [] if last is None else list(last.problems),
            "restart_needed": list(self.restart_needed),
        }

    def files(self) -> tuple[Path, ...]:
        """The config, all files that it names, and those that one which was refused would have needed."""
        return (*self._gateway.config.files, *self._wanted)

    async def reload(self, cause: Cause) -> Outcome:
        async with self._turn:
            try:
                outcome = await self._reload(cause)
            except ConfigError as error:
                problems: Iterable[object] = (error,)
                if isinstance(error, ConfigErrors):
                    problems, self._wanted = error.problems, tuple(error.files)
                outcome = self._refused(cause, tuple(str(problem) for problem in problems))
            except Exception as error:  # told to who asked; the running config goes on
                self._gateway.log.error("reload_broken", exc_info=error)
                outcome = self._refused(cause, (f"the reload failed ({type(error).__name__})",))
        self.last = outcome
        log = self._gateway.log
        if outcome.applied:
            self.applied += 1
            log.info(
                "reloaded",
                cause=cause,
                config=outcome.config_id,
                changed=[change.path for change in outcome.changes][:_MAX_LOGGED],
                restart_needed=list(self.restart_needed),
            )
        else:
            self.failed += 1
            log.error("reload_refused", cause=cause, problems=list(outcome.problems[:_MAX_LOGGED]))
        return outcome

    def _refused(self, cause: Cause, problems: tuple[str, ...]) -> Outcome:
        return Outcome(cause, self._gateway.config.id, time.time(), problems)

    async def _reload(self, cause: Cause) -> Outcome:
        """Raises ConfigError, with nothing changed."""
        gateway, before = self._gateway, self._gateway.config
        config = await asyncio.to_thread(self._read)
        plan = await next_plan(gateway, config)
        contexts = self._contexts(config)
        apply(gateway, plan)
        for server, context in contexts:
            await server.renew(context)
        if self._logs is not None:
            self._logs.apply(config.telemetry.log_level, config.secrets)
        self._wanted = ()
        return Outcome(cause, config.id, time.time(), changes=changes(before, config))

    def _contexts(self, config: Config) -> list[tuple[Server, ssl.SSLContext]]:
        """Listeners that began without TLS, or with it, stay so until a restart."""
        sections = {
            "listen": (self._booted.listen.tls, config.listen.tls),
            "admin": (self._booted.admin.tls, config.admin.tls),
        }
        found = []
        for name, server in self._servers:
            began_with, tls = sections[name]
            if began_with is not None and tls is not None:
                found.append((server, server_context(tls, f"{name}.tls")))
        return found

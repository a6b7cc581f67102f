"""One source of backends as the gateway sees it: its plan, its task, and what it last told."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from backends.discovery.protocol import DiscoveryError

if TYPE_CHECKING:
    from backends.discovery.protocol import Found
    from gateway.source_plan import SourcePlan
    from vocabulary import BackendId

_REPEAT_LOG_S: Final = 60.0


class Feed:
    def __init__(self, plan: SourcePlan, former: Feed | None = None) -> None:
        """`former`: the same source under an earlier config, whose last answer is shown until there is a new one."""
        self.plan = plan
        self.task: asyncio.Task[None] | None = None
        self.spoke = asyncio.Event()
        """It has answered or failed once."""
        self.answered = False
        """Under this plan."""
        self.found: tuple[Found, ...] = former.found if former is not None else ()
        self.refused: dict[BackendId, str] = {}
        """What was found but not taken in, and why."""
        self.overflow = 0
        """How many were found beyond `max_backends`."""
        self.errors_total: int = former.errors_total if former is not None else 0
        self._answered_s: float | None = former._answered_s if former is not None else None
        self._error: Exception | None = None
        self._logged: tuple[str, float] | None = None
        """Last error in the log, and when."""

    def heard(self, found: tuple[Found, ...], now_s: float) -> bool:
        """Returns False when the last answer said the same."""
        news = not self.answered or found != self.found
        self.answered = True
        self.found = found
        self._answered_s = now_s
        self._error = None
        return news

    def failed(self, error: Exception, now_s: float) -> bool:
        """Returns False when the log has it already."""
        self._error = error
        self.errors_total += 1
        text = f"{type(error).__name__} {self.detail}"
        if self._logged is not None and self._logged[0] == text and now_s - self._logged[1] < _REPEAT_LOG_S:
            return False
        self._logged = text, now_s
        return True

    @property
    def detail(self) -> str | None:
        """The text of the last error, where it is one of ours: that of others may hold addresses."""
        return str(self._error) if isinstance(self._error, DiscoveryError) else None

    def status(self, now_s: float) -> dict[str, Any]:
        return {
            "name": self.plan.name,
            "kind": self.plan.section.kind,
            "found": len(self.found),
            "ready": sum(found.takes_traffic for found in self.found),
            "refused": {str(name): reason for name, reason in self.refused.items()},
            "overflow": self.overflow,
            "answer_age_s": None if self._answered_s is None else round(now_s - self._answered_s, 1),
            "last_error": None if self._error is None else type(self._error).__name__,
            "detail": self.detail,
            "errors_total": self.errors_total,
        }

"""Logs: an event name and key/values, one line each, no content and no credentials at any level.

Our own loggers (structlog) and the standard library's (uvicorn, httpx2, asyncio) go through one chain whose last step
before rendering is the redaction. uvicorn must be started with `log_config=None`, else it installs handlers of its own.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Literal, TextIO, cast

import structlog

from gateway.redaction import Redactor, error_label

if TYPE_CHECKING:
    from collections.abc import Iterable, MutableMapping, Sequence
    from types import TracebackType

    from structlog.typing import FilteringBoundLogger, Processor

_FRAMES: Final = 3
_QUIET: Final = {"httpx2": logging.WARNING, "httpcore2": logging.WARNING, "asyncio": logging.INFO}
"""Loggers that say too much below these levels: every header, every chunk."""
_MAX_FOREIGN_CHARS: Final = 500


class LogControl:
    """What a reload may change of the logs, for loggers that exist too."""

    def __init__(self, threshold: _Threshold, redactor: Redactor) -> None:
        self._threshold = threshold
        self._redactor = redactor

    def apply(self, level: str, secrets: Iterable[str]) -> None:
        """Former secrets stay masked: something may still hold them."""
        self._threshold.level = _number(level)
        self._redactor.add(secrets)
        _set_standard_levels(self._threshold.level)


def configure(
    level: str, fmt: Literal["json", "console"], stream: TextIO, *, secrets: Iterable[str] = ()
) -> LogControl:
    """Route all logs of the process to `stream`. Once, before loggers are made; again replaces the former.

    `level`: debug, info, warning or error. `secrets`: values of the config that are masked wherever they appear.
    """
    threshold = _Threshold(_number(level))
    redactor = Redactor(secrets)
    renderer: Processor = _json if fmt == "json" else structlog.dev.ConsoleRenderer(colors=stream.isatty())
    output = _Output(stream)
    chain: list[Processor] = [
        threshold,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _errors,
        redactor,
        renderer,
    ]
    structlog.configure(
        processors=chain,
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),  # the threshold may change
        logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", output)),
        cache_logger_on_first_use=False,
    )
    _route_standard_library(_Bridge(chain[1:], output))
    _set_standard_levels(threshold.level)
    return LogControl(threshold, redactor)


def _number(level: str) -> int:
    return logging.getLevelNamesMapping()[level.upper()]


class _Threshold:
    """The first step: what is below the level goes no further."""

    def __init__(self, level: int) -> None:
        self.level = level

    def __call__(self, logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        if _number(method) < self.level:
            raise structlog.DropEvent
        return event


def get_logger(name: str) -> FilteringBoundLogger:
    """A logger whose lines carry `source: name`.

    Take it after `configure` and keep it. Taken before, it looks the settings up at each call.
    """
    logger = structlog.get_logger(source=name)
    return cast("FilteringBoundLogger", logger.bind() if structlog.is_configured() else logger)


def _route_standard_library(bridge: _Bridge) -> None:
    root = logging.getLogger()
    for handler in [h for h in root.handlers if isinstance(h, _Bridge)]:
        root.removeHandler(handler)
    root.addHandler(bridge)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True


def _set_standard_levels(threshold: int) -> None:
    logging.getLogger().setLevel(threshold)
    for name, floor in _QUIET.items():
        logging.getLogger(name).setLevel(max(threshold, floor))


class _Output:
    """A stream that may go away: there is nowhere left to say so, and no request may fail for it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with suppress(OSError, ValueError):
            self._stream.write(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()


class _Bridge(logging.Handler):
    """A standard record becomes an event of our chain."""

    def __init__(self, chain: Sequence[Processor], output: _Output) -> None:
        super().__init__()
        self._chain = chain
        self._output = output

    def emit(self, record: logging.LogRecord) -> None:
        event: Any = {"event": _first_line(record), "source": record.name}
        if record.exc_info:
            event["exc_info"] = record.exc_info
        for step in self._chain:
            event = step(None, record.levelname.lower(), event)
        self._output.write(f"{event}\n")
        self._output.flush()


def _first_line(record: logging.LogRecord) -> str:
    """The message without what libraries append to it: reprs of tasks, callbacks and exceptions hold content."""
    arguments = record.args
    if isinstance(arguments, tuple):
        arguments = tuple(error_label(a) if isinstance(a, BaseException) else a for a in arguments)
    message = error_label(record.msg) if isinstance(record.msg, BaseException) else str(record.msg)
    with suppress(TypeError, ValueError, KeyError):  # a wrong number of arguments: the bare message then
        message = message % arguments if arguments else message
    line = message.split("\n", 1)[0]
    if record.name == "asyncio":
        line = re.split(r"[<(]", line, maxsplit=1)[0].rstrip()
    return line[:_MAX_FOREIGN_CHARS]


def _errors(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """`exc_info` -> error (class name, our own with text), cause, where (innermost frames). No values of variables."""
    event.pop("stack_info", None)
    info = event.pop("exc_info", None)
    if info is True:
        info = sys.exc_info()
    error = info[1] if isinstance(info, tuple) else info
    if not isinstance(error, BaseException):
        return event
    event["error"] = error_label(error)
    if isinstance(error, BaseExceptionGroup):
        event["errors"] = [error_label(inner) for inner in error.exceptions]
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None:
        event["cause"] = error_label(cause)
    event["where"] = _where(error.__traceback__)
    return event


def _where(traceback: TracebackType | None) -> str:
    frames = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        frames.append(f"{code.co_filename.rsplit('/', 1)[-1]}:{traceback.tb_lineno} {code.co_name}")
        traceback = traceback.tb_next
    return " < ".join(reversed(frames[-_FRAMES:]))


def _json(logger: Any, method: str, event: MutableMapping[str, Any]) -> str:
    head = {key: event.pop(key) for key in ("timestamp", "level", "event") if key in event}
    return json.dumps({**head, **event}, separators=(",", ":"))

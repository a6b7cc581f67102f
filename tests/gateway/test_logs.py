"""Logs: one chain for our loggers and the standard library's, and canaries that must not get through it."""

from __future__ import annotations

import io
import json
import logging
from typing import TYPE_CHECKING, Any

import pytest
import structlog

from gateway.logs import configure, get_logger
from gateway.redaction import CONTENT_KEYS, Redactor
from vocabulary.errors import UpstreamReset

if TYPE_CHECKING:
    from collections.abc import Iterator

CANARY = "CANARY7f3a"
LEVELS = ("debug", "info", "warning", "error")


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    named = {name: logging.getLogger(name).level for name in ("httpx2", "httpcore2", "asyncio")}
    yield
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, before in named.items():
        logging.getLogger(name).setLevel(before)


@pytest.fixture
def out() -> io.StringIO:
    return io.StringIO()


def lines(out: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_a_line_is_one_json_object(out: io.StringIO) -> None:
    configure("info", "json", out)
    get_logger("proxy").info("request_done", status=200, ttft_s=0.25, backend="gpu-1", model=None)
    (line,) = lines(out)
    assert list(line)[:3] == ["timestamp", "level", "event"]
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "level": "info", "event": "request_done", "source": "proxy",
        "status": 200, "ttft_s": 0.25, "backend": "gpu-1", "model": None,
    }  # fmt: skip


def test_console_is_for_people(out: io.StringIO) -> None:
    configure("info", "console", out)
    get_logger("proxy").info("request_done", status=200)
    assert "request_done" in out.getvalue()
    assert "status=200" in out.getvalue()
    assert "\x1b" not in out.getvalue()


@pytest.mark.parametrize("level", LEVELS)
def test_levels_filter_both_kinds_of_loggers(out: io.StringIO, level: str) -> None:
    configure(level, "json", out)
    ours, theirs = get_logger("a"), logging.getLogger("b")
    for name in LEVELS:
        getattr(ours, name)("x")
        getattr(theirs, name)("x")
    kept = LEVELS[LEVELS.index(level) :]
    assert [line["level"] for line in lines(out)] == [name for name in kept for _ in "ab"]


def test_a_call_below_the_level_does_not_reach_the_chain(out: io.StringIO) -> None:
    configure("info", "json", out)

    class Explosive:
        def __str__(self) -> str:
            raise AssertionError

    get_logger("a").debug("x", anything=Explosive())
    assert out.getvalue() == ""


def test_configure_again_replaces_the_former(out: io.StringIO) -> None:
    configure("info", "json", io.StringIO())
    configure("info", "json", out)
    logging.getLogger("b").info("once")
    get_logger("a").info("once")
    assert len(lines(out)) == 2


def test_a_logger_taken_before_configure_follows_it(out: io.StringIO) -> None:
    early = get_logger("early")
    configure("warning", "json", out)
    early.info("no")
    early.warning("yes")
    assert [(line["source"], line["event"]) for line in lines(out)] == [("early", "yes")]


def test_uvicorn_and_the_http_client_go_through_the_chain(out: io.StringIO) -> None:
    logging.getLogger("uvicorn.error").addHandler(logging.NullHandler())
    configure("debug", "json", out)
    logging.getLogger("uvicorn.error").info("Started server process [%d]", 7)
    logging.getLogger("httpx2").info("HTTP Request: GET http://h/health?api_key=%s", CANARY)
    logging.getLogger("httpx2").warning("odd answer from http://h/health?api_key=%s", CANARY)
    logging.getLogger("httpcore2.http11").debug("receive_response_headers %s", CANARY)
    assert [line["event"] for line in lines(out)] == [
        "Started server process [7]",
        "odd answer from http://h/health?api_key=[redacted]",
    ]


@pytest.mark.parametrize("key", sorted(CONTENT_KEYS))
@pytest.mark.parametrize("value", [CANARY, CANARY.encode(), [CANARY], {"x": CANARY}, 7001234])
def test_o72_content_keys_are_masked_whatever_they_hold(out: io.StringIO, key: str, value: object) -> None:
    configure("debug", "json", out)
    log = get_logger("a")
    log.debug("x", **{key: value})
    log.debug("x", nested={"deep": [{key.replace("_", "-").upper(): value}]})
    assert len(lines(out)) == 2
    assert CANARY not in out.getvalue()
    assert "7001234" not in out.getvalue()


@pytest.mark.parametrize(
    "text",
    [
        f"Authorization: Bearer {CANARY}",
        f"bearer {CANARY}",
        f"Basic {CANARY}==",
        f"sk-{CANARY}",
        f"sk-proj-{CANARY}",
        f"hf_{CANARY}",
        f"eyJhbGciOi.{CANARY}.{CANARY}",
        f"http://user:{CANARY}@host/path",
        f"url?api_key={CANARY}&x=1",
        f"{{'api-key': '{CANARY}'}}",
        f'{{"password": "{CANARY}"}}',
        f"x-session-id: {CANARY}",
    ],
)
def test_o72_what_looks_like_a_key_is_masked_in_any_text(out: io.StringIO, text: str) -> None:
    configure("debug", "json", out)
    get_logger("a").error(text, note=text, **{text: 1})
    logging.getLogger("lib").error("failed: %s", text)
    assert len(lines(out)) == 2
    assert CANARY not in out.getvalue()


@pytest.mark.parametrize(
    "text",
    [
        "token budget exceeded",
        "basic encoding",
        "3 prompt tokens",
        "http://127.0.0.1:8100/health",
        "skip-list",
        "a secret",
    ],
)
def test_ordinary_texts_pass(text: str) -> None:
    assert Redactor().text(text) == text


def test_secrets_of_the_config_are_masked_anywhere(out: io.StringIO) -> None:
    configure("debug", "json", out, secrets=[CANARY, f"{CANARY}longer", "abc"])
    get_logger("a").info(f"x{CANARY}y", where=f"{CANARY}longer", abc="abc")
    (line,) = lines(out)
    assert line["event"] == "x[redacted]y"
    assert line["where"] == "[redacted]"
    assert line["abc"] == "abc"


def test_objects_are_named_and_never_shown(out: io.StringIO) -> None:
    class Body:
        def __repr__(self) -> str:
            return CANARY

    configure("debug", "json", out)
    get_logger("a").info("x", thing=Body(), blob=CANARY.encode(), deep={"a": {"b": {"c": {"d": {"e": CANARY}}}}})
    (line,) = lines(out)
    assert CANARY not in out.getvalue()
    assert line["thing"] == "<Body>"
    assert line["blob"] == f"[{len(CANARY)} bytes]"


def test_o75_exceptions_without_text_have_their_class_name(out: io.StringIO) -> None:
    configure("info", "json", out)
    try:
        raise TimeoutError
    except TimeoutError:
        get_logger("a").exception("upstream_failed")
        logging.getLogger("lib").exception("upstream_failed")
    for line in lines(out):
        assert line["error"] == "TimeoutError"
        assert "test_logs.py:" in line["where"]


def test_texts_of_foreign_exceptions_and_local_values_stay_inside(out: io.StringIO) -> None:
    configure("debug", "json", out)
    local = f"sent {CANARY}"
    try:
        try:
            raise ValueError(local)
        except ValueError as error:
            raise UpstreamReset("connection died") from error
    except UpstreamReset as error:
        get_logger("a").error("x", exc_info=error, problem=error, other=error.__cause__)
        logging.getLogger("lib").error("x %s", error.__cause__, exc_info=error)
    ours, theirs = lines(out)
    assert CANARY not in out.getvalue()
    assert ours["error"] == theirs["error"] == ours["problem"] == "UpstreamReset: connection died"
    assert ours["cause"] == theirs["cause"] == ours["other"] == "ValueError"
    assert theirs["event"] == "x ValueError"


def test_groups_name_their_members(out: io.StringIO) -> None:
    configure("debug", "json", out)
    get_logger("a").error("x", exc_info=ExceptionGroup(CANARY, [ValueError(CANARY), UpstreamReset("gone")]))
    (line,) = lines(out)
    assert line["errors"] == ["ValueError", "UpstreamReset: gone"]
    assert CANARY not in out.getvalue()


def test_asyncio_messages_lose_their_reprs(out: io.StringIO) -> None:
    configure("debug", "json", out)
    log = logging.getLogger("asyncio")
    log.error(f"Task exception was never retrieved\nfuture: <Task finished exception=ValueError('{CANARY}')>")
    log.error(f"Exception in callback Protocol.data_received(b'{CANARY}')\nhandle: <Handle>")
    log.warning("Executing %s took %.3f seconds", f"<Task {CANARY}>", 0.2)
    assert [line["event"] for line in lines(out)] == [
        "Task exception was never retrieved",
        "Exception in callback Protocol.data_received",
        "Executing",
    ]


def test_records_that_cannot_be_formatted_still_come_through(out: io.StringIO) -> None:
    logging.getLogger().handlers.clear()  # those of pytest raise on them
    configure("debug", "json", out)
    logging.getLogger("lib").error("%d and %s", CANARY)
    logging.getLogger("lib").error(ValueError(CANARY))
    assert [line["event"] for line in lines(out)] == ["%d and %s", "ValueError"]


def test_lines_cannot_be_forged(out: io.StringIO) -> None:
    configure("debug", "console", out)
    get_logger("a").info("x\n2026 forged", note="\x1b[2J\ud800", **{"k\n": 1})
    logging.getLogger("lib").info("y\rforged")
    assert len(out.getvalue().splitlines()) == 2
    assert "\x1b" not in out.getvalue()


def test_odd_values_give_valid_json(out: io.StringIO) -> None:
    configure("debug", "json", out)
    get_logger("a").info("x", nan=float("nan"), lone="\ud800", big=2**80, keys={1: 2, None: 3})
    (line,) = lines(out)
    assert line["nan"] == "nan"
    assert line["keys"] == {"1": 2, "None": 3}


def test_long_texts_are_cut() -> None:
    assert len(Redactor().text("x" * 100_000)) < 1_100


def test_a_closed_stream_is_no_failure_of_the_caller() -> None:
    stream = io.StringIO()
    configure("debug", "json", stream)
    stream.close()
    logging.getLogger("lib").info("x")

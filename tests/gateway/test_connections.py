from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from gateway.config import default_config
from gateway.connections import MAX_REFUSED, ConnectionLimits, Connections, connection_limits, room_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.connections import CloseReason, Wait


class Client:
    """A connection that waits for what a test says."""

    def __init__(self) -> None:
        self.wait: Wait = "nothing"
        self.mark: object = None
        self.told: list[Wait] = []
        self.aborted = False

    def waits_for(self) -> tuple[Wait, object]:
        return self.wait, self.mark

    def overdue(self, wait: Wait) -> None:
        self.told.append(wait)

    def abort(self) -> None:
        self.aborted = True


class Setting:
    """Passes by hand, on a clock by hand."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.now_s = 1000.0
        self.closed: Counter[str] = Counter()
        self.passes: list[Callable[[], object]] = []
        self.intervals_s: list[float] = []
        self.connections = Connections(limits, lambda: self.now_s, self, self._count)  # type: ignore[arg-type]
        self.connections.start()

    def _count(self, reason: CloseReason) -> None:
        self.closed[reason] += 1

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Setting:
        self.intervals_s.append(delay_s)
        self.passes.append(callback)
        return self

    def cancel(self) -> None:
        self.passes.clear()

    def at(self, now_s: float) -> None:
        self.now_s = 1000.0 + now_s
        self.passes.pop()()


LIMITS = ConnectionLimits(3, 64_000, keep_alive_s=75, header_timeout_s=10, body_timeout_s=30, write_timeout_s=60)


@pytest.mark.parametrize(
    ("wait", "allowed_s"), [("head", 10), ("body", 30), ("write", 60), ("keep_alive", 75), ("linger", 1)]
)
def test_who_does_not_get_on_is_overdue_and_who_does_is_not(wait: Wait, allowed_s: float) -> None:
    setting = Setting(LIMITS)
    stalled, moving = Client(), Client()
    for client in (stalled, moving):
        assert setting.connections.admit(client)
        client.wait = wait
    setting.at(0.5)
    for second in range(1, int(allowed_s)):
        moving.mark = second // 2
        setting.at(second)
    assert stalled.told == []
    moving.mark = "another"
    setting.at(allowed_s + 0.5)
    assert stalled.told == [wait]
    assert moving.told == []


def test_a_busy_connection_is_never_overdue() -> None:
    setting = Setting(LIMITS)
    client = Client()
    setting.connections.admit(client)
    for hour in range(10):
        setting.at(3600 * hour)
    assert client.told == []


def test_what_is_waited_for_is_timed_anew_when_it_changes() -> None:
    setting = Setting(LIMITS)
    client = Client()
    setting.connections.admit(client)
    for second in range(0, 100, 8):
        client.wait = "head" if client.wait == "body" else "body"
        setting.at(second)
    assert client.told == []


def test_limits_that_were_reloaded_hold_for_open_connections() -> None:
    setting = Setting(LIMITS)
    client = Client()
    client.wait = "keep_alive"
    setting.connections.admit(client)
    setting.at(0)
    setting.connections.apply(ConnectionLimits(1, 64_000, 2, 10, 30, 60))
    assert setting.intervals_s[-1] == 0.5
    assert len(setting.passes) == 1
    setting.at(2)
    assert client.told == ["keep_alive"]
    assert not setting.connections.admit(Client())


def test_there_are_no_more_than_allowed_and_refusals_are_bounded_too() -> None:
    setting = Setting(LIMITS)
    clients = [Client() for _ in range(3)]
    assert all(setting.connections.admit(client) for client in clients)
    refused = [Client() for _ in range(MAX_REFUSED + 10)]
    assert not any(setting.connections.admit(client) for client in refused)
    assert len(setting.connections) == 3
    assert set(setting.connections) == set(clients)
    assert sum(client.aborted for client in refused) == 10
    assert setting.closed == {"too_many_connections": MAX_REFUSED + 10}
    refused[0].wait = "linger"
    setting.at(0)
    setting.at(1)
    assert refused[0].told == ["linger"], "they are watched as well"
    for client in (clients[0], *refused):
        setting.connections.discard(client)
    assert setting.connections.admit(Client())


def test_the_end_closes_all() -> None:
    setting = Setting(LIMITS)
    clients = [Client() for _ in range(4)]
    for client in clients:
        setting.connections.admit(client)
    setting.connections.stop()
    assert all(client.aborted for client in clients)
    assert not setting.passes


@pytest.mark.parametrize("shortest_s", [0.02, 0.4, 3, 100])
def test_passes_are_four_to_the_shortest_time_and_at_least_one_a_second(shortest_s: float) -> None:
    interval_s = ConnectionLimits(1, 1, 1000, 1000, shortest_s, 1000).sweep_interval_s
    assert interval_s <= 1
    assert interval_s >= 0.01
    assert interval_s <= shortest_s / 2


# How many.


@pytest.mark.parametrize("open_files", [1024, 2048, 4096, 65_536, 1_048_576])
@pytest.mark.parametrize("backends", [1, 8, 64])
def test_each_connection_has_room_for_one_to_a_backend(open_files: int, backends: int) -> None:
    room = room_for(open_files, backends, backends * 256, None)
    assert room >= 16
    used = 2 * room + MAX_REFUSED + 64
    assert used < open_files
    assert room >= open_files * 0.2, "and not much is wasted"


def test_what_the_operator_wants_holds_as_far_as_files_go() -> None:
    assert room_for(1024, 1, 256, 500) == 500
    assert room_for(1024, 1, 256, 10) == 10
    assert 700 < room_for(1024, 1, 256, 1_000_000) < 1024 - MAX_REFUSED - 64
    assert room_for(64, 1, 256, None) == 16, "a process that can do nothing at all still answers somebody"


def test_the_limits_come_from_the_config() -> None:
    config = default_config(
        backends=[{"name": "a", "url": "http://127.0.0.1:9"}],
        listen={"max_connections": 7, "max_header_kb": 2, "header_timeout_s": 3, "write_timeout_s": 4},
    )
    limits = connection_limits(config, 1024)
    assert (limits.max_connections, limits.max_head_bytes) == (7, 2000)
    assert limits.allowed_s("head") == 3
    assert limits.allowed_s("write") == 4
    assert limits.allowed_s("body") == 30


async def test_passes_come_by_themselves() -> None:
    loop = asyncio.get_running_loop()
    limits = ConnectionLimits(1, 1, 0.04, 1, 1, 1)
    told = asyncio.Event()

    class Idle(Client):
        def overdue(self, wait: Wait) -> None:
            told.set()

    connections = Connections(limits, loop.time, loop, lambda _: None)
    client = Idle()
    client.wait = "keep_alive"
    connections.admit(client)
    connections.start()
    await asyncio.wait_for(told.wait(), 5)
    connections.stop()

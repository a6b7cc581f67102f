"""One instance's feed without sockets: what it asks for, when it is believed, and what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import zmq

from backends.backend import EventSource
from gateway.backend_feed import LOST_S, MISSES, REPLAY_TIMEOUT_S, BackendFeed
from gateway.diagnosis import Cause
from gateway.key_space import KeySpace
from gateway.logs import get_logger
from gateway.reported import GRACE_S, ReportedCache
from prefix_index.encoding.protocol import Namespace
from prefix_index.events.mirror import Mirror
from prefix_index.keys import ChainState, extend, root_state
from tests.support.fleet import SECRET, Fleet
from vocabulary import BlockKeys, Trust

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.fleet import InstanceState

BLOCK = 4
ROOT = root_state(SECRET, Namespace("m"), BLOCK)


@dataclass
class Socket:
    """Notes what is asked of it."""

    replaying: bool = False
    asked: list[int] = field(default_factory=list)
    closed: bool = False
    fault: zmq.ZMQError | None = None

    def open(self) -> None:
        if self.fault is not None:
            raise self.fault

    def close(self) -> None:
        self.closed = True
        self.replaying = False

    def ask_replay(self, start: int) -> None:
        if self.fault is not None:
            raise self.fault
        self.replaying = True
        self.asked.append(start)

    def end_replay(self) -> None:
        self.replaying = False


def batch(*events: dict[str, Any]) -> bytes:
    return msgspec.msgpack.encode([1.0, events, 0])


def stored(ids: list[int], parent: int | None = None, block_size: int = BLOCK) -> dict[str, Any]:
    """Handles are the ids of the blocks' first tokens."""
    return {
        "type": "BlockStored",
        "block_hashes": ids[::block_size],
        "parent_block_hash": parent,
        "token_ids": ids,
        "block_size": block_size,
        "medium": "GPU",
    }


def prompt(ids: list[int]) -> BlockKeys:
    data = b"".join(i.to_bytes(4, "little") for i in ids)
    return extend(ChainState(ROOT.digest), data, 4 * BLOCK)[0]


CLEARED = {"type": "AllBlocksCleared"}
IDS = list(range(1, 17))


class Stage:
    def __init__(self, fleet: Fleet, *, replay: bool = True, topic: str = "") -> None:
        self.fleet = fleet
        self.backend = fleet.add("a")
        self.state: InstanceState = fleet.state(self.backend)
        instance = self.backend.instance
        self.cache = ReportedCache(fleet.index, instance, fleet.now_s)
        self.cache.mirror = Mirror(fleet.index, instance.id, lambda _: ROOT.digest, block_size=BLOCK)
        fleet.fleet.believe(self.state, self.cache)
        self.socket = Socket()
        source = EventSource("tcp://a:1", "tcp://a:2" if replay else None, topic)
        self.feed = BackendFeed(
            instance, source, KeySpace("m", BLOCK), self.state, self.cache, fleet.clock, get_logger("test")
        )
        self.feed.open(self.socket)  # type: ignore[arg-type]

    def work(self) -> None:
        while self.feed.work():
            pass

    def message(self, sequence: int, *events: dict[str, Any]) -> None:
        self.feed.message(sequence, batch(*events))
        self.work()

    def replay(self, *messages: tuple[int, bytes]) -> None:
        for sequence, payload in messages:
            self.feed.replayed(sequence, payload)
            self.work()
        self.socket.replaying = False
        self.feed.replay_ended()
        self.work()

    def sweep(self, after_s: float = GRACE_S) -> Trust:
        self.fleet.now_s += after_s
        self.feed.sweep(self.fleet.now_s)
        return self.state.trust

    def cached(self, ids: list[int] = IDS) -> int:
        return self.cache.lookup(self.fleet.index.match(prompt(ids)))[0]

    def miss(self, times: int = MISSES, *, heard: bool = False) -> None:
        """Requests of which no event tells."""
        for number in range(times):
            self.cache.sent(prompt(list(range(1000 * number + 500, 1000 * number + 516))), self.fleet.now_s)
            self.fleet.now_s += GRACE_S / 2
            if heard:
                sequence = self.feed.status(0.0)["last_sequence"]
                self.message(sequence + 1, stored([7777 + number, 1, 2, 3]))
            self.sweep()

    @property
    def status(self) -> dict[str, Any]:
        return self.feed.status(self.fleet.now_s)

    def counted(self, family: str, *labels: str) -> float:
        return float(getattr(self.fleet.metrics.on_backends, family).child("a", *labels).value)


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    with Fleet() as fleet:
        yield fleet


@pytest.fixture
def stage(fleet: Fleet) -> Stage:
    return Stage(fleet)


def test_all_from_the_start_is_exact(stage: Stage) -> None:
    assert stage.state.trust is Trust.ESTIMATED
    stage.feed.connected()
    assert stage.socket.asked == [0]
    assert stage.status["state"] == "replaying"
    stage.replay((0, batch(stored(IDS[:8]))))
    stage.message(1, stored(IDS[8:], parent=IDS[4]))
    assert stage.sweep() is Trust.EXACT
    assert stage.cached() == 4
    assert stage.status["state"] == "live"
    assert stage.counted("kv_events", "stored") == 2
    assert stage.counted("kv_replays", "filled") == 1


def test_an_engine_that_has_said_nothing_yet_is_known_to_be_empty(stage: Stage) -> None:
    stage.feed.connected()
    stage.replay()
    assert stage.sweep() is Trust.EXACT


def test_without_replay_only_the_first_message_tells_where_it_stands(fleet: Fleet) -> None:
    stage = Stage(fleet, replay=False)
    stage.feed.connected()
    assert stage.sweep() is Trust.ESTIMATED
    stage.message(0, stored(IDS))
    assert stage.sweep() is Trust.EXACT


def test_without_replay_a_break_leaves_open_what_was_missed(fleet: Fleet) -> None:
    stage = Stage(fleet, replay=False)
    stage.feed.connected()
    stage.message(0, stored(IDS[:8]))
    stage.feed.disconnected()
    stage.feed.connected()
    assert stage.sweep() is Trust.ESTIMATED
    stage.message(1, stored(IDS[8:], parent=IDS[4]))
    assert stage.sweep() is Trust.EXACT
    assert stage.cached() == 4


def test_what_is_left_of_before_a_hole_is_not_applied_after_it(stage: Stage) -> None:
    stage.feed.connected()
    stage.feed.replayed(0, batch(stored([100, 101, 102, 103])))
    stage.feed.replayed(5, batch(stored(IDS)))
    stage.work()
    assert stage.cached([100, 101, 102, 103]) == 0
    assert stage.cached() == 4


def test_what_was_said_before_we_came_is_missing_for_good(fleet: Fleet) -> None:
    """What the engine has and never says again counts as predicted, not as absent."""
    stage = Stage(fleet, replay=False)
    stage.feed.connected()
    stage.message(5, stored(IDS[:8]))
    fleet.index.store(stage.state.holder, prompt(IDS))
    for _ in range(5):
        assert stage.sweep() is Trust.ESTIMATED
    assert stage.cached() == 4
    stage.message(6, CLEARED)
    assert stage.sweep() is Trust.EXACT
    assert stage.cached() == 0


def test_o36_missed_events_are_asked_for_again(stage: Stage) -> None:
    stage.feed.connected()
    stage.replay()
    stage.message(0, stored(IDS[:4]))
    stage.message(2, stored(IDS[8:12], parent=IDS[4]))
    assert stage.socket.asked == [0, 1]
    assert stage.state.trust is Trust.ESTIMATED
    assert stage.cached() == 1
    stage.replay((1, batch(stored(IDS[4:8], parent=IDS[0]))))
    assert stage.cached() == 3
    assert stage.sweep() is Trust.EXACT
    assert stage.counted("kv_gaps") == 1
    assert stage.status["gaps"] == 1


def test_o36_a_hole_drops_what_was_known(stage: Stage) -> None:
    stage.feed.connected()
    stage.replay()
    stage.message(0, stored(IDS))
    stage.message(9, stored([100, 101, 102, 103]))
    stage.replay((8, batch(CLEARED)))
    assert stage.cached() == 0
    assert stage.cached([100, 101, 102, 103]) == 1
    assert stage.counted("kv_replays", "hole") == 1


def test_o36_a_hole_without_a_clear_leaves_it_estimated(stage: Stage) -> None:
    stage.feed.connected()
    stage.replay((4, batch(stored(IDS))))
    assert stage.cached() == 4
    assert stage.sweep() is Trust.ESTIMATED
    assert stage.status["complete"] is False


def test_o35_a_new_life_starts_from_nothing_and_is_exact_again(stage: Stage) -> None:
    stage.feed.connected()
    stage.replay()
    for sequence in range(40):
        stage.message(sequence, stored([1000 + sequence, 0, 0, 0]))
    stage.message(0, stored(IDS))
    assert stage.cached() == 4
    assert stage.cached([1000, 0, 0, 0]) == 0
    assert stage.sweep() is Trust.EXACT


def test_a_replay_without_an_answer_is_given_up(stage: Stage) -> None:
    stage.feed.connected()
    for after_s, replaying in ((REPLAY_TIMEOUT_S, True), (GRACE_S, False)):
        stage.sweep(after_s)
        assert stage.socket.replaying is replaying
    assert stage.counted("kv_replays", "failed") == 1
    stage.message(3, stored(IDS))
    assert stage.sweep() is Trust.ESTIMATED
    assert stage.socket.asked == [0, 0]


def test_a_replay_that_goes_on_is_waited_for(stage: Stage) -> None:
    stage.feed.connected()
    for sequence in range(3):
        stage.sweep(REPLAY_TIMEOUT_S)
        stage.feed.replayed(sequence, batch(stored([1000 + sequence, 0, 0, 0])))
    assert stage.socket.replaying


def test_a_lost_feed_no_longer_counts_until_it_is_back(stage: Stage) -> None:
    stage.feed.connected()
    stage.replay((0, batch(stored(IDS))))
    stage.feed.disconnected()
    assert stage.sweep(LOST_S) is not Trust.BLIND
    assert stage.cached() == 4
    assert stage.sweep() is Trust.BLIND
    assert stage.cached() == 0
    assert stage.status["state"] == "lost"
    stage.feed.connected()
    assert stage.socket.asked == [0, 0]
    stage.replay((0, batch(stored(IDS))))
    assert stage.sweep() is Trust.EXACT
    assert stage.cached() == 4


def test_a_short_break_is_checked_against_the_last_message(stage: Stage) -> None:
    stage.feed.connected()
    stage.replay((0, batch(stored(IDS[:8]))))
    stage.feed.disconnected()
    stage.feed.connected()
    assert stage.socket.asked == [0, 0]
    assert stage.cached() == 2
    stage.replay((0, batch(stored(IDS[:8]))), (1, batch(stored(IDS[8:], parent=IDS[4]))))
    assert stage.cached() == 4
    assert stage.sweep() is Trust.EXACT


def test_an_engine_that_never_comes_is_lost(stage: Stage) -> None:
    stage.sweep(LOST_S)
    assert stage.status["state"] == "connecting"
    assert stage.sweep() is Trust.BLIND


def test_o30_events_of_other_tokens_are_noticed(stage: Stage) -> None:
    """The gateway's template is not the engine's: events flow, and no prompt is found in them."""
    stage.feed.connected()
    stage.replay()
    stage.message(0, stored(IDS))
    stage.miss(MISSES - 1, heard=True)
    assert stage.sweep() is Trust.EXACT
    stage.miss(1, heard=True)
    assert stage.status["state"] == "diverged"
    assert stage.feed.finding() == (Cause.TEMPLATE, "its KV events tell of other tokens than were sent to it")
    assert stage.state.trust is Trust.ESTIMATED
    stage.cache.sent(prompt(IDS), stage.fleet.now_s)
    assert stage.sweep() is Trust.EXACT


def test_misses_count_in_a_row_only(stage: Stage) -> None:
    stage.feed.connected()
    stage.replay()
    stage.message(0, stored(IDS))
    for _ in range(3):
        stage.miss(MISSES - 1, heard=True)
        assert stage.status["state"] == "live"
        stage.cache.sent(prompt(IDS), stage.fleet.now_s)
        assert stage.sweep() is Trust.EXACT


def test_a_feed_that_tells_nothing_is_silent(stage: Stage) -> None:
    """Another topic: the replay answers, and then nothing comes."""
    stage.feed.connected()
    stage.replay((0, batch(stored(IDS))))
    stage.fleet.now_s += 1
    stage.miss()
    assert stage.status["state"] == "silent"
    assert stage.state.trust is Trust.BLIND
    assert stage.cached() == 0
    stage.message(1, stored(IDS))
    assert stage.socket.asked == [0, 0]
    stage.replay((0, batch(stored(IDS))), (1, batch(stored(IDS))))
    assert stage.sweep() is Trust.EXACT
    assert stage.cached() == 4


@pytest.mark.parametrize(("topic", "cause"), [("", Cause.FEED_SILENT), ("kv@a", Cause.WRONG_TOPIC)])
def test_silence_is_named(fleet: Fleet, topic: str, cause: Cause) -> None:
    stage = Stage(fleet, topic=topic)
    stage.feed.connected()
    stage.replay()
    assert stage.feed.finding() is None
    stage.fleet.now_s += 1
    stage.miss()
    finding = stage.feed.finding()
    assert finding is not None
    assert finding.cause is cause


def test_an_idle_engine_is_not_silent(stage: Stage) -> None:
    stage.feed.connected()
    stage.replay((0, batch(stored(IDS))))
    for _ in range(100):
        assert stage.sweep(60) is Trust.EXACT
    stage.cache.sent(prompt(IDS), stage.fleet.now_s)  # a hit: the engine has nothing new to tell
    for _ in range(3):
        assert stage.sweep() is Trust.EXACT


def test_o34_another_block_size_is_refused(stage: Stage) -> None:
    stage.feed.connected()
    stage.replay((0, batch(stored(IDS, block_size=8))))
    assert stage.status["state"] == "block_size"
    assert stage.status["reason"] == "its blocks have 8 tokens, block_size of its model is 4"
    assert stage.state.trust is Trust.ESTIMATED
    assert stage.socket.closed
    assert stage.fleet.index.stats().entries == 0
    stage.sweep()
    assert stage.status["state"] == "block_size"


def test_a_message_that_cannot_be_read_leaves_nothing_to_believe(stage: Stage) -> None:
    stage.feed.connected()
    stage.replay((0, batch(stored(IDS))))
    stage.feed.message(1, b"\xc1")
    stage.work()
    assert stage.cached() == 0
    assert stage.sweep() is Trust.ESTIMATED
    assert stage.counted("kv_events", "malformed") == 1


def test_an_endpoint_that_cannot_be_used_is_said(fleet: Fleet) -> None:
    stage = Stage(fleet)
    stage.socket.fault = zmq.ZMQError(98)
    stage.feed.open(stage.socket)  # type: ignore[arg-type]
    assert stage.status["state"] == "refused"
    assert "cannot be used" in stage.status["reason"]
    assert stage.sweep() is Trust.ESTIMATED


def test_o43_a_flush_forgets_and_is_no_longer_exact(stage: Stage) -> None:
    stage.feed.connected()
    stage.replay((0, batch(stored(IDS))))
    fleet = stage.fleet
    fleet.index.store(stage.state.holder, prompt(IDS))
    assert stage.sweep() is Trust.EXACT
    fleet.fleet.flush(stage.backend.instance)
    assert stage.cached() == 0
    assert stage.sweep() is Trust.ESTIMATED
    stage.message(1, stored(IDS))
    assert stage.cached() == 4


def test_a_predicted_prompt_counts_until_the_engine_has_told(stage: Stage) -> None:
    fleet, backend = stage.fleet, stage.backend
    stage.feed.connected()
    stage.replay()
    stage.sweep()
    fleet.index.store(stage.state.holder, prompt(IDS))
    assert stage.cached() == 4
    stage.message(0, stored(IDS))
    stage.message(1, {"type": "BlockRemoved", "block_hashes": [IDS[8]], "medium": "GPU"})
    for _ in range(3):
        stage.sweep()
        assert stage.state.holder == stage.cache.predicted
    assert stage.cached() == 2, "the engine has dropped the rest, and the prediction with it"
    assert backend.instance.in_flight == 0

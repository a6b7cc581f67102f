"""Numbers of messages: gaps, replays, holes, new lives, late ones."""

from __future__ import annotations

import pytest

from prefix_index.events.feed import Feed, Step


def text(sequence: int, life: str = "") -> bytes:
    return f"{life}{sequence}".encode()


def hear(feed: Feed, *sequences: int, life: str = "") -> list[Step]:
    return [feed.message(sequence, text(sequence, life)) for sequence in sequences]


def replay(feed: Feed, *sequences: int, life: str = "") -> list[Step]:
    return [*(feed.replayed(sequence, text(sequence, life)) for sequence in sequences), feed.replay_ended()]


def applied(steps: list[Step]) -> list[bytes]:
    """What holds after these steps."""
    known: list[bytes] = []
    for step in steps:
        if step.purge:
            known.clear()
        known += step.payloads
    return known


@pytest.fixture
def feed() -> Feed:
    return Feed(can_replay=True)


def test_an_unbroken_run_is_passed_on(feed: Feed) -> None:
    assert hear(feed, 0, 1, 2) == [Step((text(number),)) for number in range(3)]
    assert (feed.last_sequence, feed.complete, feed.unbroken) == (2, True, True)


def test_o36_a_gap_is_filled_by_a_replay_from_the_first_missing_number(feed: Feed) -> None:
    steps = hear(feed, 0, 1, 2, 5, 6)
    assert [step.ask for step in steps] == [None, None, None, 3, None]
    assert not feed.unbroken
    steps += replay(feed, 3, 4, 5)
    assert applied(steps) == [text(number) for number in range(7)]
    assert not any(step.purge for step in steps)
    assert (feed.gaps_total, feed.holes_total, feed.unbroken, feed.complete) == (1, 0, True, True)


def test_the_first_message_of_a_late_joiner_is_a_gap_from_zero(feed: Feed) -> None:
    assert hear(feed, 3)[0].ask == 0
    assert applied(replay(feed, 0, 1, 2, 3)) == [text(number) for number in range(4)]


def test_o36_a_hole_at_the_start_of_a_replay_purges(feed: Feed) -> None:
    steps = [*hear(feed, 0, 1, 9), *replay(feed, 4, 5, 6, 7, 8, 9)]
    assert steps[3] == Step((text(4),), purge=True)
    assert applied(steps) == [text(number) for number in range(4, 10)]
    assert (feed.holes_total, feed.complete, feed.unbroken) == (1, False, True)


def test_a_hole_within_a_replay_purges_too(feed: Feed) -> None:
    assert applied([*hear(feed, 0, 5), *replay(feed, 1, 2, 4)]) == [text(4), text(5)]


def test_a_replay_that_stops_short_is_asked_again_while_it_helps(feed: Feed) -> None:
    steps = [*hear(feed, 0, 6, 7), *replay(feed, 1, 2)]
    assert steps[-1] == Step(ask=3)
    assert not feed.unbroken
    steps += replay(feed, 3, 4)
    assert steps[-1].ask == 5
    steps += replay(feed)
    assert steps[-1] == Step((text(6), text(7)), purge=True)
    assert feed.unbroken


def test_a_replay_that_fails_leaves_a_hole(feed: Feed) -> None:
    hear(feed, 0, 3, 4, 6)
    assert feed.replay_failed() == Step((text(6),), purge=True), "all before the last hole is void"
    assert feed.holes_total == 2
    assert hear(feed, 7) == [Step((text(7),))]


def test_without_replay_a_gap_is_a_hole() -> None:
    feed = Feed(can_replay=False)
    assert feed.connected() == Step()
    assert hear(feed, 4, 5, 8) == [Step((text(4),), purge=True), Step((text(5),)), Step((text(8),), purge=True)]
    assert not feed.complete


def test_live_messages_of_a_replay_wait_and_what_is_too_much_shows_as_a_gap() -> None:
    feed = Feed(can_replay=True, max_pending=2)
    steps = hear(feed, 0, 2, 3, 4, 5)
    assert applied(steps) == [text(0)]
    steps += replay(feed, 1)
    assert applied(steps) == [text(number) for number in range(4)]
    assert hear(feed, 6)[0].ask == 4


def test_o36_older_numbers_are_dropped(feed: Feed) -> None:
    steps = [*hear(feed, 0, 1, 2, 5), *replay(feed, 5)]
    assert hear(feed, 4, 5, 2) == [Step(), Step(), Step()]
    assert feed.late_total == 3
    assert applied(steps) == [text(5)]


@pytest.mark.parametrize("last", [1, 5, 900])
def test_o35_the_number_zero_again_is_a_new_life(feed: Feed, last: int) -> None:
    hear(feed, *range(last + 1))
    steps = hear(feed, *range(11), life="b")
    assert steps[0] == Step((text(0, "b"),), purge=True, new_life=True)
    assert applied(steps) == [text(number, "b") for number in range(11)]
    assert (feed.lives_total, feed.last_sequence, feed.complete) == (1, 10, True)


def test_o36_one_after_900_is_a_new_life_of_which_the_start_is_asked(feed: Feed) -> None:
    hear(feed, *range(901))
    steps = hear(feed, 1, life="b")
    assert steps == [Step(purge=True, ask=0, new_life=True)]
    assert applied([*steps, *replay(feed, 0, 1, life="b")]) == [text(0, "b"), text(1, "b")]


def test_a_known_number_with_another_content_is_a_new_life(feed: Feed) -> None:
    hear(feed, 0, 1, 2, 3)
    assert hear(feed, 2, life="b") == [Step(purge=True, ask=0, new_life=True)]


def test_a_new_life_during_a_replay_gives_it_up(feed: Feed) -> None:
    hear(feed, 0, 1, 5)
    assert hear(feed, 0, life="b") == [Step((text(0, "b"),), purge=True, new_life=True)]
    assert replay(feed, 2, 3, 4) == [Step()] * 4, "answers of the old replay mean nothing"
    assert hear(feed, 1, life="b") == [Step((text(1, "b"),))]


def test_a_new_connection_asks_for_what_was_missed_meanwhile(feed: Feed) -> None:
    assert feed.connected() == Step(ask=0)
    steps = replay(feed, 0, 1)
    steps.append(feed.connected())
    assert steps[-1].ask == 1, "the last one is compared"
    steps += [*hear(feed, 4), *replay(feed, 1, 2, 3)]
    assert applied(steps) == [text(number) for number in range(5)]
    assert feed.lives_total == 0


def test_what_waited_before_a_new_connection_is_not_taken_for_the_new_lifes(feed: Feed) -> None:
    hear(feed, 1, 2, 3)
    assert feed.connected() == Step(ask=0)
    assert applied(replay(feed, 0, life="b")) == [text(0, "b")]


@pytest.mark.parametrize("number", [0, 2])
def test_a_new_life_shows_while_messages_wait(feed: Feed, number: int) -> None:
    hear(feed, 2, 3)
    step = feed.message(number, text(number, "b"))
    assert (step.purge, step.new_life) == (True, True)
    assert applied([step, *replay(feed, *range(number + 1), life="b")]) == [text(n, "b") for n in range(number + 1)]


@pytest.mark.parametrize("answers", [(), (1,), (1, 2, 3), (2,)])
def test_a_new_connection_finds_out_about_a_new_life(feed: Feed, answers: tuple[int, ...]) -> None:
    hear(feed, 0, 1)
    feed.connected()
    steps = [feed.replayed(number, text(number, "b")) for number in answers]
    steps.append(feed.replay_ended())
    asked = [step for step in steps if step != Step()]
    assert asked[0] == Step(purge=True, ask=0, new_life=True)
    assert feed.lives_total == 1


def test_a_new_connection_whose_replay_fails_keeps_what_is_known(feed: Feed) -> None:
    hear(feed, 0, 1)
    feed.connected()
    hear(feed, 2)
    assert feed.replay_failed() == Step((text(2),))
    assert feed.complete


def test_an_idle_engine_that_has_said_nothing_is_complete(feed: Feed) -> None:
    feed.connected()
    assert feed.replay_ended() == Step()
    assert (feed.complete, feed.unbroken, feed.last_sequence) == (True, True, None)
    assert hear(feed, 0) == [Step((text(0),))]

"""The scheduler's rules, one by one, on virtual time."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from backends.engine.cache import BlocksRemoved, CacheCleared
from backends.engine.core import EngineCore, StepResult
from backends.engine.sequence import BlocksStored, Request, Seq
from backends.engine.setups import SETUPS, step_s

if TYPE_CHECKING:
    from collections.abc import Callable

SETUP = SETUPS["llama-3.1-8b"]


def core(**options: Any) -> EngineCore:
    return EngineCore(SETUP, **options)


def request(
    name: str, prompt: int, output: int = 4, *, prefix: str = "", shared: int = 0, priority: int = 0
) -> Request:
    """The first `shared` blocks of 16 are those of every request with the same `prefix`; the rest are its own."""
    blocks = (prompt + output) // 16
    hashes = [hash((prefix, i)) if i < shared else hash((name, i)) for i in range(blocks)]
    return Request(name, prompt, output, hashes, priority)


def names(step: StepResult) -> list[str]:
    return [seq.request.request_id for seq in step.served]


def drain(engine: EngineCore) -> list[StepResult]:
    steps = []
    while engine.has_work:
        steps.append(engine.step())
        assert len(steps) < 10_000
    return steps


def test_a_request_prefills_then_decodes_one_token_a_step() -> None:
    engine = core()
    seq = engine.add(request("a", 100, 3))
    steps = drain(engine)
    assert [names(step) for step in steps] == [["a"]] * 3
    assert [step.duration_s for step in steps] == [
        step_s(SETUP, [(100, 0)], 0, 0),
        step_s(SETUP, [], 1, 101),
        step_s(SETUP, [], 1, 102),
    ]
    assert (seq.generated, seq.finished, seq.cached_tokens) == (3, True, 0)
    assert (engine.running, engine.waiting, engine.kv_usage) == (0, 0, 0)


def test_no_work_takes_no_time() -> None:
    assert core().step() == StepResult(0.0, [], [])


def test_a_long_prefill_takes_the_whole_budget_of_each_step() -> None:
    engine = core(max_num_batched_tokens=1000)
    long, short = engine.add(request("long", 2500)), engine.add(request("short", 10))
    assert [names(engine.step()) for _ in range(3)] == [[], [], ["long", "short"]]
    assert (long.total, short.total) == (2501, 11)


def test_running_sequences_come_first_in_admission_order() -> None:
    engine = core(max_num_batched_tokens=100)
    engine.add(request("a", 60, 9))
    engine.add(request("b", 90, 9))
    engine.add(request("c", 10, 9))
    assert names(engine.step()) == ["a"]  # b got 40 of its 90
    assert engine.running == 2
    assert names(engine.step()) == ["a", "b", "c"]
    assert names(engine.step()) == ["a", "b", "c"]


def test_the_cap_leaves_room_for_others_only_when_there_are_some() -> None:
    engine = core(max_num_batched_tokens=1000, long_prefill_token_threshold=200)
    alone = engine.add(request("long", 2000))
    engine.step()
    assert alone.computed == 1000
    engine.add(request("short", 50))
    assert names(engine.step()) == ["short"]
    assert alone.computed == 1200


def test_at_most_max_num_seqs_run() -> None:
    engine = core(max_num_seqs=2)
    for name in "abc":
        engine.add(request(name, 10, 2))
    assert names(engine.step()) == ["a", "b"]
    assert (engine.running, engine.waiting) == (2, 1)
    engine.step()
    assert names(engine.step()) == ["c"]


def test_fcfs_ignores_priority() -> None:
    engine = core(max_num_seqs=1)
    engine.add(request("first", 10, 1))
    engine.add(request("urgent", 10, 1, priority=-5))
    assert [names(step) for step in drain(engine)] == [["first"], ["urgent"]]


def test_priority_admits_the_lowest_number_first_then_by_arrival() -> None:
    engine = core(max_num_seqs=1, policy="priority")
    for name, priority in (("late", 9), ("x", 0), ("y", 0), ("urgent", -5)):
        engine.add(request(name, 10, 1, priority=priority))
    assert [names(step)[0] for step in drain(engine)] == ["urgent", "x", "y", "late"]


def test_a_prompt_that_was_served_is_cached_but_one_token() -> None:
    engine = core()
    engine.add(request("a", 64, prefix="p", shared=4))
    drain(engine)
    again = engine.add(request("b", 64, prefix="p", shared=4))
    engine.step()
    assert again.cached_tokens == 48  # the fourth block holds the token that must be computed
    longer = engine.add(request("c", 65, prefix="p", shared=4))
    engine.step()
    assert longer.cached_tokens == 64
    assert (engine.prefix_queries_total, engine.prefix_hits_total) == (64 + 64 + 65, 48 + 64)


def test_a_cached_prompt_costs_only_the_rest() -> None:
    engine = core()
    engine.add(request("a", 1600, 1, prefix="p", shared=100))
    engine.step()
    engine.add(request("b", 1700, 1, prefix="p", shared=100))
    assert engine.step().duration_s == step_s(SETUP, [(100, 1600)], 0, 0)


def test_blocks_can_be_matched_when_they_are_computed_not_before() -> None:
    engine = core(max_num_batched_tokens=512)
    engine.add(request("a", 1024, prefix="p", shared=64))
    engine.step()
    partly = engine.add(request("b", 1024, prefix="p", shared=64))
    engine.step()  # a takes the whole budget: b waits
    assert partly.cached_tokens is None
    engine.step()
    assert partly.cached_tokens == 1008


def test_equal_prompts_in_one_step_are_both_computed_and_stored_once() -> None:
    engine = core()
    engine.add(request("a", 64, 1, prefix="p", shared=4))
    twin = engine.add(request("b", 64, 1, prefix="p", shared=4))
    step = engine.step()
    assert twin.cached_tokens == 0
    assert [(event.first, event.count) for event in step.events if isinstance(event, BlocksStored)] == [(0, 4)]
    assert engine.cache.cached == 4
    assert engine.cache.free == engine.cache.capacity


def test_generated_blocks_are_cached_too() -> None:
    engine = core()
    turn = request("a", 30, 40)
    engine.add(turn)
    stored = [event for step in drain(engine) for event in step.events]
    assert [(e.first, e.count, e.parent) for e in stored if isinstance(e, BlocksStored)] == [
        (0, 1, None),
        (1, 1, turn.block_hashes[0]),
        (2, 1, turn.block_hashes[1]),
        (3, 1, turn.block_hashes[2]),
    ]
    following = engine.add(Request("next", 100, 1, [*turn.block_hashes, 1, 2]))
    engine.step()
    assert following.cached_tokens == 64  # 69 tokens of the turn were computed: the last one never is


def test_admission_stops_when_free_and_evictable_blocks_are_short() -> None:
    engine = core(kv_tokens=160)
    engine.add(request("a", 90, 20))
    engine.add(request("b", 90, 20))
    engine.add(request("tiny", 10, 1))
    assert names(engine.step()) == ["a"]
    assert (engine.running, engine.waiting) == (1, 2)  # nobody overtakes the head of the queue
    assert engine.kv_usage == pytest.approx(0.6)


def test_idle_blocks_are_evicted_for_new_prompts() -> None:
    engine = core(kv_tokens=160)
    old = request("a", 96, 1)
    engine.add(old)
    drain(engine)
    engine.add(request("b", 96, 1))
    (step,) = drain(engine)
    assert step.events[0] == BlocksRemoved((old.block_hashes[5], old.block_hashes[4]))
    assert isinstance(step.events[1], BlocksStored)


def grow(policy: str, priorities: tuple[int, int]) -> tuple[EngineCore, Seq, Seq, list[StepResult]]:
    """Two sequences that fit at first and not when they have grown."""
    engine = core(kv_tokens=160, policy=policy)
    a = engine.add(request("a", 64, 60, priority=priorities[0]))
    b = engine.add(request("b", 64, 60, priority=priorities[1]))
    return engine, a, b, drain(engine)


def test_the_newest_is_preempted_and_computed_again() -> None:
    engine, a, b, steps = grow("fcfs", (0, 0))
    assert (a.preemptions, b.preemptions, engine.preemptions_total) == (0, 1, 1)
    assert (a.generated, b.generated) == (60, 60)
    done = [names(step) for step in steps]
    assert done.index(["a"]) > 0  # alone while b waits
    assert done[-1] == ["b"]
    assert engine.cache.free == engine.cache.capacity
    assert engine.prefix_queries_total == 128  # a second admission is not counted


def test_nobody_is_admitted_in_a_step_that_preempted() -> None:
    engine = core(kv_tokens=160, max_num_seqs=2, policy="priority")
    engine.add(request("a", 64, 60))
    engine.add(request("b", 64, 60))
    engine.step()
    engine.add(request("urgent", 10, 1, priority=-1))
    while not engine.preemptions_total:
        served = names(engine.step())
    assert served == ["a"]
    assert names(engine.step()) == ["a", "urgent"]


def test_under_priority_the_least_urgent_is_preempted() -> None:
    engine, a, b, _ = grow("priority", (5, 1))
    assert a.preemptions > 0
    assert b.preemptions == 0
    assert (a.generated, b.generated) == (60, 60)
    assert engine.cache.free == engine.cache.capacity


def test_abort_frees_blocks_and_keeps_what_was_computed() -> None:
    engine = core()
    engine.add(request("a", 64, 100, prefix="p", shared=4))
    engine.add(request("b", 64, 100))
    engine.step()
    assert engine.abort("a")
    assert not engine.abort("a")
    assert names(engine.step()) == ["b"]
    again = engine.add(request("c", 65, 1, prefix="p", shared=4))
    engine.step()
    assert again.cached_tokens == 64
    engine.abort("b")
    assert not engine.has_work
    assert engine.cache.free == engine.cache.capacity


def test_abort_of_a_waiting_request() -> None:
    engine = core(max_num_seqs=1)
    for name in "abc":
        engine.add(request(name, 10, 1))
    engine.abort("a")
    engine.abort("b")
    assert engine.waiting == 1
    assert [names(step) for step in drain(engine)] == [["c"]]


def test_reset_waits_for_the_next_step_to_be_told() -> None:
    engine = core()
    engine.add(request("a", 64, 2))
    engine.step()
    assert not engine.reset_cache()
    drain(engine)
    assert engine.reset_cache()
    again = engine.add(request("a", 64, 2))
    assert isinstance(engine.step().events[0], CacheCleared)
    assert again.cached_tokens == 0


def test_events_can_be_left_out() -> None:
    engine = core(record_events=False, kv_tokens=160)
    for name in "ab":
        engine.add(request(name, 96, 20))
    assert all(not step.events for step in drain(engine))


@pytest.mark.parametrize(
    "bad",
    [
        lambda: core().add(Request("a", 0, 1)),
        lambda: core().add(Request("a", 1, 0)),
        lambda: core(kv_tokens=160).add(Request("a", 150, 20)),
        lambda: core(block_size=0),
        lambda: core(max_num_seqs=0),
        lambda: core(long_prefill_token_threshold=-1),
    ],
)
def test_what_cannot_be_served_is_refused(bad: Callable[[], object]) -> None:
    with pytest.raises((ValueError, ZeroDivisionError)):
        bad()


def test_an_id_is_used_once_at_a_time() -> None:
    engine = core()
    engine.add(request("a", 10))
    with pytest.raises(ValueError, match="in use"):
        engine.add(request("a", 10))


def test_blocks_beyond_the_given_hashes_are_never_matched() -> None:
    engine = core()
    engine.add(Request("a", 64, 20, [1, 2]))
    drain(engine)
    again = engine.add(Request("b", 64, 1, [1, 2, 3]))
    engine.step()
    assert again.cached_tokens == 32
    assert engine.cache.cached == 3


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("seed", range(4))
def test_under_pressure_all_are_served_and_no_block_is_lost(policy: str, seed: int) -> None:
    """Shared prefixes, preemption, aborts and a cache that is far too small."""
    rng = random.Random(seed)
    engine = core(kv_tokens=640, policy=policy, max_num_batched_tokens=64, long_prefill_token_threshold=32)
    alive: dict[str, Seq] = {}
    finished = 0
    for i in range(300):
        name = f"r{i}"
        shared, output = rng.randint(0, 8), rng.randint(1, 120)
        item = request(name, rng.randint(1, 300), output, prefix=rng.choice("pq"), shared=shared, priority=i % 3)
        alive[name] = engine.add(item)
        if rng.random() < 0.1:
            engine.abort(alive.popitem()[1].request.request_id)
        for _ in range(rng.randint(0, 60)):
            for seq in engine.step().served:
                assert seq is alive[seq.request.request_id]
                if seq.finished:
                    finished += alive.pop(seq.request.request_id).generated == seq.request.max_tokens
        assert 0 <= engine.cache.free <= engine.cache.capacity
    for step in drain(engine):
        assert step.duration_s > 0
        finished += sum(seq.finished for seq in step.served)
    assert engine.preemptions_total > 10
    assert finished > 250
    assert engine.cache.free == engine.cache.capacity
    assert (engine.running, engine.waiting) == (0, 0)

"""From a body to a place, and what is learned from how it went. No socket; the clock is the test's."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from backends.health import State
from gateway.endpoints import Endpoints
from gateway.explain import explain
from gateway.observe import Usage
from tests.support.fleet import Fleet
from vocabulary import Kind
from vocabulary.errors import InvalidJson, ModelNotFound, NoBackendAvailable, UpstreamReset

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.placement import Placement
    from gateway.prepare import Prepared


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    with Fleet() as made:
        yield made


def chat(text: str = "hello ", repeat: int = 200, **fields: Any) -> bytes:
    messages = [{"role": "user", "content": text * repeat}]
    return json.dumps({"model": "m", "messages": messages, **fields}).encode()


def usage(prompt_tokens: int, cached_tokens: int | None = None, completion_tokens: int = 5) -> Usage:
    return Usage(prompt_tokens, completion_tokens, cached_tokens)


def serve(fleet: Fleet, prepared: Prepared, prompt_tokens: int | None = None, cached: int | None = None) -> Placement:
    """Place it and answer it."""
    placement = fleet.router.place(prepared)
    fleet.router.answered(placement, failed=False)
    fleet.router.settle(placement, usage(prompt_tokens, cached) if prompt_tokens is not None else None, 3)
    return placement


def at_rest(fleet: Fleet) -> bool:
    return all(not (b.instance.in_flight or b.instance.pending) for b in fleet.registry)


def counter(fleet: Fleet, name: str) -> float:
    lines = fleet.metrics.render().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((name + "{", name + " ")))


# Prepare.


def test_prepare_reads_what_routing_needs(fleet: Fleet) -> None:
    fleet.add("a")
    prepared = fleet.prepare(chat(stream=True), [(b"x-session-id", b"s")])
    assert (prepared.route, prepared.served_as, prepared.streams) == ("chat", "m", True)
    assert prepared.session is not None
    assert not prepared.lineage
    assert prepared.matched
    assert prepared.units >= 1200
    assert prepared.prompt_tokens == prepared.units / 4
    assert prepared.tokens_per_block == 16
    assert len(prepared.keys) // 8 == prepared.units // 64
    assert prepared.session != b"s"


@pytest.mark.parametrize(
    "fields",
    [{"chat_template": "{{ x }}"}, {"messages": None}, {"messages": []}, {"messages": "x"}, {"messages": [5]}],
)
def test_what_cannot_be_encoded_is_routed_by_load(fleet: Fleet, fields: dict[str, Any]) -> None:
    fleet.add("a")
    fleet.add("b")
    body = chat(**fields)
    prepared = fleet.prepare(body)
    assert not prepared.matched
    assert not prepared.keys
    assert prepared.session is None
    assert prepared.prompt_tokens == len(body) / 4
    assert fleet.router.place(prepared).decision.kind is Kind.FALLBACK


def test_messages_are_for_chat_and_prompts_for_completions(fleet: Fleet) -> None:
    fleet.add("a")
    body = json.dumps(
        {"model": "m", "messages": [{"role": "user", "content": "x" * 500}], "prompt": "y" * 700}
    ).encode()
    assert 500 <= fleet.prepare(body).units < 600
    assert 700 <= fleet.prepare(body, route="completions").units < 800


def test_cache_salt_and_model_keep_prompts_apart(fleet: Fleet) -> None:
    fleet.add("a", ("m", "n"))
    plain, salted, other = fleet.prepare(chat()), fleet.prepare(chat(cache_salt="s")), fleet.prepare(chat(model="n"))
    assert plain.keys == fleet.prepare(chat(cache_salt=5)).keys, "no salt is what is no string"
    assert len({bytes(p.keys) for p in (plain, salted, other)}) == 3


def test_errors_of_prepare(fleet: Fleet) -> None:
    fleet.add("a")
    with pytest.raises(InvalidJson):
        fleet.prepare(b"{")
    with pytest.raises(ModelNotFound):
        fleet.prepare(chat(model="x"))


def test_a_fault_of_the_encoder_costs_the_prediction_not_the_request(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise TypeError

    fleet.add("a")
    monkeypatch.setattr(type(fleet.encoder), "encode", broken)
    prepared = fleet.prepare(chat())
    assert not prepared.matched
    assert counter(fleet, "warmroute_encode_fallback_total") == 1


# Place.


def test_the_lease_is_taken_in_the_same_step(fleet: Fleet) -> None:
    for name in "abcd":
        fleet.add(name)
    prepared = [fleet.prepare(chat(f"{number} ", 300)) for number in range(40)]
    for one in prepared:
        fleet.router.place(one)
    counts = [b.instance.in_flight for b in fleet.registry]
    assert sum(counts) == 40
    assert min(counts) >= 8, counts


def test_the_next_turn_goes_where_the_last_one_went(fleet: Fleet) -> None:
    for name in "abcd":
        fleet.add(name)
    for number in range(8):
        first = serve(fleet, fleet.prepare(chat(f"{number} ", 500), [(b"x-session-id", b"%d" % number)]))
        body = json.loads(chat(f"{number} ", 500))
        body["messages"] += [{"role": "assistant", "content": "a"}, {"role": "user", "content": "b" * 100}]
        prepared = fleet.prepare(json.dumps(body).encode(), [(b"x-session-id", b"%d" % number)])
        second = serve(fleet, prepared)
        assert second.decision.kind is Kind.SESSION
        assert second.decision.backend == first.decision.backend
        assert second.decision.cached_tokens > 0.8 * first.decision.prompt_tokens
    assert at_rest(fleet)


def test_lineage_finds_the_session_without_an_id() -> None:
    for lineage in (True, False):
        with Fleet(lineage=lineage) as fleet:
            for name in "abcd":
                fleet.add(name)
            first = fleet.prepare(chat())
            serve(fleet, first)
            body = json.loads(chat())
            body["messages"] += [{"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]
            second = fleet.prepare(json.dumps(body).encode())
            assert first.lineage is second.lineage is lineage
            kind = serve(fleet, second).decision.kind
            assert kind is (Kind.SESSION if lineage else Kind.PREFIX)
            assert first.session == second.session
            assert (first.session is not None) is lineage


def test_filters(fleet: Fleet) -> None:
    up, down, draining, ejected = (fleet.add(name) for name in ("up", "down", "draining", "ejected"))
    fleet.add("unknown", up=False)
    fleet.add("other", ("n",))
    down.health.probe_failed(fleet.now_s, 0, refused=True)
    draining.draining = True
    for _ in range(3):
        ejected.health.request_failed(fleet.now_s)
    prepared = fleet.prepare(chat())
    rows = {c.backend: c.rejected for c in fleet.router.candidates(prepared, (), fleet.now_s)}
    assert rows == {"up": None, "down": "down", "draining": "draining", "ejected": "ejected", "unknown": "unknown"}
    decision = fleet.router.place(prepared).decision
    assert (decision.backend, decision.kind) == ("up", Kind.FORCED)
    with pytest.raises(NoBackendAvailable):
        fleet.router.place(prepared, 1, {up.instance.id})


def test_a_second_attempt_goes_elsewhere_and_is_told_as_a_retry(fleet: Fleet) -> None:
    fleet.add("a")
    fleet.add("b")
    prepared = fleet.prepare(chat())
    first = fleet.router.place(prepared)
    second = fleet.router.place(prepared, 1, {first.lease.instance.id})
    assert second.decision.kind is Kind.RETRY
    assert second.decision.backend != first.decision.backend
    assert b"x-warmroute-decision: retry\r\n" in second.header_lines


def test_decision_headers_can_be_left_out() -> None:
    with Fleet(headers=False) as fleet:
        fleet.add("a")
        assert fleet.router.place(fleet.prepare(chat())).header_lines == b""


# What is learned.


def test_an_answered_prompt_is_taken_for_cached(fleet: Fleet) -> None:
    fleet.add("a")
    prepared = fleet.prepare(chat())
    assert serve(fleet, prepared).decision.cached_tokens == 0
    again = serve(fleet, fleet.prepare(chat()))
    assert again.decision.cached_tokens == pytest.approx(prepared.units // 64 * 16)
    assert b"x-warmroute-cached-tokens: %d\r\n" % again.decision.cached_tokens in again.header_lines
    assert counter(fleet, "warmroute_cached_tokens_predicted_total") == int(again.decision.cached_tokens)


def test_a_failed_attempt_leaves_nothing_but_what_was_there(fleet: Fleet) -> None:
    backend = fleet.add("a")
    serve(fleet, fleet.prepare(chat()))
    before = fleet.index.stats().entries
    assert before > 0
    longer = json.loads(chat())
    longer["messages"].append({"role": "user", "content": "more " * 200})
    placement = fleet.router.place(fleet.prepare(json.dumps(longer).encode()))
    assert fleet.index.stats().entries > before
    fleet.router.failed(placement, UpstreamReset())
    fleet.router.abandon(placement)
    assert fleet.index.stats().entries == before
    assert at_rest(fleet)
    assert counter(fleet, "warmroute_upstream_errors_total") == 1
    assert backend.health.state is State.UP


def test_of_a_cancelled_attempt_the_prediction_stays(fleet: Fleet) -> None:
    fleet.add("a")
    placement = fleet.router.place(fleet.prepare(chat()))
    entries = fleet.index.stats().entries
    fleet.router.abandon(placement, cancelled=True)
    assert fleet.index.stats().entries == entries > 0
    assert at_rest(fleet)


def test_an_end_counts_once(fleet: Fleet) -> None:
    fleet.add("a")
    placement = serve(fleet, fleet.prepare(chat()), 100)
    fleet.router.settle(placement, usage(100), 0)
    fleet.router.abandon(placement)
    assert counter(fleet, "warmroute_prompt_tokens_total") == 100
    assert fleet.index.stats().entries > 0
    assert at_rest(fleet)


def test_nothing_is_learned_for_an_instance_that_is_gone(fleet: Fleet) -> None:
    backend = fleet.add("a")
    serve(fleet, fleet.prepare(chat()))
    ended, failed = fleet.router.place(fleet.prepare(chat())), fleet.router.place(fleet.prepare(chat()))
    fleet.registry.restart(backend)
    fleet.router.answered(ended, failed=False)
    fleet.router.first_token(ended, fleet.now_s)
    fleet.router.settle(ended, usage(300, 0), 0)
    fleet.router.abandon(failed)
    assert fleet.index.stats().entries == 0
    assert fleet.state(backend).capacity_factor == 1.0
    assert fleet.state(backend).fit.samples == 0
    assert at_rest(fleet)


def test_tokens_are_counted_by_the_engine_or_else_guessed(fleet: Fleet) -> None:
    fleet.add("a")
    prepared = fleet.prepare(chat())
    serve(fleet, prepared, 321)
    assert counter(fleet, "warmroute_prompt_tokens_total") == 321
    assert counter(fleet, "warmroute_completion_tokens_total") == 5
    serve(fleet, prepared)
    assert counter(fleet, "warmroute_prompt_tokens_total") == 321 + int(prepared.prompt_tokens)
    assert counter(fleet, "warmroute_completion_tokens_total") == 5 + 3


def test_bytes_per_token_are_learned_from_usage(fleet: Fleet) -> None:
    fleet.add("a")
    prepared = fleet.prepare(chat())
    for _ in range(5):
        serve(fleet, prepared, prepared.units // 3)
    assert fleet.prepare(chat()).prompt_tokens == pytest.approx(prepared.units / 3, rel=0.01)


def test_reported_cached_tokens_correct_the_assumed_cache(fleet: Fleet) -> None:
    backend = fleet.add("a", capacity_tokens=100_000)
    serve(fleet, fleet.prepare(chat()), 300, 0)
    assert fleet.state(backend).capacity_factor == 1.0, "nothing was predicted"
    serve(fleet, fleet.prepare(chat()), 300, 0)
    assert fleet.state(backend).capacity_factor < 1.0
    assert counter(fleet, "warmroute_cached_tokens_reported_total") == 0
    serve(fleet, fleet.prepare(chat()), 300, 200)
    assert counter(fleet, "warmroute_cached_tokens_reported_total") == 200


def test_time_to_first_token_teaches_only_where_nothing_waited(fleet: Fleet) -> None:
    backend = fleet.add("a")
    alone = fleet.router.place(fleet.prepare(chat("a ", 2000, stream=True)))
    queued = fleet.router.place(fleet.prepare(chat("b ", 2000, stream=True)))
    assert (alone.unqueued, queued.unqueued) == (True, False)
    fleet.now_s += 0.5
    for placement in (alone, queued):
        fleet.router.first_token(placement, fleet.now_s)
    assert fleet.state(backend).fit.samples == 1
    assert not backend.instance.pending, "both decode now"
    assert backend.instance.in_flight == 2
    assert counter(fleet, "warmroute_ttft_seconds_count") == 2
    assert counter(fleet, "warmroute_ttft_seconds_sum") == pytest.approx(1.0)


def test_an_answer_that_does_not_stream_counts_as_decoding_after_its_predicted_prefill(fleet: Fleet) -> None:
    backend = fleet.add("a")
    placement = fleet.router.place(fleet.prepare(chat("a ", 2000)))
    fleet.router.candidates(fleet.prepare(chat()), (), fleet.now_s)
    assert placement.lease in backend.instance.pending
    fleet.now_s += 60
    fleet.router.candidates(fleet.prepare(chat()), (), fleet.now_s)
    assert placement.lease not in backend.instance.pending
    assert backend.instance.in_flight == 1


def test_changes_of_health_are_told_once(fleet: Fleet) -> None:
    backend = fleet.add("a")
    prepared = fleet.prepare(chat())
    for _ in range(3):
        placement = fleet.router.place(prepared)
        fleet.router.answered(placement, failed=True)
        fleet.router.abandon(placement)
    assert fleet.changed == ["a"]
    assert backend.health.state is State.EJECTED
    with pytest.raises(NoBackendAvailable):
        fleet.router.place(prepared)
    fleet.now_s += 10
    fleet.router.answered(fleet.router.place(prepared), failed=False)
    assert fleet.changed == ["a", "a"]
    assert backend.health.state.value == "up"


def test_explain_reserves_nothing_and_learns_nothing(fleet: Fleet) -> None:
    for name in "ab":
        fleet.add(name)
    serve(fleet, fleet.prepare(chat()))

    def known() -> tuple[object, ...]:
        decided = counter(fleet, "warmroute_decisions_total")
        leases = [b.instance.in_flight for b in fleet.registry]
        model = fleet.models.resolve("m")[1]
        return fleet.index.stats().entries, fleet.sessions.stats(), decided, leases, model.state.sequence

    before = known()
    for number in range(10):
        new = fleet.prepare(chat(f"{number} "), [(b"x-session-id", b"%d" % number)])
        record = explain(fleet.router, new, fleet.now_s)
        record = explain(fleet.router, fleet.prepare(chat(f"lineage {number} ")), fleet.now_s)
        assert record["backend"] in ("a", "b")
    assert known() == before


def test_explain_says_why_nothing_or_a_guess_was_chosen(fleet: Fleet) -> None:
    backend, other = fleet.add("a"), fleet.add("b")
    record = explain(fleet.router, fleet.prepare(chat(chat_template="x")), fleet.now_s)
    assert record["kind"] == "fallback"
    assert "by load" in str(record["reason"])
    backend.draining = other.draining = True
    record = explain(fleet.router, fleet.prepare(chat()), fleet.now_s)
    assert (record["kind"], record["backend"]) == (None, None)
    json.dumps(record)


def test_what_goes_by_load_touches_no_session_and_teaches_nothing() -> None:
    with Fleet() as fleet:
        backend = fleet.add("a")
        fleet.add("b")
        body = json.dumps({"model": "m", "input": "text " * 1000, "stream": True}).encode()
        prepared = fleet.prepare(body, [(b"x-session-id", b"s")], route="embeddings")
        assert (prepared.session, prepared.lineage, prepared.keys, prepared.units) == (None, False, b"", 0)
        assert prepared.prompt_tokens == len(body) / 4
        placement = fleet.router.place(prepared)
        assert placement.decision.kind is Kind.LOAD
        fleet.router.first_token(placement, fleet.now_s + 5.0)
        fleet.router.settle(placement, usage(9000, 5), 0)
        assert fleet.index.stats().blocks == 0
        assert fleet.sessions.stats().sessions == 0
        assert fleet.state(backend).fit.samples == 0
        assert fleet.ratios.ratio("m") == 4.0


def test_an_unread_prompt_teaches_no_speed() -> None:
    with Fleet() as fleet:
        backend = fleet.add("a")
        prepared = fleet.prepare(json.dumps({"model": "m", "messages": "odd", "stream": True}).encode())
        fleet.router.first_token(fleet.router.place(prepared), fleet.now_s + 5.0)
        assert fleet.state(backend).fit.samples == 0


def test_a_request_that_is_tied_goes_nowhere_else() -> None:
    with Fleet() as fleet:
        backends = [fleet.add(name) for name in "abc"]
        for backend in backends:
            prepared = fleet.prepare(chat())
            prepared.tied_to = backend.instance.id
            placement = fleet.router.place(prepared)
            assert placement.lease.instance is backend.instance
            assert placement.decision.kind is Kind.FORCED
            with pytest.raises(NoBackendAvailable):
                fleet.router.place(prepared, 1, {backend.instance.id})
        gone = fleet.prepare(chat())
        gone.tied_to = backends[0].instance.id
        fleet.registry.restart(backends[0])
        assert len(fleet.router.candidates(gone, (), fleet.now_s)) == 3


def test_without_a_model_any_backend_will_do() -> None:
    with Fleet() as fleet:
        fleet.add("a", models=("m",))
        fleet.add("b", models=("n",))
        fleet.endpoints = Endpoints(["/v1/files"])
        prepared = fleet.prepare(b"", route="files")
        assert [each.backend for each in fleet.router.candidates(prepared, (), fleet.now_s)] == ["a", "b"]
        named = fleet.prepare(b'{"model": "n"}', route="files")
        assert [each.backend for each in fleet.router.candidates(named, (), fleet.now_s)] == ["b"]

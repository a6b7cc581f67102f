"""From the recorded events the mirror predicts what the engine then reported as cached, request by request."""

from __future__ import annotations

import base64

import pytest

from prefix_index.encoding.protocol import Namespace
from prefix_index.events.codec import Stored, decode
from prefix_index.events.feed import Feed
from prefix_index.events.mirror import Mirror
from prefix_index.keys import extend, root_state
from prefix_index.memory import MemoryIndex
from prefix_index.protocol import Holder
from tests.support.kv_events import Exchange, known_prompts, packed, prompt_ids, recording, replay_frames
from vocabulary import InstanceId

HOLDER = Holder(InstanceId(1))
SERVERS = {
    "vllm-0.20.2": (32, ["basic", "lora", "clear"]),
    "vllm-0.20.2 evicting": (32, ["evict-bytes"]),
    "vllm-0.32.0": (32, ["basic", "lora", "clear"]),
    "vllm-0.32.0 evicting": (32, ["evict-bytes"]),
    "sglang-0.5.23 page 16": (16, ["page16-basic", "page16-clear", "page16-evict"]),
    "sglang-0.5.23 page 1": (1, ["page1"]),
}
"""Block size, and the recordings of one server in their order."""


class Recorded:
    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.index = MemoryIndex(100_000)
        self.mirror = Mirror(
            self.index, HOLDER.instance, lambda namespace: self.root(namespace), block_size=block_size, model="m"
        )

    def root(self, namespace: Namespace) -> bytes:
        return root_state(b"secret", namespace, self.block_size).digest

    def predicted(self, ids: list[int], adapter: str = "", salt: str = "") -> int:
        """Cached tokens; an engine computes at least the last token of a prompt."""
        state = root_state(b"secret", Namespace("m", adapter, salt), self.block_size)
        keys = extend(state, packed(ids[:-1]), self.block_size * 4)[0]
        return self.index.match(keys).get(HOLDER, 0) * self.block_size

    def apply(self, exchange: Exchange) -> None:
        for message in exchange.messages:
            for event in decode(message.payload).events:
                self.mirror.apply(event)


def adapter(exchange: Exchange) -> str:
    model = exchange.body.get("model", "")
    return model if model.startswith("lora") else ""


@pytest.mark.parametrize("server", SERVERS)
def test_the_prediction_equals_what_the_engine_reports(server: str) -> None:
    block_size, names = SERVERS[server]
    recorded, known, compared = Recorded(block_size), known_prompts(), 0
    for name in names:
        for exchange in recording(f"{server.split(' ')[0]}/{name}"):
            ids, reported = prompt_ids(exchange, known), exchange.cached_tokens
            if ids is not None and reported is not None:
                assert len(ids) == exchange.prompt_tokens
                predicted = recorded.predicted(ids, adapter(exchange), exchange.body.get("cache_salt", ""))
                if name == "page1":  # what the server's own warm-up left was not recorded
                    assert predicted <= reported
                elif name == "clear" and exchange.label == "prompt again: miss":
                    assert (predicted, reported) == (64, 0), "vLLM tells of a cleared cache with the next request only"
                else:
                    assert predicted == reported, exchange.label
                compared += 1
            recorded.apply(exchange)
    assert compared >= 5
    stats = recorded.mirror.stats
    assert (stats.dropped_total, stats.wrong_size_total, stats.unknown_removed_total) == (0, 0, 0)
    assert bool(stats.waiting) is (names == ["page1"])


def test_the_prediction_equals_what_dynamos_engine_reports() -> None:
    """It echoes no prompt: the ids are those that its first event for a prompt tells, with all before them."""
    recorded, runs = Recorded(16), dict[object, list[int]]({None: []})
    predictions, reports = [], []
    ids: list[int] = []
    for exchange in recording("dynamo-mocker-1.6.1/mock"):
        for number, message in enumerate(exchange.messages):
            (event,) = decode(message.payload).events
            assert isinstance(event, Stored)
            told = memoryview(event.token_ids).cast("I").tolist()
            start = runs[event.parent]
            for at, handle in enumerate(event.hashes):
                runs[handle] = start + told[: (at + 1) * 16]
            if number == 0:
                is_answer = exchange.cached_tokens == 96  # all of that prompt was cached: its event is of the answer
                ids = start if is_answer else runs[event.hashes[-1]]
        predictions.append(recorded.predicted([*ids, 0]))
        reports.append(exchange.cached_tokens)
        recorded.apply(exchange)
    assert predictions == reports == [0, 96, 80, 80]


@pytest.mark.parametrize("name", ["vllm-0.20.2/lora", "vllm-0.32.0/lora", "vllm-0.32.0/evict-bytes"])
def test_a_recorded_replay_gives_the_same_as_the_live_messages(name: str) -> None:
    feed = Feed(can_replay=True)
    start = int.from_bytes(base64.b64decode(replay_frames(name)[0][1]), "big")
    live = [message for exchange in recording(name) for message in exchange.messages]
    heard = [feed.message(number, b"%d" % number) for number in range(start)]
    assert all(step.payloads for step in heard)
    assert feed.message(live[-1].sequence, live[-1].payload).ask == start
    payloads: list[bytes] = []
    for frames in replay_frames(name)[1]:
        *_, sequence, payload = map(base64.b64decode, frames)
        number = int.from_bytes(sequence, "big", signed=True)
        step = feed.replay_ended() if number == -1 else feed.replayed(number, payload)
        assert not step.purge
        payloads += step.payloads
    assert payloads[-len(live) :] == [message.payload for message in live]
    assert feed.unbroken


def test_o31_recorded_adapters_have_no_credit_across() -> None:
    """The same prompts for the base model and two adapters."""
    recorded, known = Recorded(32), known_prompts()
    exchanges = [*recording("vllm-0.32.0/basic"), *recording("vllm-0.32.0/lora")]
    base = prompt_ids(exchanges[0], known)
    assert base is not None
    for exchange in exchanges[:1]:
        recorded.apply(exchange)
    assert (recorded.predicted(base), recorded.predicted(base, "lora-a")) == (64, 0)
    for exchange in exchanges[1:]:
        recorded.apply(exchange)
    assert recorded.predicted(base, "lora-a") == recorded.predicted(base, "lora-b") == 64
    assert recorded.predicted(base, "lora-c") == 0

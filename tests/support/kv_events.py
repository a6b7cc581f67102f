"""The recorded KV events of `tests/data/kv_events`, with the requests around them."""

from __future__ import annotations

import json
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "data" / "kv_events"


@dataclass(frozen=True, slots=True)
class Message:
    sequence: int
    payload: bytes
    decoded: Any
    """As the recorder saw it; `{"$bytes": hex}` for bytes."""


@dataclass(frozen=True, slots=True)
class Exchange:
    label: str
    body: dict[str, Any]
    response: Any
    messages: tuple[Message, ...]
    """What the engine published because of it."""

    @property
    def cached_tokens(self) -> int | None:
        """As the response reports; None where it does not."""
        if not isinstance(self.response, dict) or "usage" not in self.response:
            return None
        details = self.response["usage"]["prompt_tokens_details"]
        return int(details["cached_tokens"]) if details else 0

    @property
    def prompt_tokens(self) -> int:
        return int(self.response["usage"]["prompt_tokens"])


def recording(name: str) -> list[Exchange]:
    """`name` without suffix, as `vllm-0.32.0/basic`."""
    path = DATA / f"{name}.json"
    document = json.loads(path.read_text())
    steps = document["steps"] if isinstance(document, dict) else document
    return [_exchange(step, path.parent) for step in steps]


def replay_frames(name: str) -> tuple[list[str], list[list[str]]]:
    """Request and replies of the replay in a recording, each frame in base64."""
    replay = json.loads((DATA / f"{name}.json").read_text())["replay"]
    return replay["request_frames_b64"], replay["reply_frames_b64"]


def names() -> list[str]:
    return sorted(f"{path.parent.name}/{path.stem}" for path in DATA.glob("*/*.json"))


def known_prompts() -> dict[str, list[int]]:
    """Token ids of the prompts that some engine echoed, by their messages: all served the same model."""
    known: dict[str, list[int]] = {}
    for name in names():
        for exchange in recording(name):
            if isinstance(exchange.response, dict) and exchange.response.get("prompt_token_ids"):
                known[json.dumps(exchange.body["messages"])] = exchange.response["prompt_token_ids"]
    return known


def prompt_ids(exchange: Exchange, known: dict[str, list[int]]) -> list[int] | None:
    if isinstance(exchange.body.get("prompt"), list):
        ids: list[int] = exchange.body["prompt"]
        return ids
    return known.get(json.dumps(exchange.body.get("messages")))


def packed(ids: list[int]) -> bytes:
    return array("I", ids).tobytes()


def _exchange(step: dict[str, Any], folder: Path) -> Exchange:
    messages = tuple(
        Message(message["seq"], (folder / message["file"]).read_bytes(), message["decoded"])
        for message in step["messages"]
    )
    return Exchange(step.get("label", ""), step.get("body") or step.get("request") or {}, step["response"], messages)

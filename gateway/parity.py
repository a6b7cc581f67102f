"""Whether the gateway's token ids of a prompt are those of an engine: the probes, and what comparing them gives.

Invariant: nothing here quotes a text or an id; a difference is told by its place.
"""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from prefix_index.encoding.completion import ID_BYTES
from prefix_index.encoding.protocol import Prompt

if TYPE_CHECKING:
    from collections.abc import Iterable


class ParityState(enum.StrEnum):
    EQUAL = "equal"
    DIFFERENT = "different"
    UNKNOWN = "unknown"
    """The engine could not be asked, or took none of the probes."""


@dataclass(frozen=True, slots=True)
class Parity:
    state: ParityState
    probe: str | None = None
    """The first one whose ids differ."""
    position: int | None = None
    """Its first token that differs."""
    tokens: int | None = None
    """Its length as the gateway has it; 0 where the gateway's template refuses it."""
    engine_tokens: int | None = None

    def as_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {"state": self.state.value}
        if self.probe is not None:
            found |= {"probe": self.probe, "position": self.position}
            found |= {"tokens": self.tokens, "engine_tokens": self.engine_tokens}
        return found


def compare(probe: str, own: bytes | None, engine: bytes | None) -> Parity:
    """Packed ids of both sides; None: that side refuses the prompt. Where the engine alone does, nothing is known."""
    if engine is None:
        return Parity(ParityState.UNKNOWN if own is not None else ParityState.EQUAL)
    own = own or b""
    if own == engine:
        return Parity(ParityState.EQUAL)
    position = first_difference(own, engine)
    return Parity(ParityState.DIFFERENT, probe, position, len(own) // ID_BYTES, len(engine) // ID_BYTES)


def first_difference(one: bytes, other: bytes) -> int:
    """In ids; where one is a head of the other, its length."""
    shorter = min(len(one), len(other))
    low, high = 0, shorter
    while low < high:  # the longest common head, by halves
        middle = (low + high + 1) // 2
        if one[:middle] == other[:middle]:
            low = middle
        else:
            high = middle - 1
    return low // ID_BYTES


def overall(found: Iterable[Parity]) -> Parity:
    """One difference counts; what is unknown does not where others are equal."""
    results = list(found)
    for state in (ParityState.DIFFERENT, ParityState.EQUAL):
        for parity in results:
            if parity.state is state:
                return parity
    return Parity(ParityState.UNKNOWN)


def _prompt(messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> Prompt:
    raw_tools = None if tools is None else json.dumps(tools).encode()
    return Prompt(json.dumps(messages, ensure_ascii=False).encode(), None, raw_tools)


_SYSTEM: Final = {"role": "system", "content": 'You answer briefly.\nUse the tools <that> you "have" & don\'t guess.'}
_USER: Final = {"role": "user", "content": "How warm is it in Zürich, 東京 and on 🪐?  Thanks!\n\n"}
_ANSWER: Final = {"role": "assistant", "content": "It is 21.5 °C\tthere."}
_CALL: Final = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "call000a1",
            "type": "function",
            "function": {"name": "weather", "arguments": '{"place": "Zürich", "days": [1, 2.5], "now": true}'},
        }
    ],
}
_RESULT: Final = {"role": "tool", "tool_call_id": "call000a1", "content": '{"celsius": 21.5}'}
_TOOL: Final = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather of a place: <now>, or for some days.",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string"}, "days": {"type": "array", "items": {"type": "number"}}},
            "required": ["place"],
        },
    },
}
_PARTS: Final = {"role": "user", "content": [{"type": "text", "text": "One."}, {"type": "text", "text": "And two."}]}
_TEXT: Final = "def area(r: float) -> float:\n    return 3.14159 * r**2  # πr²\n\nIt's 2026; naïve café, 你好。 "

PROBES: Final[tuple[tuple[str, Prompt], ...]] = (
    ("user", _prompt([_USER])),
    ("turns", _prompt([_SYSTEM, _USER, _ANSWER, _PARTS])),
    ("tools", _prompt([_SYSTEM, _USER], [_TOOL])),
    ("tool_call", _prompt([_USER, _CALL, _RESULT], [_TOOL])),
    ("completion", Prompt(None, json.dumps(_TEXT).encode())),
)
"""Each shows another part of a template; some of them a template may refuse."""

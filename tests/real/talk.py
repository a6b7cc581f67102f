"""Sessions of several turns through a gateway, and what each turn was told about its cache."""

from __future__ import annotations

import pydoc_data.topics
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.real.llama import NAME

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.gateway import RawClient


@dataclass(frozen=True)
class Turn:
    backend: str
    predicted_tokens: int
    cached_tokens: int
    """As the engine reports them."""
    prompt_tokens: int
    answer_tokens: int
    answer: dict[str, Any]
    """The message."""

    def as_predicted(self, block_tokens: int, answer_before_tokens: int = 0) -> bool:
        """Within a block. What the engine has of the answer to the turn before may come on top: only it knew that."""
        more = self.cached_tokens - self.predicted_tokens
        return -block_tokens < more < block_tokens + answer_before_tokens


async def ask(client: RawClient, messages: Sequence[dict[str, Any]], *, answer_tokens: int = 4, **fields: Any) -> Turn:
    body = {"model": NAME, "messages": messages, "max_tokens": answer_tokens, "temperature": 0, **fields}
    response = await client.ask(body)
    answer = await response.json()
    assert response.status == 200, answer
    usage = answer["usage"]
    return Turn(
        str(response.header("x-warmroute-backend")),
        int(response.header("x-warmroute-cached-tokens") or 0),
        (usage["prompt_tokens_details"] or {}).get("cached_tokens") or 0,
        usage["prompt_tokens"],
        usage["completion_tokens"],
        answer["choices"][0]["message"],
    )


@dataclass
class Session:
    """Says prose from Python's help texts, by `seed`."""

    seed: str
    system: str | None = None
    turns: list[Turn] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        self.messages: list[dict[str, Any]] = []
        if self.system is not None:
            self.messages.append({"role": "system", "content": self.system})

    async def turn(self, client: RawClient, *, words: int = 40, answer_tokens: int = 6) -> Turn:
        self.messages.append({"role": "user", "content": prose(self._chance, words)})
        turn = await ask(client, self.messages, answer_tokens=answer_tokens)
        self.messages.append({"role": "assistant", "content": turn.answer["content"]})
        self.turns.append(turn)
        return turn

    def surprises(self, block_tokens: int) -> list[Turn]:
        """Turns that went another way than predicted."""
        answers = [0, *(turn.answer_tokens for turn in self.turns)]
        pairs = zip(self.turns, answers, strict=False)
        return [turn for turn, answer in pairs if not turn.as_predicted(block_tokens, answer)]


def prose(chance: random.Random, words: int) -> str:
    long = [text for _, text in sorted(pydoc_data.topics.topics.items()) if len(text) > 20 * words]
    text = chance.choice(long).split()
    start = chance.randrange(len(text) - words)
    return " ".join([f"{chance.randrange(10**6)}:", *text[start : start + words]])

"""Recorded agent sessions, sent through a gateway to real engines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.bench.transcripts import Transcript, interleave, load
from tests.real.talk import ask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.real.talk import Turn
    from tests.support.gateway import RawClient

_CHARS_PER_TOKEN = 1.8
"""Of these sessions by the tiny model's vocabulary, at the least."""


def recorded(most_tokens: int, sessions: int) -> list[Transcript]:
    """Some of each kind; of each the turns that come before it is so long."""
    found = load()
    half = sessions // 2
    return [_shortened(one, most_tokens) for one in (*found[:half], *found[-half:])]


def _shortened(one: Transcript, most_tokens: int) -> Transcript:
    most_chars = int(most_tokens * _CHARS_PER_TOKEN)
    sizes = [len(str(message)) for message in one.messages]
    return Transcript(one.messages, tuple(turn for turn in one.turns if sum(sizes[:turn]) < most_chars))


def apart(transcripts: Sequence[Transcript]) -> list[Transcript]:
    """The same with beginnings that no two share."""
    return [
        Transcript(({**first, "content": f"{number}: {first['content']}"}, *rest), one.turns)
        for number, one in enumerate(transcripts)
        for first, *rest in (one.messages,)
    ]


async def replay(client: RawClient, transcripts: Sequence[Transcript], sessions_at_once: int) -> list[Turn]:
    """One request after the other, so many sessions mixed."""
    order = interleave([len(one.turns) for one in transcripts], sessions_at_once, seed=0)
    return [await ask(client, transcripts[session].request(turn), answer_tokens=1) for session, turn in order]

"""Ids that somebody else gives: in time, once per prompt, and never more than a few at a time."""

from __future__ import annotations

import asyncio
import inspect
import json
from array import array
from typing import TYPE_CHECKING, Any

import pytest

from prefix_index.encoding.engine_encoder import EncoderBusy, EngineEncoder
from prefix_index.encoding.protocol import Encoded, Namespace, Prompt
from prefix_index.keys import extend, root_state
from vocabulary import KEY_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NAMESPACE = Namespace("model")


def packed(*ids: int) -> bytes:
    return array("I", ids).tobytes()


class Source:
    """Each message or text becomes as many ids as it has characters."""

    def __init__(self) -> None:
        self.asked: list[Prompt] = []
        self.hold = asyncio.Event()
        self.hold.set()
        self.error: Exception | None = None

    async def ids(self, prompt: Prompt) -> bytes:
        self.asked.append(prompt)
        await self.hold.wait()
        if self.error is not None:
            raise self.error
        if prompt.messages is not None:
            text = "".join(message["content"] for message in json.loads(prompt.messages))
        else:
            text = json.loads(prompt.prompt or b'""')
        return packed(*map(ord, text))


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def new_encoder(source: Source) -> Iterator[Callable[..., EngineEncoder]]:
    made: list[EngineEncoder] = []

    def make(**options: Any) -> EngineEncoder:
        made.append(EngineEncoder(b"secret", source, **{"timeout_s": 30.0, "block_tokens": 4, **options}))
        return made[-1]

    yield make
    for encoder in made:
        encoder.close()


def chat(*texts: str, tools: Any = None, arguments: Any = None) -> Prompt:
    messages = [{"role": "user", "content": text} for text in texts]
    raw = [None if value is None else json.dumps(value).encode() for value in (messages, tools, arguments)]
    return Prompt(raw[0], None, raw[1], raw[2])


def completion(prompt: Any) -> Prompt:
    return Prompt(None, json.dumps(prompt).encode())


async def encode(encoder: EngineEncoder, prompt: Prompt, namespace: Namespace = NAMESPACE) -> Encoded:
    result = encoder.encode(prompt, namespace)
    encoded = await result if inspect.isawaitable(result) else result
    assert encoded is not None
    return encoded


def keys_of(ids: bytes) -> bytes:
    return extend(root_state(b"secret", NAMESPACE, 4), ids, 16)[0]


@pytest.mark.parametrize("prompt", [chat("abcd", "efgh"), completion("abcdefgh")])
async def test_keys_are_those_of_the_ids_that_were_given(
    new_encoder: Callable[..., EngineEncoder], prompt: Prompt
) -> None:
    encoded = await encode(new_encoder(), prompt)
    assert encoded.keys == keys_of(packed(*b"abcdefgh"))
    assert (encoded.units, encoded.block_units, encoded.resumed_blocks) == (8, 4, 0)


async def test_ids_that_the_client_sent_are_not_asked_for(
    new_encoder: Callable[..., EngineEncoder], source: Source
) -> None:
    encoder = new_encoder()
    assert (await encode(encoder, completion([1, 2, 3, 4, 5]))).keys == keys_of(packed(1, 2, 3, 4, 5))
    long = await encode(encoder, completion([*range(9000)]))
    assert long.keys == keys_of(packed(*range(9000)))
    assert source.asked == []
    for nothing in (completion(""), completion([]), Prompt(None, None)):
        assert encoder.encode(nothing, NAMESPACE) is None


async def test_a_prompt_is_asked_for_once(new_encoder: Callable[..., EngineEncoder], source: Source) -> None:
    encoder = new_encoder()
    first = await encode(encoder, chat("abcd", "efgh"))
    again = encoder.encode(chat("abcd", "efgh"), NAMESPACE)
    assert isinstance(again, Encoded), "at once"
    assert len(source.asked) == 1
    assert again.keys == first.keys
    assert again.resumed_blocks == len(first.keys) // KEY_BYTES
    assert again.prompt_id == again.resumed_id == first.prompt_id != 0


async def test_whatever_the_ids_depend_on_is_asked_for_anew(
    new_encoder: Callable[..., EngineEncoder], source: Source
) -> None:
    encoder = new_encoder()
    prompts = [
        chat("abcd"),
        chat("abce"),
        chat("abcd", tools=[{"name": "f"}]),
        chat("abcd", arguments={"think": True}),
        completion("abcd"),
    ]
    for prompt in prompts:
        await encode(encoder, prompt)
    await encode(encoder, prompts[0], Namespace("model", cache_salt="s"))
    assert len(source.asked) == len(prompts) + 1


async def test_a_turn_names_the_one_before_it(new_encoder: Callable[..., EngineEncoder]) -> None:
    encoder = new_encoder()
    first = await encode(encoder, chat("abcdef"))
    second = await encode(encoder, chat("abcdef", "ghijkl"))
    assert second.resumed_id == first.prompt_id
    assert second.resumed_blocks == 1
    text = await encode(encoder, completion("0123456789"))
    longer = await encode(encoder, completion("0123456789abcdef"))
    assert longer.resumed_id == text.prompt_id
    assert longer.resumed_blocks == 2


async def test_a_long_answer_gives_the_same_keys(new_encoder: Callable[..., EngineEncoder]) -> None:
    encoder = new_encoder()
    encoded = await encode(encoder, completion("abcd" * 5000))
    assert encoded.keys == keys_of(packed(*b"abcd" * 5000))
    assert len(encoder_keys := encoded.keys) // KEY_BYTES == 5000, len(encoder_keys)


async def test_an_engine_that_takes_too_long_is_not_waited_for(
    new_encoder: Callable[..., EngineEncoder], source: Source
) -> None:
    encoder = new_encoder(timeout_s=0.01)
    source.hold.clear()
    with pytest.raises(TimeoutError):
        await encode(encoder, chat("abcd"))
    source.hold.set()
    assert await encode(new_encoder(), chat("abcd"))


async def test_what_the_source_raises_comes_through_and_is_not_kept(
    new_encoder: Callable[..., EngineEncoder], source: Source
) -> None:
    encoder = new_encoder()
    source.error = ValueError("no ids")
    with pytest.raises(ValueError, match="no ids"):
        await encode(encoder, chat("abcd"))
    source.error = None
    assert await encode(encoder, chat("abcd"))


async def test_no_more_than_a_few_are_asked_for_at_a_time(
    new_encoder: Callable[..., EngineEncoder], source: Source
) -> None:
    encoder = new_encoder(max_pending=2)
    source.hold.clear()
    waiting = [asyncio.ensure_future(encode(encoder, chat(text))) for text in ("aaaa", "bbbb")]
    while len(source.asked) < 2:
        await asyncio.sleep(0)
    with pytest.raises(EncoderBusy):
        encoder.encode(chat("cccc"), NAMESPACE)
    source.hold.set()
    await asyncio.gather(*waiting)
    assert await encode(encoder, chat("cccc"))

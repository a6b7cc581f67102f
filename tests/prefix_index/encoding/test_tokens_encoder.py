from __future__ import annotations

import asyncio
import inspect
import json
import random
import threading
from typing import TYPE_CHECKING, Any

import pytest

from prefix_index.encoding.protocol import Encoded, Namespace, Prompt
from prefix_index.encoding.template import ChatTemplate
from prefix_index.encoding.tokenizer import CheckedTokenizer
from prefix_index.encoding.tokens_encoder import TokensEncoder
from prefix_index.keys import extend, root_state
from vocabulary import KEY_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NAMESPACE = Namespace("model")
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "{% for call in message.tool_calls or [] %}"
    "<tool_call>{{ call.function.arguments | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture
def reasons() -> list[str]:
    """What was said aloud."""
    return []


@pytest.fixture
def new_encoder(vocabulary: str, reasons: list[str]) -> Iterator[Callable[..., TokensEncoder]]:
    made: list[TokensEncoder] = []

    def make(
        template: str | None = CHATML, text: str = vocabulary, allow_fast: bool = True, **options: Any
    ) -> TokensEncoder:
        tokenizer = CheckedTokenizer(text, on_mismatch=reasons.append, allow_fast=allow_fast)
        chat = None if template is None else ChatTemplate(template)
        encoder = TokensEncoder(b"secret", tokenizer, chat, on_mismatch=reasons.append, **options)
        made.append(encoder)
        return encoder

    yield make
    for encoder in made:
        encoder.close()


async def encode(encoder: TokensEncoder, prompt: Prompt) -> Encoded | None:
    result = encoder.encode(prompt, NAMESPACE)
    return await result if inspect.isawaitable(result) else result


def chat(messages: Any, tools: Any = None, arguments: Any = None) -> Prompt:
    raw = [None if value is None else json.dumps(value).encode() for value in (messages, tools, arguments)]
    return Prompt(raw[0], None, raw[1], raw[2])


def completion(prompt: Any) -> Prompt:
    return Prompt(None, json.dumps(prompt).encode())


def conversation(turns: int) -> list[dict[str, Any]]:
    rng = random.Random(1)
    words = ["alpha", "beta", "gamma", "δ", "日本", "🙂", "\n", "def f():", "<|im", "1234"]
    return [
        {"role": ("user", "assistant")[turn % 2], "content": " ".join(rng.choices(words, k=40))}
        for turn in range(turns)
    ]


def rendered(messages: list[dict[str, Any]]) -> str:
    parts = [f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n" for message in messages]
    return "".join([*parts, "<|im_start|>assistant\n"])


async def test_keys_are_those_of_the_templated_token_ids(
    new_encoder: Callable[..., TokensEncoder], vocabulary: str
) -> None:
    encoder = new_encoder()
    ids = CheckedTokenizer(vocabulary, on_mismatch=pytest.fail, allow_fast=False).ids(rendered(conversation(5)))
    encoded = await encode(encoder, chat(conversation(5)))
    assert encoded is not None
    assert encoded.keys == extend(root_state(b"secret", NAMESPACE, 16), ids, 64)[0]
    assert (encoded.units, encoded.block_units, encoded.resumed_blocks) == (len(ids) // 4, 16, 0)


@pytest.mark.parametrize("allow_fast", [True, False])
@pytest.mark.parametrize(("turns", "added"), [(1, 2), (5, 1), (5, 2), (9, 30)])
async def test_a_turn_builds_on_the_last_one_and_gives_the_same_keys(
    new_encoder: Callable[..., TokensEncoder], reasons: list[str], turns: int, added: int, allow_fast: bool
) -> None:
    encoder = new_encoder(allow_fast=allow_fast, verify_every=1)
    before = await encode(encoder, chat(conversation(turns)))
    after = await encode(encoder, chat(conversation(turns + added)))
    fresh = await encode(new_encoder(), chat(conversation(turns + added)))
    assert before is not None
    assert after is not None
    assert fresh is not None
    assert (after.keys, after.units) == (fresh.keys, fresh.units)
    assert len(before.keys) // KEY_BYTES - 1 <= after.resumed_blocks <= len(before.keys) // KEY_BYTES
    assert fresh.resumed_blocks == 0
    assert reasons == []
    assert encoder.incremental


async def test_the_same_prompt_again_resumes_at_its_end(new_encoder: Callable[..., TokensEncoder]) -> None:
    encoder = new_encoder()
    first = await encode(encoder, chat(conversation(6)))
    again = await encode(encoder, chat(conversation(6)))
    assert first is not None
    assert again is not None
    assert again.keys == first.keys
    assert again.resumed_blocks == len(first.keys) // KEY_BYTES


async def test_without_a_template_chat_is_not_encoded(new_encoder: Callable[..., TokensEncoder]) -> None:
    encoder = new_encoder(None)
    assert encoder.encode(chat(conversation(2)), NAMESPACE) is None
    assert await encode(encoder, completion("some text " * 40)) is not None


async def test_a_short_completion_is_encoded_at_once_and_a_long_one_off_the_loop(
    new_encoder: Callable[..., TokensEncoder], vocabulary: str
) -> None:
    encoder = new_encoder()
    assert isinstance(encoder.encode(completion("some text " * 40), NAMESPACE), Encoded)
    pending = encoder.encode(completion("some text " * 9000), NAMESPACE)
    assert inspect.isawaitable(pending)
    whole = await pending
    assert whole is not None
    ids = CheckedTokenizer(vocabulary, on_mismatch=pytest.fail, allow_fast=False).ids("some text " * 9000)
    assert whole.keys == extend(root_state(b"secret", NAMESPACE, 16), ids, 64)[0]


async def test_a_completion_has_the_tokens_that_the_vocabulary_puts_before_it(
    new_encoder: Callable[..., TokensEncoder], vocabulary_with_bos: str
) -> None:
    encoder = new_encoder(None, vocabulary_with_bos)
    plain = CheckedTokenizer(vocabulary_with_bos, on_mismatch=pytest.fail).ids("some text " * 40)
    encoded = await encode(encoder, completion("some text " * 40))
    assert encoded is not None
    assert encoded.units == len(plain) // 4 + 1
    assert encoded.keys == extend(root_state(b"secret", NAMESPACE, 16), bytes(4) + plain, 64)[0]


async def test_o24_ids_of_a_completion_are_taken_as_they_are(new_encoder: Callable[..., TokensEncoder]) -> None:
    encoder = new_encoder(None, block_tokens=8)
    before = await encode(encoder, completion([*range(20_000)]))
    after = await encode(encoder, completion([*range(20_000), 5, 6, 7, 8, 9, 10, 11, 12]))
    assert before is not None
    assert after is not None
    assert (before.units, before.block_units, len(before.keys) // KEY_BYTES) == (20_000, 8, 2_500)
    assert after.resumed_blocks == 2_500
    odd: Any
    for odd in ([], [-1], [True], "", None, [2**32], {}):
        assert await encode(encoder, completion(odd)) is None


async def test_o29_lone_surrogates_are_encoded_and_never_raise(new_encoder: Callable[..., TokensEncoder]) -> None:
    encoder = new_encoder()
    messages = [{"role": "user", "content": "\ud83d broken \udc00 " * 20}]
    one, two = [await encode(encoder, chat(messages)) for _ in range(2)]
    assert one is not None
    assert two is not None
    assert one.keys == two.keys != b""
    assert await encode(encoder, completion("\ud83d" * 100)) is not None


async def test_o32_other_images_give_other_keys_after_the_leading_text(
    new_encoder: Callable[..., TokensEncoder],
) -> None:
    encoder = new_encoder()

    def prompt(url: str) -> Prompt:
        image = {"type": "image_url", "image_url": {"url": url}}
        return chat([{"role": "user", "content": [{"type": "text", "text": "look " * 40}, image]}])

    one = await encode(encoder, prompt("data:image/png;base64," + "A" * 5000))
    two = await encode(encoder, prompt("data:image/png;base64," + "A" * 4999 + "B"))
    assert one is not None
    assert two is not None
    assert one.keys != two.keys
    assert one.keys[: 2 * KEY_BYTES] == two.keys[: 2 * KEY_BYTES]
    assert one.units < 300


async def test_odd_requests_have_no_text(new_encoder: Callable[..., TokensEncoder]) -> None:
    encoder = new_encoder()
    messages: Any
    for messages in ([], {}, [1], None, "text"):
        assert await encode(encoder, chat(messages)) is None
    good = conversation(2)
    assert await encode(encoder, chat(good, arguments={"chat_template": "x"})) is None
    assert await encode(encoder, chat(good, arguments=[1])) is not None
    assert await encode(encoder, Prompt(None, None)) is None
    for depth in (900, 5_000):
        deep = b'[{"role":"user","content":' + b"[" * depth + b"]" * depth + b"}]"
        await encode(encoder, Prompt(deep, None))


async def test_arguments_reach_the_template(new_encoder: Callable[..., TokensEncoder]) -> None:
    encoder = new_encoder("{{ 'no ' * 40 if not think else 'yes ' * 40 }}{{ messages[0].content }}")
    plain = await encode(encoder, chat(conversation(1)))
    think = await encode(encoder, chat(conversation(1), arguments={"think": True}))
    assert plain is not None
    assert think is not None
    assert plain.keys != think.keys


async def test_a_vocabulary_whose_ids_depend_on_the_cut_is_tokenised_whole(
    new_encoder: Callable[..., TokensEncoder], vocabulary: str, reasons: list[str]
) -> None:
    changed = json.loads(vocabulary)
    changed["normalizer"] = {"type": "Strip", "strip_left": True, "strip_right": False}
    changed["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    encoder = new_encoder(text=json.dumps(changed), allow_fast=False, verify_every=1)
    fresh = new_encoder(text=json.dumps(changed), allow_fast=False)
    for turns in (1, 3, 5):
        got, right = [await encode(some, chat(conversation(turns))) for some in (encoder, fresh)]
        assert got is not None
        assert right is not None
        assert got.keys == right.keys
        fresh = new_encoder(text=json.dumps(changed), allow_fast=False)
    assert encoder.incremental == (not reasons)


async def test_a_sampled_difference_ends_incremental_encoding_aloud(
    new_encoder: Callable[..., TokensEncoder], reasons: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = new_encoder(verify_every=2)
    await encode(encoder, chat(conversation(3)))
    right = CheckedTokenizer.ids

    def wrong_for_parts(self: CheckedTokenizer, text: str) -> bytes:
        ids = right(self, text)
        return ids if text.startswith("<|im_start|>user\nalpha") or len(text) > 2_000 else ids[4:] + ids[:4]

    monkeypatch.setattr(CheckedTokenizer, "ids", wrong_for_parts)
    for turns in (5, 7, 9):
        await encode(encoder, chat(conversation(turns)))
    assert not encoder.incremental
    assert len(reasons) == 1
    assert "whole from now on" in reasons[0]


async def test_work_that_takes_too_long_is_given_up(
    new_encoder: Callable[..., TokensEncoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    encoder = new_encoder(timeout_s=0.05, max_pending=2, threads=1)
    monkeypatch.setattr(ChatTemplate, "render", lambda *_: release.wait(10) and None)
    assert await encode(encoder, chat(conversation(1))) is None
    release.set()


async def test_more_work_than_there_is_room_for_is_refused(
    new_encoder: Callable[..., TokensEncoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    encoder = new_encoder(max_pending=2, threads=1)
    monkeypatch.setattr(ChatTemplate, "render", lambda *_: release.wait(10) and None)
    waiting = [encoder.encode(chat(conversation(1)), NAMESPACE) for _ in range(2)]
    assert encoder.encode(chat(conversation(1)), NAMESPACE) is None
    release.set()
    for pending in waiting:
        assert inspect.isawaitable(pending)
        assert await pending is None
    again = encoder.encode(chat(conversation(1)), NAMESPACE)
    assert inspect.isawaitable(again)
    await again


async def test_closing_drops_what_waits_and_nobody_hangs(
    new_encoder: Callable[..., TokensEncoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    release, started = threading.Event(), threading.Event()

    def render(*_: object) -> None:
        started.set()
        release.wait(10)

    encoder = new_encoder(threads=1)
    monkeypatch.setattr(ChatTemplate, "render", render)
    tasks = [asyncio.ensure_future(encode(encoder, chat(conversation(1)))) for _ in range(3)]
    await asyncio.to_thread(started.wait, 10)
    encoder.close()
    release.set()
    assert await asyncio.gather(*tasks) == [None, None, None]


@pytest.mark.parametrize("ending", ["<think>\n", "", "\n"])
async def test_a_turn_names_the_prompt_before_it_whatever_starts_an_answer(
    new_encoder: Callable[..., TokensEncoder], ending: str
) -> None:
    encoder = new_encoder(CHATML.replace("assistant\n{% endif", "assistant\n" + ending + "{% endif"))
    first = await encode(encoder, chat(conversation(3)))
    other = await encode(encoder, chat([*conversation(3)[:2], {"role": "user", "content": "other"}]))
    again = await encode(encoder, chat(conversation(3)))
    second = await encode(encoder, chat(conversation(15)))
    assert first is not None
    assert other is not None
    assert again is not None
    assert second is not None
    assert len({0, first.prompt_id, other.prompt_id, second.prompt_id}) == 4
    assert (first.resumed_id, other.resumed_id, second.resumed_id) == (0, 0, first.prompt_id)
    assert again.prompt_id == again.resumed_id == first.prompt_id


@pytest.mark.parametrize("size", [3, 15, 16, 100, 6_000])
async def test_a_completion_names_the_prompt_before_it(new_encoder: Callable[..., TokensEncoder], size: int) -> None:
    for lead in ([], [*range(100)]):
        encoder = new_encoder(None)
        first = await encode(encoder, completion([*lead, *range(size)]))
        second = await encode(encoder, completion([*lead, *range(size), 9, 9, 9, *range(20)]))
        branch = await encode(encoder, completion([*lead, *range(size - 1), 8, 8]))
        assert first is not None
        assert second is not None
        assert branch is not None
        assert len({0, first.prompt_id, second.prompt_id, branch.prompt_id}) == 4
        assert (first.resumed_id, second.resumed_id, branch.resumed_id) == (0, first.prompt_id, 0)


async def test_ids_are_those_that_the_keys_are_made_of(
    new_encoder: Callable[..., TokensEncoder], vocabulary_with_bos: str
) -> None:
    encoder = new_encoder(text=vocabulary_with_bos)
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    tools = [{"type": "function", "function": {"name": "f"}}]
    calling = [*conversation(3), {"role": "assistant", "tool_calls": [call]}]
    prompts = [chat(conversation(5)), chat(calling, tools), completion("some text " * 40), completion([*range(40)])]
    for prompt in [*prompts, completion("lone \ud83d " * 40)]:
        encoded = await encode(encoder, prompt)
        ids = encoder.ids(prompt)
        assert encoded is not None
        assert ids is not None
        assert encoded.keys == extend(root_state(b"secret", NAMESPACE, 16), ids, 64)[0] != b""
        assert encoded.units == len(ids) // 4
    for odd in (Prompt(None, None), completion(""), chat([])):
        assert encoder.ids(odd) is None
    assert encoder.chats
    without = new_encoder(None)
    assert without.ids(prompts[0]) is None
    assert not without.chats


async def test_chats_with_tools_may_have_a_template_of_their_own(new_encoder: Callable[..., TokensEncoder]) -> None:
    encoder = new_encoder(
        "plain {{ messages[0].content }}", tool_template=ChatTemplate("tools {{ tools[0].function.name }}")
    )
    reference = new_encoder(None)
    tools = [{"type": "function", "function": {"name": "f"}}]
    messages = [{"role": "user", "content": "a"}]
    assert encoder.ids(chat(messages)) == reference.ids(completion("plain a"))
    assert encoder.ids(chat(messages, [])) == reference.ids(completion("plain a"))
    assert encoder.ids(chat(messages, tools)) == reference.ids(completion("tools f"))


async def test_developers_and_parts_are_as_the_template_wants_them(new_encoder: Callable[..., TokensEncoder]) -> None:
    encoder = new_encoder("{% for m in messages %}{{ m.role }} {{ m.content }};{% endfor %}")
    sent = [{"role": "user", "content": "a"}, {"role": "developer", "content": [{"type": "text", "text": "b"}]}]
    assert encoder.ids(chat(sent)) == new_encoder(None).ids(completion("system b;user a;"))

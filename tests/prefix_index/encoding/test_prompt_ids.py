from __future__ import annotations

from prefix_index.encoding.prompt_ids import PromptIds, prompt_id
from vocabulary import BlockKeys

ROOT = b"r" * 16
KEYS = BlockKeys(b"A" * 8 + b"B" * 8)


def test_a_prompt_is_new_once() -> None:
    ids = PromptIds()
    assert [ids.add(1), ids.add(1), ids.add(2), ids.add(1)] == [True, False, True, False]


def test_the_last_ones_are_known_and_old_ones_are_forgotten() -> None:
    ids = PromptIds(max_ids=100)
    for number in range(1, 1051):
        ids.add(number)
    assert not any(ids.add(number) for number in range(951, 1051))
    assert all(ids.add(number) for number in range(1, 51))


def test_used_ones_stay_known() -> None:
    ids = PromptIds(max_ids=10)
    ids.add(7)
    for number in range(100, 200):
        ids.add(number)
        assert not ids.add(7)


def test_the_longest_known_head_is_found() -> None:
    ids = PromptIds()
    data = b"x" * 25
    for end in (5, 12, 20):
        ids.add(prompt_id(ROOT, KEYS, end // 10, data[end // 10 * 10 : end]))
    assert ids.longest(ROOT, KEYS, data, (3, 5, 12, 19), 10) == (
        1,
        prompt_id(ROOT, KEYS, 1, data[10:12]),
    )
    assert ids.longest(ROOT, KEYS, data, (3, 4), 10) == (0, 0)

"""What a stored block has beyond its token ids: adapter, cache salt, media, prompt embeddings.

vLLM lists them per block and untagged, in this order: adapter name, media (an id with its offset from the block's
start, in some builds the id alone), salt in the first block of a prompt, digest of embeddings (vLLM 0.33.0,
kv_cache_utils.py). Invariant: what is not understood still becomes part of the mark, so blocks that the engine tells
apart never look equal here.
"""

from __future__ import annotations

from typing import Any

from prefix_index.keys import block_mark


def read_extras(
    extras: Any, blocks: int, *, first: bool, lora_name: Any, lora_id: Any
) -> tuple[str, str, tuple[bytes, ...]]:
    """(adapter, salt, a mark for each of so many blocks or none at all). `first`: these blocks start a prompt."""
    named = isinstance(lora_name, str) and lora_name != ""
    adapter: str = lora_name if named else ""
    per_block = extras if isinstance(extras, list) and any(extras) else []
    if not named and lora_id is not None and lora_id != 0:
        head = per_block[0] if per_block else None
        adapter = head[0] if isinstance(head, list) and head and isinstance(head[0], str) else f"#{lora_id}"
    salt = ""
    marks: list[bytes] = []
    for number, entry in enumerate(per_block[:blocks]):
        items = list(entry) if isinstance(entry, list) else [] if entry is None else [entry]
        if adapter and items and items[0] == adapter:
            del items[0]
        if first and number == 0:
            at = next((at for at in reversed(range(len(items))) if isinstance(items[at], str)), None)
            if at is not None:
                salt = items.pop(at)
        marks.append(block_mark([_part(item) for item in items]))
    if not any(marks):
        return adapter, salt, ()
    return adapter, salt, tuple(marks) + (b"",) * (blocks - len(marks))


def _part(item: Any) -> tuple[bytes, int]:
    """An id and its offset from the start of the block, 0 where none is told."""
    offset = 0
    if isinstance(item, list) and len(item) == 2 and type(item[1]) is int:
        item, offset = item[0], item[1]
    if isinstance(item, bytes):
        return item, offset
    return (item if isinstance(item, str) else repr(item)).encode("utf-8", "surrogatepass"), offset

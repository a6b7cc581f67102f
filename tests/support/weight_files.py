"""Writes the two file formats in which engines load weights: GGUF version 3 and safetensors. 32-bit floats only.

Layouts: ggml's docs/gguf.md and the README of huggingface/safetensors.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from array import array
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    Value = bool | int | float | str | Sequence[str] | Sequence[int]

_ALIGNMENT: Final = 32
_INT32, _UINT32, _FLOAT32, _BOOL, _STRING, _ARRAY = 5, 4, 6, 7, 8, 9


@dataclass(frozen=True, slots=True)
class Tensor:
    name: str
    shape: tuple[int, ...]
    """Rows first."""
    values: array[float]

    @property
    def data(self) -> bytes:
        return self.values.tobytes()


def write_gguf(path: Path, facts: Mapping[str, Value], tensors: Sequence[Tensor]) -> None:
    """Whole numbers are written as uint32, lists of them as int32."""
    parts = [struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(facts))]
    parts += [_text(key) + _fact(value) for key, value in facts.items()]
    blobs = [_padded(tensor.data) for tensor in tensors]
    starts = accumulate((len(blob) for blob in blobs), initial=0)
    for tensor, start in zip(tensors, starts, strict=False):
        sizes = tensor.shape[::-1]  # ggml names the innermost first
        parts.append(_text(tensor.name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, 0, start))
    path.write_bytes(b"".join([_padded(b"".join(parts)), *blobs]))


def write_safetensors(path: Path, tensors: Sequence[Tensor]) -> None:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    start = 0
    for tensor in tensors:
        end = start + len(tensor.data)
        header[tensor.name] = {"dtype": "F32", "shape": tensor.shape, "data_offsets": (start, end)}
        start = end
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    path.write_bytes(b"".join([struct.pack("<Q", len(head)), head, *(tensor.data for tensor in tensors)]))


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def _fact(value: Value) -> bytes:
    match value:
        case bool():
            return struct.pack("<IB", _BOOL, value)
        case int():
            return struct.pack("<II", _UINT32, value)
        case float():
            return struct.pack("<If", _FLOAT32, value)
        case str():
            return struct.pack("<I", _STRING) + _text(value)
    texts = [_text(item) for item in value if isinstance(item, str)]
    if texts:
        return struct.pack("<IIQ", _ARRAY, _STRING, len(texts)) + b"".join(texts)
    return struct.pack(f"<IIQ{len(value)}i", _ARRAY, _INT32, len(value), *value)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % _ALIGNMENT)

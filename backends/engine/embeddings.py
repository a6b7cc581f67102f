"""/v1/embeddings: unit vectors drawn from the digest of the text: equal for equal texts, else without meaning."""

from __future__ import annotations

import base64
import random
from array import array
from typing import TYPE_CHECKING, Any, Final

import msgspec
import xxhash

from backends.engine.bodies import read_prompts
from backends.engine.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from backends.engine.encoding import Encoding

_DIMENSIONS: Final = 64
_MOST_DIMENSIONS: Final = 4096


def embeddings(body: Mapping[str, Any], model: str, encoding: Encoding) -> bytes:
    """The whole JSON answer. ApiError where the body is not what this endpoint takes."""
    dimensions = body.get("dimensions", _DIMENSIONS)
    if type(dimensions) is not int or not 1 <= dimensions <= _MOST_DIMENSIONS:
        raise ApiError(400, f"dimensions must be from 1 to {_MOST_DIMENSIONS}", param="dimensions")
    prompts = read_prompts(body, encoding, "input")
    as_text = body.get("encoding_format") == "base64"
    data = []
    for index, prompt in enumerate(prompts):
        vector = _vector(prompt.ids, dimensions)
        embedding = base64.b64encode(vector.tobytes()).decode() if as_text else vector.tolist()
        data.append({"object": "embedding", "index": index, "embedding": embedding})
    tokens = sum(prompt.tokens for prompt in prompts)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return msgspec.json.encode({"object": "list", "model": model, "data": data, "usage": usage})


def _vector(ids: bytes, dimensions: int) -> array[float]:
    draw = random.Random(xxhash.xxh3_64_intdigest(ids))
    values = [draw.gauss(0.0, 1.0) for _ in range(dimensions)]
    length = sum(value * value for value in values) ** 0.5
    return array("f", [value / length for value in values])

"""A request as the engine core sees it, and its life inside the core."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """What the core needs: sizes and the chained hashes of full blocks, never the text.

    `block_hashes` may cover the output too (the caller knows it beforehand): those blocks become matchable when they
    are computed. Blocks beyond its end are never matched. `priority`: lower is served earlier, only under the
    priority policy.
    """

    request_id: str
    prompt_tokens: int
    max_tokens: int
    block_hashes: Sequence[int] = field(default=(), repr=False)
    priority: int = 0
    payload: object = field(default=None, repr=False)
    """The caller's own; the core never looks at it."""


@dataclass(slots=True, eq=False)
class Seq:
    """The state of one request in the core. Callers read it and never write it."""

    request: Request
    order: tuple[int, int]
    """(priority, arrival): what the waiting queue is sorted by."""
    total: int
    """Prompt tokens and generated ones: what must be computed before the next token is out."""
    matchable: int
    """Blocks that have a hash."""
    computed: int = 0
    blocks: int = 0
    """Blocks held."""
    committed: int = 0
    """How many of them, from the first, can be matched by others."""
    generated: int = 0
    cached_tokens: int | None = None
    """Prompt tokens that were cached at the first admission; None before it."""
    preemptions: int = 0
    finished: bool = False
    waiting: bool = True


@dataclass(frozen=True, slots=True)
class BlocksStored:
    """Blocks `first` to `first + count` of a request became matchable."""

    request: Request
    first: int
    count: int

    @property
    def hashes(self) -> tuple[int, ...]:
        return tuple(self.request.block_hashes[self.first : self.first + self.count])

    @property
    def parent(self) -> int | None:
        """The hash of the block before the first one."""
        return self.request.block_hashes[self.first - 1] if self.first else None

"""Chains whose beginning nobody has told yet, by the handle they wait for, oldest first.

Invariant: `blocks` counts the blocks of all chains without keys: those here and what hangs on them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prefix_index.events.chain import Chain

if TYPE_CHECKING:
    from collections.abc import Iterator


class Orphans:
    __slots__ = ("_by_handle", "blocks")

    def __init__(self) -> None:
        self._by_handle: dict[int, list[Chain]] = {}
        self.blocks = 0

    def __bool__(self) -> bool:
        return bool(self._by_handle)

    def new(self, waits_for: int) -> Chain:
        chain = Chain(None, 0, [])
        chain.waits_for = waits_for
        self._by_handle.setdefault(waits_for, []).append(chain)
        return chain

    def adopt(self, handle: int, parent: Chain) -> list[Chain]:
        """Hang those that waited for this block of `parent` on it. Returns them, still without keys.

        One that leads back to itself stays without a parent: no engine names blocks in a circle, and no walk would end.
        """
        adopted = []
        for orphan in self._by_handle.pop(handle, ()):
            orphan.waits_for = None
            if not _is_below(parent, orphan):
                orphan.hang(parent, parent.find(handle, 0) + 1)
                adopted.append(orphan)
        return adopted

    def resolve(self, orphan: Chain) -> None:
        """Its parent has keys: make those of the chain and of all that hangs on it."""
        for chain in whole(orphan):
            self.blocks -= chain.resolve()

    def forget(self, chain: Chain) -> None:
        if chain.waits_for is None:
            return
        beside = self._by_handle[chain.waits_for]
        beside.remove(chain)
        if not beside:
            del self._by_handle[chain.waits_for]
        chain.waits_for = None

    def pop_oldest(self) -> list[Chain]:
        return self._by_handle.pop(next(iter(self._by_handle)))


def whole(top: Chain) -> Iterator[Chain]:
    """A chain and all that hangs on it, parents first."""
    todo = [top]
    while todo:
        chain = todo.pop()
        yield chain
        for beside in (chain.children or {}).values():
            todo.extend(beside)


def _is_below(chain: Chain | None, top: Chain) -> bool:
    while chain is not None:
        if chain is top:
            return True
        chain = chain.parent
    return False

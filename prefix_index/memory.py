"""The prefix index of one process: radix tree, one use order per holder, one cap over all of them.

Costs follow the number of nodes on a prompt's path, not its blocks: a session that grows turn by turn is one leaf
that gets longer. Eviction takes the least recently used node of a holder and shortens it from its end. Equal to the
naive index in every answer (property tests). Invariant: entries over all holders never exceed `max_entries` after a
call.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final

from prefix_index.protocol import IndexStats
from prefix_index.tree import Entry, Node, Order
from vocabulary import KEY_BYTES

if TYPE_CHECKING:
    from prefix_index.protocol import Holder
    from vocabulary import BlockKeys, InstanceId

_MERGES_PER_STORE: Final = 8
"""Healing of chains that no longer branch is spread over uses, so that one call stays short."""


class MemoryIndex:
    """`max_entries`: (block, holder) pairs over the whole index."""

    def __init__(self, max_entries: int) -> None:
        if max_entries < 1:
            raise ValueError("max_entries must be at least 1")
        self._max_entries = max_entries
        self._root = Node(b"", None)
        self._orders: dict[Holder, Order] = {}
        self._queue: list[
            tuple[int, int, Order]
        ] = []  # a lower bound of each order's oldest stamp, refreshed when popped
        self._use = 0
        self._nodes = 0
        self._blocks = 0
        self._entries = 0
        self._evicted = 0
        self._walked: tuple[bytes, list[Node], int, int] | None = None
        """The last match, until anything changes: every change begins with a walk, or forgets it."""

    @property
    def nodes(self) -> int:
        """Runs in the tree: what memory beyond 8 bytes per block follows."""
        return self._nodes

    def store(self, holder: Holder, keys: BlockKeys, start: int = 0) -> int:
        if not keys:
            return 0
        path, at, tail = self._walk(keys)
        order = self._orders.get(holder)
        have = _held(path, tail, order) if order is not None else 0
        if have < start:
            return 0
        if order is None:
            order = self._orders[holder] = Order(holder)
        added = len(keys) // KEY_BYTES - have
        if len(path) == 1 and path[0].children is not None and have * KEY_BYTES == at == len(path[0].run) < len(keys):
            self._branch_off(path[0], order, keys[at:])
        else:
            self._grow(path, at, tail, order, keys)
            self._touch(path, tail if at == len(keys) else 0, order)
            self._heal(path)
        order.blocks += added
        self._entries += added
        if order.capacity is not None and order.blocks > order.capacity:
            self._evict_from(order, order.blocks - order.capacity)
        if self._entries > self._max_entries:
            self._evict(self._entries - self._max_entries)
        return added

    def remove(self, holder: Holder, keys: BlockKeys, keep: int) -> int:
        end = (max(keep, 0) + 1) * KEY_BYTES
        order = self._orders.get(holder)
        if order is None or end > len(keys):
            return 0
        path, at, tail = self._walk(keys[:end])
        if at < end:
            return 0
        entry = path[-1].entry(order)
        if entry is None or entry.count * KEY_BYTES < tail:
            return 0
        before = order.blocks
        for below in reversed(_entries_below(path[-1], order)):
            self._shorten(below, below.count)
        self._heal_below(self._shorten(entry, entry.count - tail // KEY_BYTES + 1) or entry.node)
        gone = before - order.blocks
        if not order.blocks and order.capacity is None:
            self._forget(order)
        return gone

    def clear(self, instance: InstanceId) -> int:
        self._walked = None
        dropped = 0
        for order in [order for holder, order in self._orders.items() if holder.instance == instance]:
            dropped += order.blocks
            while (entry := order.oldest) is not None:
                self._heal_below(self._shorten(entry, entry.count))
            self._forget(order)
        return dropped

    def match(self, keys: BlockKeys) -> dict[Holder, int]:
        path, at, tail = self._walk(keys)
        self._walked = keys, path, at, tail
        lengths: dict[Holder, int] = {}
        above, inside = 0, tail // KEY_BYTES
        for node in path:  # downwards: who holds a node holds all above it, and the deeper length replaces the shorter
            blocks = inside if node is path[-1] else node.blocks
            for entry in node.entries:
                count = entry.count
                lengths[entry.order.holder] = above + (count if count < blocks else blocks)
            above += blocks
        return lengths

    def holders(self, keys: BlockKeys) -> frozenset[Holder]:
        path, at, tail = self._walk(keys)
        if not keys or at < len(keys):
            return frozenset()
        return frozenset(entry.order.holder for entry in path[-1].entries if entry.count * KEY_BYTES >= tail)

    def set_capacity(self, holder: Holder, blocks: int | None) -> None:
        if blocks is not None and blocks < 0:
            raise ValueError("a capacity cannot be negative")
        self._walked = None
        order = self._orders.get(holder)
        if order is None:
            if blocks is None:
                return
            order = self._orders[holder] = Order(holder)
        order.capacity = blocks
        if blocks is not None and order.blocks > blocks:
            self._evict_from(order, order.blocks - blocks)
        elif blocks is None and not order.blocks:
            self._forget(order)

    def stats(self) -> IndexStats:
        held = {holder: order.blocks for holder, order in self._orders.items() if order.blocks}
        return IndexStats(self._blocks, self._entries, self._evicted, held)

    def _walk(self, keys: bytes) -> tuple[list[Node], int, int]:
        """The nodes along `keys`, the bytes of `keys` that are in the tree, and how many of them the last node has.

        A prompt is matched, then stored: the second walk of the very same keys is the first one's, if nothing changed.
        """
        walked, self._walked = self._walked, None
        if walked is not None and walked[0] is keys:
            return walked[1], walked[2], walked[3]
        path: list[Node] = []
        at = common = 0
        children = self._root.children
        while children is not None and (node := children.get(keys[at : at + KEY_BYTES])) is not None:
            path.append(node)
            common = node.common(keys, at)
            at += common
            if common < len(node.run):
                break
            children = node.children
        return path, at, common

    def _branch_off(self, head: Node, order: Order, rest: bytes) -> None:
        """What `_grow` and `_touch` would do, where the holder has a shared head and only the rest is new."""
        self._use = stamp = self._use + 1
        leaf = head.add_child(rest)
        self._nodes += 1
        blocks = len(rest) // KEY_BYTES
        self._blocks += blocks
        entry = Entry(order, leaf, blocks, stamp)
        leaf.entries.append(entry)
        order.append(entry)
        shared = head.entry(order)
        assert shared is not None
        order.unlink(shared)
        shared.stamp = stamp
        order.append(shared)

    def _grow(self, path: list[Node], at: int, tail: int, order: Order, keys: bytes) -> None:
        """Make the tree and `path` hold all of `keys`, with a node edge wherever `order`'s recency will differ."""
        if path and tail < len(path[-1].run):
            entry = path[-1].entry(order)
            if at < len(keys) or (entry is not None and entry.count * KEY_BYTES > tail):
                path[-1] = path[-1].split(tail)
                self._nodes += 1
        if at == len(keys):
            return
        if path and path[-1].children is None:
            path[-1].extend(keys[at:])  # other holders keep their counts: they have a head of the longer run
        else:
            path.append((path[-1] if path else self._root).add_child(keys[at:]))
            self._nodes += 1
        self._blocks += (len(keys) - at) // KEY_BYTES

    def _touch(self, path: list[Node], tail: int, order: Order) -> None:
        """One use of the whole path, deepest first; of its last node only the first `tail` bytes if that is not 0."""
        self._use = stamp = self._use + 1
        count = tail // KEY_BYTES or path[-1].blocks
        for node in reversed(path):
            entry = node.entry(order)
            if entry is None:
                entry = Entry(order, node, count, stamp)
                node.entries.append(entry)
            else:
                order.unlink(entry)
                entry.count = count
                entry.stamp = stamp
            order.append(entry)
            if node.parent is not None:
                count = node.parent.blocks
        if not order.queued:
            order.queued = True
            heapq.heappush(self._queue, (stamp, id(order), order))

    def _heal(self, path: list[Node]) -> None:
        merged = 0
        for at in range(len(path) - 1, 0, -1):
            children = path[at - 1].children
            if children is not None and len(children) == 1 and path[at].merge_up():
                path[at - 1] = path[at]
                self._nodes -= 1
                merged += 1
                if merged == _MERGES_PER_STORE:
                    return

    def _heal_below(self, node: Node | None) -> None:
        """Undo the split that a removed branch had made."""
        if node is not None and node.children is not None and len(node.children) == 1:
            (child,) = node.children.values()
            self._nodes -= child.merge_up()

    def _shorten(self, entry: Entry, blocks: int) -> Node | None:
        """Drop the last `blocks` blocks of an entry without descendants. Returns the parent of a node that went with
        it."""
        order, node = entry.order, entry.node
        order.blocks -= blocks
        self._entries -= blocks
        entry.count -= blocks
        if not entry.count:
            order.unlink(entry)
            node.entries.remove(entry)
        if node.children is not None:
            return None
        longest = max((other.count for other in node.entries), default=0)
        self._blocks -= node.blocks - longest
        if not longest:
            self._nodes -= 1
            return node.detach()
        if longest < node.blocks:
            node.cut(longest * KEY_BYTES)
        return None

    def _evict_from(self, order: Order, blocks: int) -> None:
        while blocks and (entry := order.oldest) is not None:
            part = entry.count if entry.count < blocks else blocks
            node = entry.node
            if node.children is None and len(node.entries) == 1:
                self._trim_leaf(entry, node, part)
            else:
                self._heal_below(self._shorten(entry, part))
            self._evicted += part
            blocks -= part

    def _trim_leaf(self, entry: Entry, node: Node, blocks: int) -> None:
        """What `_shorten` would do, for by far the most evictions: the end, or all, of a leaf that only one holder
        has.
        """
        order = entry.order
        order.blocks -= blocks
        self._entries -= blocks
        self._blocks -= blocks
        entry.count -= blocks
        if entry.count:
            node.cut(entry.count * KEY_BYTES)
            return
        order.unlink(entry)
        self._nodes -= 1
        node.entries.clear()
        parent = node.detach()
        if parent.children is not None and len(parent.children) == 1:
            self._heal_below(parent)

    def _evict(self, blocks: int) -> None:
        """The least recently used over all holders; no two holders share a stamp."""
        while blocks:
            stamp, _, order = self._queue[0]
            if order.oldest is None:
                heapq.heappop(self._queue)
                order.queued = False
                if order.capacity is None:
                    del self._orders[order.holder]
            elif order.oldest.stamp != stamp:
                heapq.heapreplace(self._queue, (order.oldest.stamp, id(order), order))
            else:
                part = min(blocks, order.oldest.count)
                self._evict_from(order, part)
                blocks -= part

    def _forget(self, order: Order) -> None:
        del self._orders[order.holder]
        if order.queued:
            self._queue = [item for item in self._queue if item[2] is not order]
            heapq.heapify(self._queue)


def _held(path: list[Node], tail: int, order: Order) -> int:
    """How many blocks of the path, `tail` bytes of its last node, the holder has."""
    have = 0
    for node in path:
        entry = node.entry(order)
        if entry is None:
            break
        have += entry.count if node is not path[-1] else min(entry.count, tail // KEY_BYTES)
        if entry.count < node.blocks:
            break
    return have


def _entries_below(node: Node, order: Order) -> list[Entry]:
    """The holder's entries in all branches below a node, parents before children."""
    found: list[Entry] = []
    nodes = [node]
    while nodes:
        for child in (nodes.pop().children or {}).values():
            if (entry := child.entry(order)) is not None:
                found.append(entry)
                nodes.append(child)
    return found

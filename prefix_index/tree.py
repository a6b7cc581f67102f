"""The parts of the memory index: a path-compressed radix tree over block keys, and one use order per holder.

A node is a run of keys, an entry says that a holder has the first `count` blocks of a node. Keys are chained, so
equality at one position means equality of all positions before it. Invariants: an entry in a child goes with a full
entry in its parent (prefix-closed); in each order a node's entry is newer than those of its descendants; all blocks
of one entry were last used by the same use. Nothing here holds a reference cycle once it is unlinked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vocabulary import KEY_BYTES

if TYPE_CHECKING:
    from prefix_index.protocol import Holder


class Node:
    """A run of keys that nothing branches off. `children` are keyed by their first key; None where there are none."""

    __slots__ = ("children", "entries", "parent", "run")

    def __init__(self, run: bytes | bytearray, parent: Node | None) -> None:
        self.run = run
        self.parent = parent
        self.children: dict[bytes, Node] | None = None
        self.entries: list[Entry] = []

    @property
    def blocks(self) -> int:
        return len(self.run) // KEY_BYTES

    def entry(self, order: Order) -> Entry | None:
        for entry in self.entries:
            if entry.order is order:
                return entry
        return None

    def extend(self, keys: bytes) -> None:
        """Lengthen the run at its end: amortised cost of `keys` alone."""
        if isinstance(self.run, bytes):
            self.run = bytearray(self.run)
        self.run += keys

    def cut(self, size: int) -> None:
        """Shorten the run to `size` bytes: amortised cost of what goes, so that eviction may nibble at a long run."""
        if isinstance(self.run, bytes):
            self.run = bytearray(self.run[:size])
        else:
            del self.run[size:]

    def add_child(self, keys: bytes) -> Node:
        child = Node(keys, self)
        if self.children is None:
            self.children = {}
        self.children[bytes(keys[:KEY_BYTES])] = child
        return child

    def common(self, keys: bytes, at: int) -> int:
        """How many bytes of the run equal `keys` from byte `at` on; the first key is known to be equal."""
        run = self.run
        most = min(len(run), len(keys) - at)
        if run[most - KEY_BYTES : most] == keys[at + most - KEY_BYTES : at + most]:
            return most
        low, high = 1, most // KEY_BYTES  # equal up to block `low`, unequal up to block `high`
        while high - low > 1:
            middle = (low + high) // 2
            end = middle * KEY_BYTES
            if run[end - KEY_BYTES : end] == keys[at + end - KEY_BYTES : at + end]:
                low = middle
            else:
                high = middle
        return low * KEY_BYTES

    def split(self, size: int) -> Node:
        """Cut the run after `size` bytes. Returns the new head; this node becomes its tail and keeps its children.

        A holder that has both gets its head right behind its tail in its order: as recently used, and newer than the
        tail.
        """
        parent, run, blocks = self.parent, self.run, size // KEY_BYTES
        assert parent is not None
        assert parent.children is not None
        head = Node(bytes(run[:size]), parent)
        parent.children[bytes(run[:KEY_BYTES])] = head
        self.run, self.parent = bytes(run[size:]), head
        head.children = {self.run[:KEY_BYTES]: self}
        tails: list[Entry] = []
        for entry in self.entries:
            if entry.count <= blocks:
                entry.node = head
                head.entries.append(entry)
                continue
            entry.count -= blocks
            tails.append(entry)
            front = Entry(entry.order, head, blocks, entry.stamp)
            entry.order.insert_after(entry, front)
            head.entries.append(front)
        self.entries = tails
        return head

    def merge_up(self) -> bool:
        """Take the parent's run in front of this one's, if this is its only child and no holder's recency tells them
        apart."""
        parent = self.parent
        if parent is None or parent.parent is None or parent.children is None or len(parent.children) != 1:
            return False
        mine = {entry.order: entry for entry in self.entries}
        if any(e.order in mine and mine[e.order].stamp != e.stamp for e in parent.entries):
            return False
        grandparent, size = parent.parent, parent.blocks
        assert grandparent.children is not None
        for entry in parent.entries:
            if (own := mine.get(entry.order)) is not None:
                own.count += size
                entry.order.unlink(entry)
            else:
                entry.node = self
                self.entries.append(entry)
        self.run, self.parent = parent.run + self.run, grandparent
        grandparent.children[bytes(self.run[:KEY_BYTES])] = self
        parent.entries, parent.children, parent.parent = [], None, None
        return True

    def detach(self) -> Node:
        """Leave the tree; the node has no entries left and so no children. Returns the parent."""
        parent = self.parent
        assert parent is not None
        assert parent.children is not None
        del parent.children[bytes(self.run[:KEY_BYTES])]
        if not parent.children:
            parent.children = None
        self.parent = None
        return parent


class Entry:
    """A holder has the first `count` blocks of a node since use number `stamp`; a link in the holder's order."""

    __slots__ = ("count", "newer", "node", "older", "order", "stamp")

    def __init__(self, order: Order, node: Node, count: int, stamp: int) -> None:
        self.order = order
        self.node = node
        self.count = count
        self.stamp = stamp
        self.older: Entry | None = None
        self.newer: Entry | None = None


class Order:
    """The entries of one holder from the least to the most recently used, as a doubly linked list."""

    __slots__ = ("blocks", "capacity", "holder", "newest", "oldest", "queued")

    def __init__(self, holder: Holder) -> None:
        self.holder = holder
        self.capacity: int | None = None
        self.blocks = 0
        self.oldest: Entry | None = None
        self.newest: Entry | None = None
        self.queued = False
        """Known to the queue of the global cap."""

    def append(self, entry: Entry) -> None:
        entry.older, entry.newer = self.newest, None
        if self.newest is None:
            self.oldest = entry
        else:
            self.newest.newer = entry
        self.newest = entry

    def insert_after(self, place: Entry, entry: Entry) -> None:
        entry.older, entry.newer = place, place.newer
        if place.newer is None:
            self.newest = entry
        else:
            place.newer.older = entry
        place.newer = entry

    def unlink(self, entry: Entry) -> None:
        older, newer = entry.older, entry.newer
        if older is None:
            self.oldest = newer
        else:
            older.newer = newer
        if newer is None:
            self.newest = older
        else:
            newer.older = older
        entry.older = entry.newer = None

"""What children need of a partition: holds, which keep data from being reclaimed (docs/RELAYS.md).

A hold is (BrokerSet, node, offset): all from the offset on is kept for that child, up to a number
of bytes, and for a time after its last word. Two nodes of one set have a hold each, and the lower
one counts: whichever owns the partition next goes on at its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from weir.model.limits import HOLD_BYTES_DEFAULT, HOLD_MS_DEFAULT, HOLDS_MAX
from weir.relay.entries import HoldRow
from weir.relay.rows import Tags, merged, pack_tags, unpack_tags

#: A child: its BrokerSet and node.
Child = tuple[int, int]


class HoldLimits(NamedTuple):
    """How long a child is waited for after its last word, and how many bytes are kept for it."""

    milliseconds: int = HOLD_MS_DEFAULT
    bytes_max: int = HOLD_BYTES_DEFAULT


class Hold(NamedTuple):
    """What a child needs: all from `offset` on, said at `said_ms`; what it pulled had `tags`."""

    offset: int
    said_ms: int
    tags: Tags


class Holds:
    """The holds of all children of one partition."""

    __slots__ = ("_awaited", "_begun", "_limits", "_passed", "_rows", "changed")

    def __init__(self, limits: HoldLimits) -> None:
        """Hold nothing."""
        self._limits = limits
        self._rows: dict[Child, Hold] = {}
        #: Nodes that own the partition in the BrokerSets below, and are to say what they need; None
        #: as long as nobody said who they are.
        self._awaited: frozenset[Child] | None = None
        #: Since when and from which offset all is kept for those.
        self._begun: tuple[int, int] | None = None
        #: Children whose holds lay further back than may be kept.
        self._passed: set[Child] = set()
        self.changed = False

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, child: Child) -> bool:
        return child in self._rows

    def begin(self, offset: int, now_ms: int) -> None:
        """Keep all from an offset on until the children have said what they need: the log begins,
        perhaps because a disk was lost whose log had held more for them.
        """
        self._begun = now_ms, offset

    def await_children(self, children: frozenset[Child]) -> None:
        """Take over which nodes own the partition in the BrokerSets below."""
        self._awaited = children

    def say(self, child: Child, offset: int, tags: Tags, now_ms: int) -> bool:
        """A child says from where on it needs data. False if there are too many children."""
        if child not in self._rows and len(self._rows) >= HOLDS_MAX:
            self._expire(now_ms)  # nothing is reclaimed by these in the core, so nobody else asks
            if len(self._rows) >= HOLDS_MAX:
                return False
        self._rows[child] = Hold(offset, now_ms, tags)
        self.changed = True
        return True

    def say_again(self, child: Child, offset: int, now_ms: int) -> None:
        """A child that was held for, and pulls from elsewhere, says what it needs."""
        hold = self._rows.get(child)
        if hold is not None:
            self.say(child, offset, hold.tags, now_ms)

    def cut(self, offset: int) -> None:
        """A lineage ended at an offset: what children had above it they will need anew."""
        self._rows = {
            child: hold._replace(offset=min(hold.offset, offset))
            for child, hold in self._rows.items()
        }
        if self._begun is not None:
            self._begun = self._begun[0], min(self._begun[1], offset)
        self.changed = True

    def of(self, child: Child) -> int:
        """Return from where on all is kept for a child; -1 if it has said nothing yet."""
        hold = self._rows.get(child)
        return -1 if hold is None else hold.offset

    def lowest(self, now_ms: int, end: int) -> int:
        """Return the lowest offset that a child needs; `end` if none needs what lies below."""
        self._expire(now_ms)
        offsets = [hold.offset for hold in self._rows.values()]
        if self._begun is not None:
            offsets.append(self._begun[1])
        return min(offsets, default=end)

    def keep(self, now_ms: int, end: int, affordable: int) -> tuple[int, tuple[Child, ...]]:
        """Return from where on all is kept, and the children for which more is needed than may be:
        those that are told so the first time. From `affordable` on the bytes are within the limit.
        """
        needed = self.lowest(now_ms, end)
        behind = {child for child, hold in self._rows.items() if hold.offset < affordable}
        told = tuple(sorted(behind - self._passed))
        self._passed = behind
        return max(needed, min(affordable, end)), told

    @property
    def bytes_max(self) -> int:
        """How many bytes are kept for children."""
        return self._limits.bytes_max

    def tags(self, now_ms: int) -> Tags:
        """Return the tags that children pull, together."""
        self._expire(now_ms)
        found: Tags = frozenset()
        for hold in self._rows.values():
            found = merged(found, hold.tags)
        return found

    def stored(self) -> tuple[tuple[HoldRow, ...], int, int]:
        """Return what an entry stores: the rows, and when and where the log began, or zeros."""
        rows = tuple(
            HoldRow(*child, hold.offset, hold.said_ms, pack_tags(hold.tags))
            for child, hold in sorted(self._rows.items())
        )
        return rows, *(self._begun or (0, 0))

    def restore(self, rows: Iterable[HoldRow], begun_ms: int, begun_at: int) -> None:
        """Take over what an entry stored; what is old only keeps more."""
        self._rows = {
            (row.brokerset, row.node): Hold(row.offset, row.said_ms, unpack_tags(row.tags))
            for row in rows
        }
        self._begun = (begun_ms, begun_at) if begun_ms else None
        self.changed = False

    def _expire(self, now_ms: int) -> None:
        limit = now_ms - self._limits.milliseconds
        old = [child for child, hold in self._rows.items() if hold.said_ms < limit]
        for child in old:
            del self._rows[child]
            self.changed = True
        if self._begun is not None:
            all_spoke = self._awaited is not None and self._awaited <= self._rows.keys()
            if self._begun[0] < limit or all_spoke:
                self._begun = None
                self.changed = True

"""What children need of a partition: holds, which keep data from being reclaimed (docs/RELAYS.md).

A hold is (BrokerSet, node, offset): all from the offset on is kept for that child, up to a number
of bytes, and for a time after its last word. Two nodes of one set have a hold each, and the lower
one counts: whichever owns the partition next goes on at its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from weir.model.limits import HOLD_BYTES_DEFAULT, HOLD_MS_DEFAULT, HOLDS_MAX
from weir.relay.entries import HoldRow
from weir.relay.rows import Tags, merged, pack_tags, unpack_tags
from weir.topology.sets import Topology

#: A child: its BrokerSet and node.
Child = tuple[int, int]


class HoldLimits(NamedTuple):
    """How long a child is waited for after its last word, and how many bytes are kept for it."""

    milliseconds: int = HOLD_MS_DEFAULT
    bytes_max: int = HOLD_BYTES_DEFAULT


def limits_in(topology: Topology) -> dict[Child, HoldLimits]:
    """Return the nodes of all tandem and access sets, and how long and how much is kept for each.

    A set without a cap has the default: no disk may fill up without end.
    """
    return {
        (row.id, node.number): HoldLimits(
            row.caps.hold_seconds * 1_000 or HOLD_MS_DEFAULT,
            row.caps.hold_bytes or HOLD_BYTES_DEFAULT,
        )
        for row in topology.sets if row.tier != "core" for node in row.nodes
    }  # fmt: skip


class Hold(NamedTuple):
    """What a child needs: all from `offset` on, said at `said_ms`; what it pulled had `tags`."""

    offset: int
    said_ms: int
    tags: Tags


class Holds:
    """The holds of all children of one partition."""

    __slots__ = ("_awaited", "_begun", "_each", "_limits", "_passed", "_rows", "changed")

    def __init__(self, limits: HoldLimits) -> None:
        """Hold nothing."""
        self._limits = limits
        #: By child, how long and how much is kept for it; None: the same for any.
        self._each: Mapping[Child, HoldLimits] | None = None
        self._rows: dict[Child, Hold] = {}
        #: Nodes that own the partition in the BrokerSets below, and must say what they need; None
        #: until they are known.
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

    def limit(self, each: Mapping[Child, HoldLimits]) -> None:
        """Keep data for these children alone, for each within its limits."""
        self._each = each
        for child in self._rows.keys() - each.keys():
            del self._rows[child]
            self.changed = True

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

    def lowest(self, now_ms: int, end: int) -> int:
        """Return the lowest offset that a child needs; `end` if none needs what lies below."""
        self._expire(now_ms)
        offsets = [hold.offset for hold in self._rows.values()]
        if self._begun is not None:
            offsets.append(self._begun[1])
        return min(offsets, default=end)

    def keep(
        self, now_ms: int, end: int, affordable: Callable[[int], int]
    ) -> tuple[int, tuple[Child, ...]]:  # fmt: skip
        """Return from where on all is kept, and the children for which more is needed than may be:
        those that are told so the first time. `affordable` returns the offset from which on no more
        than so many bytes are held.
        """
        self._expire(now_ms)
        found: dict[int, int] = {}

        def least(bytes_max: int) -> int:
            if bytes_max not in found:
                found[bytes_max] = min(affordable(bytes_max), end)
            return found[bytes_max]

        kept, behind = end, set[Child]()
        for child, hold in self._rows.items():
            least_kept = least(self._limits_of(child).bytes_max)
            if hold.offset < least_kept:
                behind.add(child)
            kept = min(kept, max(hold.offset, least_kept))
        if self._begun is not None:
            kept = min(kept, max(self._begun[1], least(self._limits.bytes_max)))
        told = tuple(sorted(behind - self._passed))
        self._passed = behind
        return kept, told

    def silent(self, now_ms: int) -> list[tuple[Child, int, int]]:
        """Return of each child its number, from where on it needs data, and ms since it said so."""
        self._expire(now_ms)
        return [(c, hold.offset, now_ms - hold.said_ms) for c, hold in sorted(self._rows.items())]

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
        old = [
            child for child, hold in self._rows.items()
            if hold.said_ms < now_ms - self._limits_of(child).milliseconds
        ]  # fmt: skip
        for child in old:
            del self._rows[child]
            self.changed = True
        if self._begun is not None:
            all_spoke = self._awaited is not None and self._awaited <= self._rows.keys()
            if self._begun[0] < now_ms - self._limits.milliseconds or all_spoke:
                self._begun = None
                self.changed = True

    def _limits_of(self, child: Child) -> HoldLimits:
        return self._limits if self._each is None else self._each.get(child, self._limits)

"""What the registry keeps of promotions: the set that continued alone, the nodes that it removed,
and the groups in which its copies are forced to vote.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from weir.broker.metadata.spread import Declared
from weir.broker.records.registry import SetPromoted
from weir.model.ids import node_of

Placement = tuple[int, ...]


class Forced(NamedTuple):
    """The voters of a group from the first term of a lineage on, whatever its log says."""

    lineage: int
    voters: Placement


def copies(members: Iterable[int], staying: frozenset[int]) -> Placement:
    """Return those of the members of a group that are on nodes that stay, each once."""
    return tuple(dict.fromkeys(one for one in members if node_of(one) in staying))


def keeps_majority(voters: Placement, staying: frozenset[int]) -> bool:
    """Whether a group decides as before by those of its voters that stay."""
    return 2 * len(copies(voters, staying)) > len(voters)


class Promotions:
    """All of them; the last one says which set is home."""

    __slots__ = ("_brokerset", "_version", "forced", "lineage", "outlived")

    def __init__(self) -> None:
        """Begin with none."""
        #: The number of the last one; 0: there was none.
        self.lineage = 0
        #: By node, the promotion that went on without it.
        self.outlived: dict[int, int] = {}
        #: The groups that lost their voters by a promotion.
        self.forced: dict[int, Forced] = {}
        self._brokerset = self._version = 0

    def __bool__(self) -> bool:
        return bool(self.lineage)

    @property
    def last(self) -> tuple[int, int]:
        """The lineage and the set of the last one; (0, 0) if there was none."""
        return self.lineage, self._brokerset

    def begin(self, record: SetPromoted, left: Iterable[int]) -> None:
        """Take note of a promotion, without the nodes that are `left` behind."""
        self.lineage = record.lineage
        self._brokerset, self._version = record.brokerset, record.version
        self.outlived |= dict.fromkeys(left, record.lineage)

    def home(self, declared: Declared) -> int | None:
        """Return which set is home: the promoted one until another topology is applied."""
        if self.lineage and declared.version <= self._version:
            return self._brokerset
        return declared.home

    def encode(self) -> tuple[object, ...]:
        """Return the state as MessagePack can hold it; empty where there was none."""
        if not self.lineage:
            return ()
        forced = [(group, *one) for group, one in self.forced.items()]
        return self.lineage, self._brokerset, self._version, list(self.outlived.items()), forced

    @classmethod
    def decode(cls, data: Any) -> Promotions:
        """Return the state that `encode` gave."""
        found = cls()
        if data:
            found.lineage, found._brokerset, found._version, outlived, forced = data
            found.outlived = dict(outlived)
            found.forced = {g: Forced(lineage, tuple(voters)) for g, lineage, voters in forced}
        return found

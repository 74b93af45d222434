"""Whether a shard takes publishes: not while disks are full, nor once it stops."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Protocol

from weir.broker.replica.group import Group
from weir.broker.replica.node_state import Full, FullDisks
from weir.broker.replica.writer import SPARE_RETRY_MS, Writer
from weir.broker.runtime.budget import Budget
from weir.errors import Overloaded, Refused, Unavailable


class Stallable(Protocol):
    """A partition, as far as admission knows it."""

    group: Group

    def stall(self, error: Refused) -> None:
        """Answer those who wait for publishes with an error."""


class Admission:
    """Refuses publishes that would find no room on the disks of this node, or of a majority."""

    __slots__ = ("_budget", "_full_disks", "_short", "_writers", "is_closed")

    def __init__(self, writers: Sequence[Writer], budget: Budget, full_disks: FullDisks) -> None:
        """Take publishes to the logs of `writers`, as long as `budget` and disks have room."""
        self._writers = writers
        self._budget = budget
        self._full_disks = full_disks
        #: The groups led here that other nodes' full disks keep from taking publishes.
        self._short: dict[int, Full] = {}
        #: Whether this shard has handed over what it led, and takes nothing more.
        self.is_closed = False

    @property
    def needed_bytes(self) -> int:
        """The free space that full disks need before publishes are taken again; 0 if they are."""
        return sum(writer.needed_bytes for writer in self._writers)

    @property
    def short(self) -> Full | None:
        """Which other nodes' disks are full, so that publishes to groups led here are refused."""
        return max(self._short.values(), default=None)

    def check(self, group: int) -> None:
        """Raise `Unavailable` once this shard stops, `Overloaded` while disks have no room for
        publishes to a group; 0 stands for no group but the own disks.
        """
        if self.is_closed:
            raise Unavailable("this node is stopping: try another, or again shortly")
        for writer in self._writers:
            writer.admit(self._budget.used)
        if (full := self._short.get(group)) is not None:
            text = f"{full}: free space there or add disks; acks and reads go on"
            raise Overloaded(text, SPARE_RETRY_MS)

    def look_at_disks(self, partitions: Iterable[Stallable]) -> None:
        """See which disks are full. Answer those who wait for publishes that other nodes' full
        disks hold up: no majority may have had room for them.
        """
        disks = self._full_disks
        disks.is_full = any(writer.is_full for writer in self._writers)
        disks.needed_bytes = self.needed_bytes
        self._short = disks.short(chain.from_iterable(one.led for one in self._writers))
        for partition in partitions if self._short else ():
            if (full := self._short.get(partition.group.id)) is not None:
                text = f"{full}: free space there; what is under way may still be taken"
                partition.stall(Unavailable(text))

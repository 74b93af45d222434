"""Rows of an inbox that nobody needs any more: those of messages that will not come again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from weir.app import inbox_tables as t
from weir.client.connection.system import SYSTEM

#: A topic and a partition.
Place = tuple[str, int]

#: Offsets whose rows go in one transaction.
_AT_ONCE = 10_000
#: Seconds between a floor's commit and the deletion of rows below it, at least.
GAP = 10.0


class Pruning:
    """Deletes rows below the cursor in two rounds.

    Messages below a cursor are granted to nobody, but a consumer that stood still may yet ask for
    one that was granted to it long ago. So the first round commits a floor, below which nothing is
    fresh, and one that comes `GAP` seconds later deletes the rows. A statement that began before
    the floor was there, and adds a row after the old one went, takes longer than that: it looks
    again (`looks_again`).
    """

    def __init__(self, cluster: str) -> None:
        """Begin without a round."""
        self._cluster = cluster
        #: Floors that were committed, offset and stamp, and when.
        self._told: dict[Place, tuple[int, int, float]] = {}

    def run(self, connection: Connection, cursors: Mapping[Place, int]) -> int:
        """Do a round; return how many rows were deleted. All below `cursors` is done."""
        deleted = 0
        for place, cursor in cursors.items():
            where = t.place(self._cluster, *place)
            if place in self._told:
                offset, stamp, since = self._told[place]
                if SYSTEM.get().monotonic() < since + GAP:
                    continue
                deleted += _delete(connection, where, offset, stamp)
                del self._told[place]
            highest = connection.execute(t.HIGHEST, {**where, "at_offset": cursor}).first()
            if highest is not None:
                offset, stamp = highest.offset + 1, highest.stamp
                _raise_floor(connection, {**where, **t.position(offset, stamp)})
            connection.commit()
            if highest is not None:
                self._told[place] = (offset, stamp, SYSTEM.get().monotonic())
        return deleted


def looks_again(began: float) -> bool:
    """Tell whether what began then, by the clock, may have missed a floor and its row."""
    return SYSTEM.get().monotonic() > began + GAP / 2


def _delete(connection: Connection, where: dict[str, Any], offset: int, stamp: int) -> int:
    deleted = 0
    lowest = connection.execute(t.LOWEST, where).scalar()
    while lowest is not None and lowest < offset:
        lowest += _AT_ONCE
        below = t.position(min(lowest, offset), stamp)
        deleted += connection.execute(t.DELETE, {**where, **below}).rowcount
        connection.commit()
    return deleted


def _raise_floor(connection: Connection, floor: dict[str, Any]) -> None:
    """Set a floor, or raise the one that is there."""
    if connection.execute(t.FLOOR, floor).first() is None:
        try:
            with connection.begin_nested():
                connection.execute(t.SET_FLOOR, floor)
        except IntegrityError:
            pass  # another process was quicker
    connection.execute(t.RAISE_FLOOR, floor)

"""How much may be on its way from this shard to the others and not have left this process.

Shards that are short of memory stop serving each other. Were all that one holds meant for another
that holds as well, neither would ever go on: so what is passed on gets less of the budget than
what must be in use for reading to go on again. The rest always comes back by this shard alone.
"""

from __future__ import annotations

from weir.broker.runtime.admission import Budget
from weir.errors import Overloaded
from weir.model.ids import place_node, place_shard
from weir.model.limits import KIB, RETRY_AFTER_MS

#: A request up to this size goes on where a larger one does not: acks give memory back.
SMALL = 4 * KIB


def called(place: int) -> str:
    """Return what a user calls a shard, by its place."""
    node = place_node(place)
    return f"shard {place_shard(place)} of {f'node {node}' if node else 'this node'}"


class Lanes:
    """The bytes on their way to each other shard; all are charged to the budget as well."""

    __slots__ = ("_all", "_budget", "_most", "_small_most", "_unsent", "ways")

    def __init__(self, budget: Budget) -> None:
        """Share a part of `budget` out among the ways that are open."""
        #: How many there are.
        self.ways = 0
        self._budget = budget
        self._unsent: dict[int, int] = {}
        self._all = 0
        self._most = budget.limit // 4
        #: Below the half of the budget at which reading is resumed, see `Budget`.
        self._small_most = budget.limit // 8 * 3

    def take(self, shard: int, size: int) -> None:
        """Charge `size` bytes that are to go to `shard`, or raise `Overloaded`.

        One that is larger than a whole share goes alone.
        """
        unsent, share = self._unsent.get(shard, 0), self._most // max(self.ways, 1)
        if size <= SMALL:
            fits = self._all + size <= self._small_most
        else:
            fits = self._all <= self._most and (not unsent or unsent + size <= share)
        if not fits:
            raise Overloaded(
                f"{unsent:,} bytes wait for {called(shard)} to take them: try again shortly",
                RETRY_AFTER_MS,
            )
        if size <= SMALL:
            self._budget.take(size)
        else:
            self._budget.charge(size)
        self._unsent[shard] = unsent + size
        self._all += size

    def sent(self, shard: int, size: int) -> None:
        """Give back what has left this process, or was dropped."""
        if size:
            self._budget.release(size)
            self._unsent[shard] -= size
            self._all -= size

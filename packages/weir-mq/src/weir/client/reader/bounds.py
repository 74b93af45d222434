"""From where to where a reader reads: what its options mean, asked of the broker once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weir.client.arguments.positions import Begin, End
from weir.client.connection.link import Link
from weir.client.connection.metadata import Places
from weir.client.core.filters import Pick
from weir.client.reader.barriers import Barriers, Moment
from weir.client.reader.search import exact, last_wanted
from weir.model.stamp import STAMP_MAX
from weir.protocol.client.messages import PositionsReply


class Span:
    """Positions of a reader, where it ends, and what of its options is asked for only once:
    iterating again goes on with the same.
    """

    def __init__(self, begin: Begin, end: End | None, pick: Pick, follow: bool) -> None:
        """Take checked options; `pick` is told the stamps between which a reader reads."""
        self.positions: dict[int, int] = dict(begin.offsets or {})
        #: None: there is no end.
        self.ends: dict[int, int] | None = None
        #: Where partitions began for which the user named no offset.
        self.found: dict[int, int] = {}
        #: By partition, the offset behind the last committed message, as of the last fetch.
        self.committed: dict[int, int] = {}
        self._begin = begin
        self._end = end
        self.pick = pick
        self._follow = follow
        self._moment: Moment | None = None

    async def ask(
        self, link: Link, places: Places, given: Sequence[int] | None, barriers: Barriers | None
    ) -> list[int]:
        """Fill `positions` and `ends` for the `given` partitions, or all; return these.

        With `barriers`, what lies between both is a piece of the one order of all partitions.
        Raises `UnknownTopic` for a partition that the topic does not have.
        """
        await self._settle(link)
        if barriers is not None and self._moment is None:
            self._moment = await self._cut(barriers)
        named = (self._end and self._end.offsets) or ()
        await places.find_these([*self.positions, *(given or ()), *named])
        mine = [*dict.fromkeys(given or range(len(places)))]
        await self._set_begins(places, mine)
        if self.ends is None and (self._end is not None or not self._follow):
            self.ends = await self._ends(places, mine)
        return mine

    def joined(self, partition: int) -> None:
        """A partition was added, all in it is new."""
        if partition not in self.positions:
            self.positions[partition] = self.found[partition] = 0

    async def _settle(self, link: Link) -> None:
        begin, end = self._begin, self._end
        if begin.needs_clock or (end is not None and end.needs_clock):
            now_ms = await link.wall_ms()
            self._begin = begin.settled(now_ms)
            self._end = None if end is None else end.settled(now_ms)
            self.pick.floor = self._begin.stamp
            self.pick.ceiling = STAMP_MAX if self._end is None else self._end.stamp

    async def _cut(self, barriers: Barriers) -> Moment | None:
        """Return the barrier to begin behind or to end at, if there is one."""
        end = self._end
        if end is not None and end.stamp < STAMP_MAX:
            return await barriers.through(end.stamp - 1)
        if self._begin.word != "latest" and (self._follow or end is not None):
            return None
        moment = await barriers.now()
        if self._begin.word == "latest":
            self.pick.floor = moment.stamp + 1
        if not self._follow and end is None:
            self.pick.ceiling = moment.stamp + 1
        return moment

    async def _set_begins(self, places: Places, mine: Sequence[int]) -> None:
        stamp, moment = self._begin.stamp, self._moment
        if moment is not None and self._begin.word == "latest":
            begins = {p: moment.begins.get(p, 0) for p in mine if p not in self.positions}
        else:
            found = await places.positions(stamp, mine)
            new = {p: reply for p, reply in found.items() if p not in self.positions}
            if self._begin.word == "last":
                begins = await self._last(places, new)
            elif stamp:
                # Offsets say nothing of times: whoever goes on at them must get nothing older.
                begins = await exact(places, stamp, new)
            else:
                begins = {p: self._begin.offset(p, reply) for p, reply in new.items()}
        self.positions.update(begins)
        self.found.update(begins)

    async def _last(self, places: Places, new: Mapping[int, PositionsReply]) -> dict[int, int]:
        """Return where the last messages that the reader wants begin, of those before its end."""
        ends = {p: reply.end for p, reply in new.items()}
        if self._moment is not None:
            ends = {p: min(end, self._moment.ends.get(p, 0)) for p, end in ends.items()}
        elif self._end is not None and self._end.offsets is not None:
            given = self._end.offsets
            ends = {p: min(end, given.get(p, end)) for p, end in ends.items()}
        spans = {p: range(reply.start, max(ends[p], reply.start)) for p, reply in new.items()}
        if self.pick.wants_all:
            return {p: max(span.start, span.stop - self._begin.count) for p, span in spans.items()}
        return await last_wanted(places, self.pick, self._begin.count, spans)

    async def _ends(self, places: Places, mine: Sequence[int]) -> dict[int, int]:
        end, moment = self._end or End(), self._moment
        if moment is not None and end.offsets is None:
            # Who joined the order since has nothing before it.
            return {p: moment.ends.get(p, 0) for p in mine}
        # Asked for this very stamp: what is stamped below it lies before the end then.
        found = await places.positions(end.stamp if end.needs_clock else 0, mine)
        return {p: end.offset(p, reply, self._follow) for p, reply in found.items()}

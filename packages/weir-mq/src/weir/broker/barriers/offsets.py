"""Where partitions are cut at a stamp, and whether they have anything new: gathered from those who
lead them.

A barrier says that all at or below a stamp lies below an offset. A replica that has applied
everything below that offset knows exactly where the stamp cuts the partition, whichever node leads
it by now. An entry may hold batches on both sides of the cut: then its headers are looked at,
mostly from memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import msgspec

from weir.broker.forwarding.forwarder import Forwarder
from weir.broker.partition.partition import Partition, PartitionContext
from weir.broker.partition.topics import Topics
from weir.broker.runtime.outbox import Caller
from weir.broker.runtime.session import Session
from weir.codec import Buffer
from weir.errors import Overloaded, Refused
from weir.model.batch import HEADER_SIZE, stored_header
from weir.model.limits import CUTS_AT_ONCE_MAX, PROMISE_EVERY_MS, RETRY_AFTER_MS, WAIT_MS_MAX
from weir.protocol.client.codec import decode_reply
from weir.protocol.client.order import LocatedOffsets, LocateOffsets
from weir.protocol.frame import ClientFrame

#: Somebody else may lead what is missing after so long: then it is asked again.
_ASK_AGAIN_MS = 250
#: How long another shard may look for what it leads before it tells what it found.
_PART_MS = 200
#: How long behind its deadline a wait for news awaits other shards, which tell at theirs.
_LATE_MS = 200


class Located(NamedTuple):
    """What is known of a partition: see `LocatedOffsets`. Of its `lineages`, each has its first
    offset; () where another shard, of an earlier release, does not say them.
    """

    group: int
    start: int
    behind: int
    committed: int
    size: int
    next_stamp: int
    lineages: tuple[tuple[int, int], ...] = ()


class LocationFound(NamedTuple):
    """All that was asked for is found, or the time is up; `error` is why something is not. Of news,
    one is enough; the leaders of `missing` groups have not said that they have none.
    """

    number: int
    found: dict[int, Located]
    missing: set[int]
    error: Refused | None


class _Location(msgspec.Struct, eq=False):
    """What is to be found; `until_ms` is monotonic."""

    number: int
    #: By group, the offset that was read up to, and the one below which all at the stamp lies.
    asked: dict[int, tuple[int, int]]
    stamp: int
    until_ms: int
    news: bool
    #: Whether another node asks: it wants only what this shard leads.
    foreign: bool
    #: Another shard that asks; None: this shard itself.
    caller: Caller | None
    missing: set[int]
    found: dict[int, Located] = msgspec.field(default_factory=dict)
    #: Groups of which an entry is read from the disk just now.
    reading: set[int] = msgspec.field(default_factory=set)
    asked_ms: int = 0
    #: How many other shards have not told yet whether there is news.
    awaited: int = 0
    error: Refused | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing is waited for any more: of news, one is enough."""
        return bool(self.found) if self.news else not self.missing


class OffsetLocator:
    """Finds offsets of partitions for this shard, and for others what it leads."""

    __slots__ = ("_count", "_events", "_forwarder", "_looked_at", "_looked_ms", "_outbox", "_reads",
                 "_time", "_topics", "found", "locations")  # fmt: skip

    def __init__(self, topics: Topics, forwarder: Forwarder, context: PartitionContext) -> None:
        """Look at what `topics` serve here; nobody asks yet."""
        self._topics = topics
        self._forwarder = forwarder
        self._events = context.events
        self._outbox = context.outbox
        self._reads = context.reads
        self._time = context.time
        #: By number.
        self.locations: dict[int, _Location] = {}
        self._count = 0
        #: What had happened here, and when, as somebody looked for news last.
        self._looked_at = -1
        self._looked_ms = -PROMISE_EVERY_MS
        #: What this shard itself asked for, in the order in which it was found.
        self.found: deque[LocationFound] = deque()
        forwarder.listen(self, LocateOffsets)

    def __bool__(self) -> bool:
        return bool(self.locations)

    def locate(
        self, asked: dict[int, tuple[int, int]], stamp: int, until_ms: int, news: bool = False
    ) -> int:
        """Begin to look for partitions, by group, and return the number that `found` tells: for
        where a stamp cuts them, with 0 for their committed ends, or for `news`.
        """
        return self._begin(asked, stamp, until_ms, news, False, None)

    def forget(self, number: int) -> None:
        """Forget a location that no caller waits for any more."""
        self.locations.pop(number, None)

    def ask(self, session: Session, caller: Caller, request: LocateOffsets) -> None:
        """Another shard asks. Raises `Overloaded`."""
        if len(self.locations) >= 2 * CUTS_AT_ONCE_MAX:
            raise Overloaded("too many cuts are resolved: try again shortly", RETRY_AFTER_MS)
        asked = {group: (after, through) for group, after, through in request.asked}
        until_ms = self._time.monotonic_ms() + min(request.wait_ms, WAIT_MS_MAX)
        foreign = session.foreign
        self._begin(asked, request.stamp, until_ms, request.news, foreign, caller)

    def session_closed(self, session: int) -> None:
        """Forget another shard that is gone."""
        gone = [one for one in self.locations.values()
                if one.caller is not None and one.caller.session == session]  # fmt: skip
        for one in gone:
            del self.locations[one.number]

    def answered(self, frame: ClientFrame) -> None:
        """Another shard tells what it leads."""
        location, reply = self.locations.get(frame.correlation), decode_reply(frame)
        if location is None or not isinstance(reply, LocatedOffsets):
            return
        location.awaited -= 1
        lineages: dict[int, tuple[tuple[int, int], ...]] = {}
        for group, lineage, at in reply.lineages:
            lineages[group] = (*lineages.get(group, ()), (lineage, at))
        self._take(location, (Located(*one, lineages.get(one[0], ())) for one in reply.found))
        self._end_if_over(location)

    def look_for_news(self) -> None:
        """See whether something is new here, if anything was applied; not with each event of many,
        for those who wait are not in such a hurry.
        """
        applied = self._events.entries_applied
        now = self._time.monotonic_ms()
        if applied == self._looked_at or now - self._looked_ms < PROMISE_EVERY_MS:
            return
        self._looked_at, self._looked_ms = applied, now
        for location in [one for one in self.locations.values() if one.news]:
            self._look_here(location)
            self._end_if_over(location)

    def check_deadlines(self) -> None:
        """Ask again for what is missing, and end what takes too long."""
        now = self._time.monotonic_ms()
        self._looked_ms = -PROMISE_EVERY_MS  # what was put off is looked at now
        for location in list(self.locations.values()):
            if now >= location.until_ms:
                self._end_late(location, now)
            elif now - location.asked_ms >= _ASK_AGAIN_MS and not location.news:
                self._gather(location)

    # -- looking -----------------------------------------------------------------------------

    def _begin(
        self, asked: dict[int, tuple[int, int]], stamp: int, until_ms: int, news: bool,
        foreign: bool, caller: Caller | None,
    ) -> int:  # fmt: skip
        self._count += 1
        number, missing = self._count, set(asked)
        location = _Location(number, asked, stamp, until_ms, news, foreign, caller, missing)
        self.locations[number] = location
        self._gather(location)
        return number

    def _gather(self, location: _Location) -> None:
        """Look at what is led here, and ask others for the rest."""
        location.asked_ms = now = self._time.monotonic_ms()
        elsewhere = self._look_here(location)
        if location.is_over or location.foreign:
            self._end_if_over(location)
            return
        wait_ms = max(location.until_ms - now, 1) if location.news else _PART_MS
        for place, groups in sorted(self._places(elsewhere).items()):
            asked = [(group, *location.asked[group]) for group in groups]
            request = LocateOffsets(asked, location.stamp, wait_ms, location.news)
            with suppress(Refused):  # it is asked again
                self._forwarder.ask_own(place, request, location.number)
                location.awaited += 1

    def _places(self, groups: Iterable[int]) -> dict[int, list[int]]:
        routes, places = self._forwarder.routes, dict[int, list[int]]()
        for group in groups:
            with suppress(Refused):
                place = routes.toward(group)
                if place != self._forwarder.shard:
                    places.setdefault(place, []).append(group)
        return places

    def _look_here(self, location: _Location) -> list[int]:
        """Find what is led here, as far as no disk is needed; return those led elsewhere."""
        elsewhere: list[int] = []
        for group in sorted(location.missing - location.reading):
            partition = self._topics.find(group)
            if partition is None or not _is_served(partition):
                elsewhere.append(group)
            elif location.news:
                one = _standing(partition)
                if _is_news(one, location.asked[group][0]):
                    location.found[group] = one
                    break  # one is enough
            else:
                self._find(location, partition)
        return elsewhere

    def _find(self, location: _Location, partition: Partition) -> None:
        """Find the end, or where the stamp cuts it, of a partition that is led here."""
        group, state = partition.group, partition.state
        _, through = location.asked[group.id]
        if state.next_offset < through:
            return  # who led it before had applied more: it is on its way here
        if not location.stamp:
            # Another node may lead by now, and may have confirmed something since.
            location.reading.add(group.id)
            group.read(_CommittedEnd(self, location.number, partition))
            return
        reader = group.log.reader
        entry = reader.entry_above(group.id, location.stamp)
        if entry is None:
            self._take(location, [self._located(location, partition, state.next_offset)])
            return
        stored, first = entry
        if first >= through or first >= state.next_offset:
            # All at or below the stamp lies in front of it, so all in it is above.
            behind = min(first, state.next_offset)
            self._take(location, [self._located(location, partition, behind)])
            return
        cached = reader.cache.get(stored.position)
        if cached is not None:
            behind = _cut_within(cached, location.stamp, state.next_offset)
            self._take(location, [self._located(location, partition, behind)])
            return
        reading = reader.read_entries(group.id, [stored.index], 1, group.node.log.applied)
        if reading is not None:
            location.reading.add(group.id)
            self._reads.start(reading, partial(self._read, location.number, partition))

    def committed(self, number: int, partition: Partition, error: Refused | None) -> None:
        """A partition holds all that was confirmed to anybody, or cannot say so now."""
        location, group = self.locations.get(number), partition.group.id
        if location is None:
            return
        location.reading.discard(group)
        if error is not None:
            return  # the present leader is asked
        behind = partition.state.decided_offset
        self._take(location, [self._located(location, partition, behind)])
        self._end_if_over(location)

    def _read(
        self, number: int, partition: Partition, payloads: Sequence[Buffer], failure: Refused | None
    ) -> None:
        """An entry is here that holds batches on both sides of the cut, or cannot be read."""
        location = self.locations.get(number)
        if location is None:
            return
        if failure is not None:
            location.error = failure
            self._end(location)
            return
        behind = _cut_within(payloads, location.stamp, partition.state.next_offset)
        self._take(location, [self._located(location, partition, behind)])
        self._end_if_over(location)

    @staticmethod
    def _located(location: _Location, partition: Partition, behind: int) -> Located:
        group, reader, state = partition.group.id, partition.group.log.reader, partition.state
        start, after = state.log_start, location.asked[group][0]
        # What was read already may lie above the stamp; but what is not there was not read here.
        behind = max(behind, min(after, state.decided_offset))
        first = max(after, start)
        size = reader.bytes_between(group, first, behind)
        size += state.staging.published.stored(first, behind)
        next_stamp = (reader.stamp_of(group, first) or 0) if first < behind else 0
        lineages = state.membership.lineages
        return Located(group, start, behind, state.decided_offset, size, next_stamp, lineages)

    @staticmethod
    def _take(location: _Location, found: Iterable[Located]) -> None:
        for one in found:
            if one.group in location.missing:
                if not location.news or _is_news(one, location.asked[one.group][0]):
                    location.found[one.group] = one
                location.missing.discard(one.group)

    # -- ending ------------------------------------------------------------------------------

    def _end_if_over(self, location: _Location) -> None:
        if location.is_over:
            self._end(location)

    def _end_late(self, location: _Location, now: int) -> None:
        """End what takes too long. Of news, tell what is led here and has none: a partition whose
        leader says nothing may have some.
        """
        quiet: list[Located] = []
        if location.news:
            led = map(self._topics.find, sorted(location.missing))
            quiet = [_standing(one) for one in led if one is not None and _is_served(one)]
        if location.caller is not None:
            location.found |= {one.group: one for one in quiet}
        elif location.news:
            self._take(location, quiet)
            late = location.awaited and now < location.until_ms + _LATE_MS
            if late and location.missing and not location.found:
                return
        self._end(location)

    def _end(self, location: _Location) -> None:
        if self.locations.pop(location.number, None) is None:
            return
        found = location.found
        if location.caller is not None:
            told = [one[:6] for one in found.values()]
            lineages = lineages_of(found.values())
            self._outbox.reply(location.caller, LocatedOffsets(told, lineages))
        else:
            ended = LocationFound(location.number, found, location.missing, location.error)
            self.found.append(ended)


class _CommittedEnd(NamedTuple):
    """A caller that asks for the end of a partition, once it is certain that no other node has led
    since.
    """

    locator: OffsetLocator
    number: int
    partition: Partition

    def readable(self, error: Refused | None) -> None:
        """Take it, or why not."""
        self.locator.committed(self.number, self.partition, error)


def _is_served(partition: Partition) -> bool:
    return partition.leading is not None or partition.group.is_read_as_it_lies


def _standing(partition: Partition) -> Located:
    state = partition.state
    return Located(
        partition.group.id, state.log_start, state.decided_offset, state.decided_offset, 0, 0,
        state.membership.lineages,
    )  # fmt: skip


def lineages_of(found: Iterable[Located]) -> list[tuple[int, int, int]]:
    """Return the lineages of partitions, as they are told."""
    return [(one.group, lineage, at) for one in found for lineage, at in one.lineages]


def _is_news(one: Located, after: int) -> bool:
    """Whether there is more than was read; from the beginning on, more that is still there."""
    return one.behind > (after or one.start)


def _cut_within(payloads: Sequence[Buffer], stamp: int, behind: int) -> int:
    """Return the offset of the first batch of an entry that is stamped above `stamp`; `behind` if
    there is none. The batches lie glued together, or cut behind their headers.
    """
    pieces = iter(payloads)
    for piece in pieces:
        at = 0
        while at < len(piece):
            header = stored_header(piece, at)
            if header.stamp > stamp and header.next_offset > header.first_offset:  # no chunk
                return header.first_offset
            at += header.total_size
        if len(piece) == HEADER_SIZE:
            next(pieces, None)  # its body
    return behind

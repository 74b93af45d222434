"""Simulated readers in total order: they merge all partitions, up to the barriers they are told."""

from __future__ import annotations

from collections.abc import Mapping

from weir.errors import OffsetOutOfRange, RemoteProtocolError, refusal
from weir.model.batch import Batch
from weir.order.barrier import NO_BOUND, Barrier, Merge, Roster
from weir.protocol.client import messages as m
from weir.testing.simulator.network import Link
from weir.testing.simulator.world import MS
from weir_lab.sim.history import Reading
from weir_lab.sim.observations import Row
from weir_lab.sim.programs.program import TOPIC, Client
from weir_lab.sim.programs.scene import Scene

_WAIT_MS = 100
_SIZES = (1, 500, 4_000)
#: What a reader asks for in the end, when it hurries.
_ALL_BYTES = 20_000
_NEXT = (0, 60 * MS)
#: No question for barriers begins sooner after the last one.
_ASK_EVERY = 5 * MS
#: How likely a mark is awaited when barriers are asked for, for how long, and how many at most.
_MARK = 0.5
_MARK_WAITS_MS = (0, 100, 2_000)
_MARKS_MOST = 3
#: So few that a partition that is ahead has to wait.
_HELD_BYTES = (1, 600, 100_000)
#: How likely a fetch goes to any replica.
_REPLICA = 0.5


class Pass:
    """What is merged from where a reader began, until it begins anew."""

    def __init__(self, name: str, count: int, given: Mapping[int, int], bytes_max: int) -> None:
        """Begin with `count` partitions, each behind what was `given` of it."""
        self.roster = Roster(range(count))
        start = {partition: given.get(partition, 0) for partition in range(count)}
        self.merge: Merge[Batch] = Merge(self.roster, start, bytes_max)
        self.reading = Reading(name, dict(given))
        #: Of the batches that wait, the highest stamp.
        self.highest = 0
        #: Whether it was heard which partitions belong to the order.
        self.known = False
        #: The last mark, of how many partitions it was, and the offsets that marks told.
        self.above = self.marked = 0
        self.throughs: dict[int, int] = {}


class OrderReader(Client):
    """Reads all partitions and gives one sequence; as an `ending` one, until there is no more."""

    #: How likely it begins anew after an answer: at the start, or where it was by chance.
    anew = 0.02

    def __init__(self, scene: Scene, name: str) -> None:
        """Begin at offset 0 of each partition."""
        super().__init__(scene, name)
        #: The highest stamp that it received: promises let nothing come below what it gave, anyhow.
        self.heard = 0
        self._bytes_max = scene.world.dice.choice(_HELD_BYTES)
        self._fetching: set[int] = set()
        #: The partitions of which the next fetch comes in a moment.
        self._resting: set[int] = set()
        self._asking = False
        self._last_ask = 0
        #: How many requests for marks are under way.
        self._awaiting = 0
        #: The partitions of which all was received that was committed, since it is `ending`.
        self._ended: set[int] = set()
        #: Offsets from which on nothing was given yet.
        self._given: dict[int, int] = {}
        #: How many partitions belong to the order, and whether that was heard since the beginning.
        self._count = self._told_of = 0
        self._describing = False
        self._begin()

    @property
    def finished(self) -> bool:
        """Whether everything that was committed has been given."""
        return bool(self._count) and len(self._ended) == self._count and not self._pass.merge.held

    def end(self) -> None:
        """Read until there is nothing more."""
        self.ending = True
        self._ended.clear()

    def _begin(self) -> None:
        """Begin anew where nothing was given yet."""
        self._ended.clear()
        self._pass = Pass(self.name, self._count, self._given, self._bytes_max)
        self.history.readings.append(self._pass.reading)

    def ready(self) -> None:
        """Go on with all partitions."""
        self._ask()
        self._fetch_all()

    def closed(self) -> None:
        """Forget what was asked."""
        super().closed()
        self._fetching.clear()
        self._awaiting = 0
        self._asking = self._describing = False
        self._ended.clear()

    # -- batches -------------------------------------------------------------------------------

    def _fetch_all(self) -> None:
        for partition in range(self._count):
            self._fetch(partition)

    def _fetch(self, partition: int) -> None:
        if self.link is None:
            return
        if partition >= len(self.addresses):
            self._describe()
            return
        if partition in self._fetching | self._resting | self._ended:
            return
        if not self._pass.merge.wants(partition):
            return
        dice, merge = self.world.dice, self._pass.merge
        offset = merge.next(partition)
        request = m.Fetch(
            self.addresses[partition],
            offset,
            _ALL_BYTES if self.ending else dice.choice(_SIZES),
            0 if self.ending else dice.choice((0, _WAIT_MS)),
            not self.ending and self.world.chance(_REPLICA),
            equal_stamps=True,
        )
        self._fetching.add(partition)
        self.ask(request, lambda reply: self._fetched(merge, partition, request, reply))

    def _fetched(
        self, merge: Merge[Batch], partition: int, request: m.Fetch, reply: m.Reply
    ) -> None:
        self._fetching.discard(partition)
        if merge is not self._pass.merge:
            pass  # it began anew in the meantime
        elif isinstance(reply, m.Fetched):
            self._take(partition, request, reply)
        elif isinstance(reply, m.Refusal):
            error = refusal(reply.code, reply.message, reply.detail)
            if isinstance(error, OffsetOutOfRange) and self.history.retention_bytes:
                self._moved_up(partition, request.offset, error.detail)
            elif not error.retryable:
                self.complain("Durable", f"fetch of {request} was refused: {error!r}")
        self._resting.add(partition)
        self.world.after(self.rhythm(_NEXT), self._rested, partition)

    def _describe(self) -> None:
        """Ask where those are that have joined."""
        if not self._describing:
            self._describing = True
            self.ask(m.DescribeTopic(TOPIC), self._described)

    def _described(self, reply: m.Reply) -> None:
        self._describing = False
        if isinstance(reply, m.TopicInfo):
            self.addresses = list(reply.addresses)
        self.soon(self._fetch_all)

    def _rested(self, partition: int) -> None:
        self._resting.discard(partition)
        self._fetch(partition)

    def _take(self, partition: int, request: m.Fetch, reply: m.Fetched) -> None:
        found = self.check(partition, reply.batches, request.offset, reply.voids)
        behind = found[-1].header.next_offset if found else request.offset
        # A replica that lags may be asked for what it has not applied; it has nothing to say.
        if behind > reply.next_offset or (found and reply.committed < reply.next_offset):
            self.complain("Honest", f"said up to {reply.next_offset}, gave to {behind}")
        for batch in found:
            self._push(partition, batch)
        self._pass.merge.skip(partition, reply.next_offset)
        if found:
            self._pass.merge.received(partition, found[-1].header.stamp - reply.is_cut)
        self._told_of = max(self._told_of, reply.partitions)
        if self._told_of > self._count:
            self._pass.known = False  # some have joined that may be stamped at or below all this
        if reply.barrier:
            self.history.hand_out(partition, reply.barrier, reply.committed)
            self._pass.merge.barrier(partition, Barrier(reply.barrier, reply.committed))
        if self.ending and not request.replica and reply.next_offset >= reply.committed:
            self._ended.add(partition)
        self._give()

    def _push(self, partition: int, batch: Batch) -> None:
        header = batch.header
        self._pass.merge.skip(partition, header.first_offset)  # what lies before it is void
        offset = self._pass.merge.next(partition)
        if header.next_offset <= offset:
            return
        self._pass.highest = max(self._pass.highest, header.stamp)
        self.heard = max(self.heard, header.stamp)
        behind, size = header.next_offset, header.total_size
        try:
            self._pass.merge.push(partition, header.stamp, offset, behind, size, batch)
        except RemoteProtocolError as error:
            self.complain("BarrierHolds", str(error))

    def _moved_up(self, partition: int, offset: int, start: int) -> None:
        """What was asked for is past retention: begin anew, there in this partition."""
        if start <= offset:
            self.complain("Durable", f"{offset} was there and is not: {start} is said to be")
        self._given[partition] = start
        self._begin()
        self._ask()

    def _give(self) -> None:
        """Take what nothing can come in front of, if it is known who counts."""
        if not self._pass.known:
            self._ask()
            return
        barrier, complete = self._pass.roster.barrier, self.history.complete
        if barrier < NO_BOUND:
            counted = frozenset(range(self._count))
            complete[counted] = max(barrier, complete.get(counted, 0))
        for stamp, partition, offset, _, batch in self._pass.merge.take():
            first, values = batch.header.first_offset, batch.values()
            for place in range(offset, batch.header.next_offset):
                self._pass.reading.rows.append(Row(stamp, partition, place, values[place - first]))
            self._given[partition] = batch.header.next_offset
        if not self.ending and self._pass.reading.rows and self.world.chance(self.anew):
            part = self.world.dice.choice((0.0, self.world.dice.random()))
            starts = self.history.starts
            self._given = {p: max(starts.get(p, 0), int(o * part)) for p, o in self._given.items()}
            self._begin()
            self._ask()
        self._fetch_all()
        if self._pass.merge.held:
            self._ask()

    # -- barriers ------------------------------------------------------------------------------

    def _ask(self) -> None:
        """Ask how far the order is complete, if it has to be known."""
        if self.link is None or self._asking or not self.addresses:
            return
        self._asking = True
        wait = max(self.rhythm(_NEXT), self._last_ask + _ASK_EVERY - self.world.now)
        self.world.after(wait, self._ask_now, self.link)

    def _ask_now(self, link: Link | None) -> None:
        if link is not self.link or self.link is None:
            return
        self._last_ask = self.world.now
        merge, topic = self._pass.merge, self.addresses[0].group >> 16
        if self._pass.known and self._awaiting < _MARKS_MOST and self.world.chance(_MARK):
            self._await_mark(topic)
        stamp = self._pass.highest if self._pass.known and merge.held else 0
        wait_ms = self.world.dice.choice((0, _WAIT_MS))
        self.ask(m.AskBarriers(topic, stamp, wait_ms), lambda reply: self._told(merge, reply))

    def _told(self, merge: Merge[Batch], reply: m.Reply) -> None:
        self._asking = False
        if isinstance(reply, m.Barriers):
            for partition, stamp, through in reply.registers:
                if stamp:
                    self.history.hand_out(partition, stamp, through)
            for end in reply.ends:
                self.history.end(*end)
            if merge is self._pass.merge:
                self._count_in(reply)
                for partition, stamp, through in reply.registers:
                    merge.barrier(partition, Barrier(stamp, through))
                    if through > merge.next(partition):
                        self._ended.discard(partition)  # it said so when some was undecided
                for partition, stamp, through in reply.ends:
                    self._pass.roster.end(partition, stamp)
                    merge.barrier(partition, Barrier(stamp, through))
                self._give()
        elif not isinstance(reply, m.Refusal) or not refusal(reply.code, "").retryable:
            self.complain("Live", f"barriers were refused: {reply}")
        if self._pass.merge.held or not self._pass.known:
            self._ask()

    def _await_mark(self, topic: int) -> None:
        """Ask for the next mark, of what is waited for or of what comes next."""
        passing, dice = self._pass, self.world.dice
        stamp = passing.highest if passing.merge.held and self.world.chance(0.5) else 0
        request = m.AwaitMark(topic, passing.above, stamp, dice.choice(_MARK_WAITS_MS))
        marked, link = passing.marked, self.link
        self._awaiting += 1

        def answered(reply: m.Reply) -> None:
            if link is self.link:
                self._awaiting -= 1
            self._marked(passing, request, marked, reply)

        self.ask(request, answered)

    def _marked(self, passing: Pass, request: m.AwaitMark, marked: int, reply: m.Reply) -> None:
        """Use a mark that was asked for while the last one was of `marked` partitions."""
        if not isinstance(reply, m.OrderMark) or passing is not self._pass:
            return
        count = reply.partitions
        if count > len(passing.roster):
            passing.known = False  # some have joined: who, barriers tell
            self._ask()
            return
        if request.above and {count, marked, passing.marked} != {passing.marked}:
            if count > passing.marked:
                passing.above, passing.marked = 0, count
            return
        if reply.stamp <= passing.above or count < passing.marked:
            return
        for partition, through in reply.throughs:
            passing.throughs[partition] = max(through, passing.throughs.get(partition, 0))
        for partition in range(count):
            through = passing.throughs.get(partition, 0)
            # What it leaves out lies below what earlier marks told.
            self.history.hand_out(partition, reply.stamp, through)
            passing.merge.barrier(partition, Barrier(reply.stamp, through))
        passing.above, passing.marked = reply.stamp, count
        self._give()

    def _count_in(self, reply: m.Barriers) -> None:
        """Take those that joined since, and begin to read them. The answer may not know of all."""
        floors = dict(reply.roster)
        for partition in sorted(register[0] for register in reply.registers):
            if partition not in self._pass.roster:
                self._pass.roster.join(partition, floors.get(partition, 0))
                self._pass.merge.add(partition, self._given.get(partition, 0))
        self._count = len(self._pass.roster)
        self._pass.known = self._count >= self._told_of
        self._fetch_all()

"""Simulated queries that read a topic portion after portion, each up to a cut that the broker has
resolved.
"""

from __future__ import annotations

from weir.model.batch import Batch
from weir.protocol.client import messages as m
from weir.testing.simulator.world import MS
from weir_lab.sim.history import Reading
from weir_lab.sim.observations import Row
from weir_lab.sim.programs.program import TOPIC, Client
from weir_lab.sim.programs.scene import Scene

_NEXT = (0, 100 * MS)
_AGAIN = (0, 20 * MS)
_BYTES = 20_000
_WAITS_MS = (0, 0, 20, 200)
_ROWS = (0, 1, 3, 10, 30)


class Planner(Client):
    """Asks for the next cut, reads what lies before it, and asks again, over any connection.

    What it has read is a beginning of the one order whenever it is at a cut; what was confirmed to
    anybody before it asked for the latest one is in that.
    """

    def __init__(self, scene: Scene, name: str) -> None:
        """Have read nothing."""
        super().__init__(scene, name)
        #: How manieth connection and cut this is: answers to others mean nothing.
        self._cut = 0
        self._stamp = 0
        #: By partition, how far it has read: up to the last cut, and in the portion under way.
        self._read: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        self._portion: list[Row] = []
        self._reading = Reading(name, {})
        self.history.readings.append(self._reading)

    def closed(self) -> None:
        """Go on behind the last cut with the next connection."""
        super().closed()
        self._cut += 1

    def ready(self) -> None:
        """Ask for a cut in a while."""
        self.world.after(self.rhythm(_NEXT), self._ask, self.link)

    def _ask(self, link: object) -> None:
        if self.link is None or link is not self.link or self.ending:
            return
        self._cut += 1
        cut, dice = self._cut, self.world.dice
        topic = self.addresses[0].group >> 16
        latest = self.world.chance(0.2)
        request = m.ResolveCut(
            [TOPIC],
            [m.TopicPositions(topic, sorted(self._read.items()))] if self._read else [],
            self._stamp,
            rows_max=0 if latest else dice.choice(_ROWS),
            wait_ms=0 if latest else dice.choice(_WAITS_MS),
            latest=latest,
        )
        asked = self.world.now if latest else -1
        self.ask(request, lambda reply: self._told(cut, asked, reply))

    def _told(self, cut: int, asked: int, reply: m.Reply) -> None:
        if cut != self._cut:
            return
        if not isinstance(reply, m.ResolvedCut) or not reply.topics:
            self.ready()
            return
        (topic,) = reply.topics
        if any(start > self._read.get(p, 0) for p, start in enumerate(topic.starts)):
            self._begin_anew(dict(enumerate(topic.ends)), reply.stamp)  # retention was quicker
            return
        self.addresses = list(topic.info.addresses)
        self._ends = dict(enumerate(topic.ends))
        self._portion = []
        self._fetch(cut, reply.stamp, asked, 0, self._read.get(0, 0))

    def _begin_anew(self, read: dict[int, int], stamp: int) -> None:
        """Go on from a cut, as if it were the beginning."""
        self._read, self._stamp = read, stamp
        # Where retention went on, a partition begins behind what is stamped above the cut.
        self._reading = Reading(self.name, dict(read), after=stamp)
        self.history.readings.append(self._reading)
        self.ready()

    def _fetch(self, cut: int, stamp: int, asked: int, partition: int, offset: int) -> None:
        if cut != self._cut or self.link is None:
            return
        if partition not in self._ends:
            self._at_cut(stamp, asked)
        elif offset >= self._ends[partition]:
            self._fetch(cut, stamp, asked, partition + 1, self._read.get(partition + 1, 0))
        else:
            request = m.Fetch(
                self.addresses[partition], offset, _BYTES, _WAITS_MS[-1], equal_stamps=True
            )
            self.ask(
                request, lambda reply: self._fetched(cut, stamp, asked, partition, offset, reply)
            )

    def _fetched(
        self, cut: int, stamp: int, asked: int, partition: int, offset: int, reply: m.Reply
    ) -> None:
        if isinstance(reply, m.Fetched):
            found: list[Batch] = self.check(partition, reply.batches, offset, reply.voids)
            self._portion += [
                Row(batch.header.stamp, partition, place, value)
                for batch in found
                for place, value in enumerate(batch.values(), batch.header.first_offset)
                if offset <= place < self._ends[partition]
            ]
            self._fetch(cut, stamp, asked, partition, max(reply.next_offset, offset))
        elif isinstance(reply, m.Refusal) and self.history.retention_bytes:
            self._begin_anew(self._ends, stamp)
        else:
            again = self.world.between(*_AGAIN)
            self.world.after(again, self._fetch, cut, stamp, asked, partition, offset)

    def _at_cut(self, stamp: int, asked: int) -> None:
        """Note what has been read: portion after portion, each in the one order by itself."""
        for row in self._portion:
            if not self._stamp < row.stamp <= stamp:
                self.complain("OneOrder", f"{row} lies between the cuts {self._stamp} and {stamp}")
        for partition, end in self._ends.items():  # now it is known what of that is void
            self.history.hand_out(partition, stamp, end)
        rows = self._reading.rows
        rows += sorted(self._portion)
        self._read, self._stamp = self._ends, stamp
        if asked >= 0 and not self._reading.after:
            self.history.readings.append(Reading(self.name, {}, [*rows], cut=asked))
        self.ready()

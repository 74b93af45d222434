"""Simulated readers that end at a cut, as `follow=False` does: all that was there, and no more. Or
they begin at one, as `start="latest"` does: all that came since.
"""

from __future__ import annotations

from weir.model.batch import Batch
from weir.protocol.client import messages as m
from weir.testing.simulator.world import MS
from weir_lab.sim.history import Reading
from weir_lab.sim.observations import Row
from weir_lab.sim.programs.program import TOPIC, Client
from weir_lab.sim.programs.scene import Scene

_WAIT_MS = 100
_NEXT = (0, 400 * MS)
_AGAIN = (0, 20 * MS)
_BYTES = 20_000


class Cutter(Client):
    """Asks how far each partition is complete, then again at the highest stamp of all answers; what
    lies at or below that stamp is a piece of the one order from its beginning on. What lies above
    it is the rest, and nothing of that lies below the offsets of the first answers.
    """

    def __init__(self, scene: Scene, name: str) -> None:
        """Cut again and again."""
        super().__init__(scene, name)
        #: How manieth connection and cut this is: answers to others mean nothing.
        self._cut = 0
        self._rows: list[Row] = []
        self._ends: dict[int, int] = {}
        self._stamp = 0
        #: Where a reader of all behind this cut begins; and stamp and begins of the cut before.
        self.begins: dict[int, int] = {}
        self._before: tuple[int, dict[int, int]] | None = None

    def closed(self) -> None:
        """Drop the cut: the next connection begins another one."""
        super().closed()
        self._cut += 1

    def ready(self) -> None:
        """Begin a cut in a while."""
        self.world.after(self.rhythm(_NEXT), self._begin, self.link)

    def _begin(self, link: object) -> None:
        if self.link is None or link is not self.link or self.ending:
            return
        self._cut += 1
        self._rows = []
        self._ask(self._cut, 0)

    def _ask(self, cut: int, stamp: int) -> None:
        if cut == self._cut and self.link is not None and not self.ending:
            topic = self.addresses[0].group >> 16
            request = m.AskBarriers(topic, stamp, _WAIT_MS)
            self.ask(request, lambda reply: self._told(cut, stamp, reply))

    def _told(self, cut: int, stamp: int, reply: m.Reply) -> None:
        if not isinstance(reply, m.Barriers) or not reply.reached:
            self.world.after(self.world.between(*_AGAIN), self._ask, cut, stamp)
            return
        if not stamp:
            self.first_told(cut, reply)
            return
        self._read(cut, stamp, reply)

    def first_told(self, cut: int, reply: m.Barriers) -> None:
        """Ask for all at the stamp that the one which is furthest has reached."""
        self.begins = {partition: through for partition, _, through in reply.registers}
        self._ask(cut, max(stamp for _, stamp, _ in reply.registers))

    def _read(self, cut: int, stamp: int, reply: m.Barriers) -> None:
        self._stamp = stamp
        self._ends = {partition: through for partition, _, through in reply.registers}
        self.again_told(reply)
        if max(self._ends) >= len(self.addresses):
            self.ask(m.DescribeTopic(TOPIC), self._described)
            self.ready()
            return
        self._fetch(cut, 0, 0)

    def again_told(self, reply: m.Barriers) -> None:
        """Begin nowhere else for that: messages above the stamp may lie below these offsets."""

    def _described(self, reply: m.Reply) -> None:
        if isinstance(reply, m.TopicInfo):
            self.addresses = list(reply.addresses)

    def _fetch(self, cut: int, partition: int, offset: int) -> None:
        if cut != self._cut or self.link is None:
            return
        if partition not in self._ends:
            rows = sorted(row for row in self._rows if row.stamp <= self._stamp)
            self.history.readings.append(Reading(self.name, {}, rows))
            if self._before is not None:
                self._since(rows, *self._before)
            self._before = self._stamp, self.begins
            self.ready()
        elif offset >= self._ends[partition]:
            self._fetch(cut, partition + 1, 0)
        else:
            request = m.Fetch(
                self.addresses[partition], offset, _BYTES, _WAIT_MS, equal_stamps=True
            )
            self.ask(request, lambda reply: self._fetched(cut, partition, offset, reply))

    def _fetched(self, cut: int, partition: int, offset: int, reply: m.Reply) -> None:
        if isinstance(reply, m.Fetched):
            found: list[Batch] = self.check(partition, reply.batches, offset, reply.voids)
            for batch in found:
                header = batch.header
                self._rows += [
                    Row(header.stamp, partition, place, value)
                    for place, value in enumerate(batch.values(), header.first_offset)
                ]
            self._fetch(cut, partition, max(reply.next_offset, offset))
        elif isinstance(reply, m.Refusal) and self.history.retention_bytes:
            self.ready()  # its beginning is gone
        else:
            self.world.after(self.world.between(*_AGAIN), self._fetch, cut, partition, offset)

    def _since(self, rows: list[Row], stamp: int, begins: dict[int, int]) -> None:
        """Note what a reader has that began at the cut before, at "latest", and read until now."""
        news = [r for r in rows if r.stamp > stamp and r.offset >= begins.get(r.partition, 0)]
        self.history.readings.append(Reading(f"{self.name} from latest", {}, news, after=stamp))

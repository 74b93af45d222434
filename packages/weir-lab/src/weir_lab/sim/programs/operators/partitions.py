"""Simulated operators that add a partition to a topic, or end one, while others use it."""

from __future__ import annotations

from weir.errors import refusal
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m
from weir.testing.simulator.world import MS
from weir_lab.sim.programs.program import TOPIC, Client
from weir_lab.sim.programs.publishers.producers import Producer

_BEGIN = (50 * MS, 400 * MS)
#: How likely it asks once more for what has ended, each time.
_AGAIN = 0.3


class Grower(Client):
    """Gives the topic one more partition, some time after the beginning."""

    _grown = False

    @property
    def finished(self) -> bool:
        """Whether it is there."""
        return self._grown

    def ready(self) -> None:
        """Ask, or ask again."""
        if not self._grown:
            self.world.after(self.rhythm(_BEGIN), self._grow)

    def _grow(self) -> None:
        self.ask(a.AlterTopic(TOPIC, partitions=self.scene.partitions + 1), self._altered)

    def _altered(self, reply: m.Reply) -> None:
        if isinstance(reply, m.TopicInfo):
            self._grown = len(reply.addresses) > self.scene.partitions
        elif isinstance(reply, m.Refusal) and not refusal(reply.code, "").retryable:
            self.complain("Live", f"a topic cannot grow: {reply}")
        self.ready()


class Newcomer(Producer):
    """Publishes into the partition that is new, once it is there."""

    def ready(self) -> None:
        """Look for the partition first."""
        if self._partition < len(self.addresses):
            super().ready()
        elif not self.ending:
            self.ask(m.DescribeTopic(TOPIC), self._described)

    def _described(self, reply: m.Reply) -> None:
        if isinstance(reply, m.TopicInfo):
            self.addresses = list(reply.addresses)
        self.retry(self.ready)


class Ender(Client):
    """Ends the last of the partitions that the topic was made with, some time after the beginning;
    now and then it asks again, and is to be told the same.
    """

    _ended = False

    @property
    def finished(self) -> bool:
        """Whether it has ended."""
        return self._ended

    def ready(self) -> None:
        """Ask, or ask again."""
        if not self._ended:
            self.world.after(self.rhythm(_BEGIN), self._end)

    def _end(self) -> None:
        self.ask(a.EndPartition(TOPIC, self.scene.partitions - 1), self._told)

    def _told(self, reply: m.Reply) -> None:
        if isinstance(reply, m.TopicInfo):
            stamp = dict(reply.ends).get(self.scene.partitions - 1, 0)
            if stamp:
                self.history.end(self.scene.partitions - 1, stamp)
            else:
                self.complain("Honest", f"said to have ended, and has not: {reply}")
            self._ended = True
            if not self.ending and self.world.chance(_AGAIN):
                self.world.after(self.rhythm(_BEGIN), self._end)
        elif isinstance(reply, m.Refusal) and not refusal(reply.code, "").retryable:
            self.complain("Live", f"a partition cannot end: {reply}")
        self.ready()

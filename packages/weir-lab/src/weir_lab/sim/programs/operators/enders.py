"""Simulated operators that end a partition while others publish to it and read it."""

from __future__ import annotations

from weir.errors import refusal
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m
from weir.testing.simulator.world import MS
from weir_lab.sim.programs.program import TOPIC, Client

_BEGIN = (50 * MS, 400 * MS)
#: How likely it asks once more for what has ended, each time.
_AGAIN = 0.3


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

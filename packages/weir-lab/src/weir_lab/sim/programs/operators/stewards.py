"""A simulated steward of a set: it moves leaders, takes nodes out of use and into it again, and
raises the format level as soon as it may.
"""

from __future__ import annotations

from weir.errors import refusal
from weir.model.limits import FORMAT_LEVEL
from weir.protocol.client import messages as m
from weir.protocol.client import nodes as n
from weir.testing.simulator.world import MS
from weir_lab.sim.programs.program import Client
from weir_lab.sim.programs.scene import Scene

_NEXT = (5 * MS, 60 * MS)
_TRANSFER = 0.4
_RAISE = 0.2


class Steward(Client):
    """Changes one thing at a time; in the end every node is in use."""

    def __init__(self, scene: Scene, name: str, drains: bool) -> None:
        """Drain nodes only if told so: groups must find room on the others."""
        super().__init__(scene, name)
        self._drains = drains
        #: The node that is out of use, or may be; 0 for none.
        self._out = 0
        self._busy = False

    @property
    def finished(self) -> bool:
        """Whether every node is in use, and nothing is under way."""
        return not self._out and not self._busy

    def ready(self) -> None:
        """Go on with what comes next."""
        self._later()

    def closed(self) -> None:
        """What was asked may or may not have happened."""
        super().closed()
        self._busy = False

    def _later(self) -> None:
        self.world.after(self.rhythm(_NEXT), self._act, self.link)

    def _act(self, link: object) -> None:
        if link is not self.link or self.link is None or self._busy or self.retired:
            return
        if self.ending and not self._out:
            return
        self._busy = True
        dice, nodes = self.world.dice, list(self.scene.brokers.hosts)
        if not self.ending and self.world.chance(_RAISE):
            self.ask(n.RaiseLevel(FORMAT_LEVEL + 1), self._changed)
        elif not self.ending and (not self._drains or self.world.chance(_TRANSFER)):
            address = dice.choice(self.addresses)
            self.ask(n.TransferLeader(address, dice.choice(nodes)), self._changed)
        elif self._out:
            self.ask(n.ChangeNode("active", self._out), self._activated)
        else:
            self._out = dice.choice(nodes)
            self.ask(n.ChangeNode("drain", self._out), self._changed)

    def _compare(self, level: int) -> None:
        """A level is raised when all nodes can read it, and for good."""
        if level < self.history.level:
            self.complain("Durable", f"format level {self.history.level} was raised, {level} is")
        self.history.level = max(level, self.history.level)
        for host in self.scene.brokers.all:
            if host.level < level:
                self.complain("Honest", f"format level {level} is, which node {host.node} lacks")

    def _activated(self, reply: m.Reply) -> None:
        if isinstance(reply, n.NodeList):
            self._out = 0
        self._changed(reply)

    def _changed(self, reply: m.Reply) -> None:
        self._busy = False
        if isinstance(reply, n.NodeList):
            self._compare(reply.level)
        if isinstance(reply, m.Refusal):
            self.world.note("steward", str(refusal(reply.code, reply.message, reply.detail)))
        self._later()

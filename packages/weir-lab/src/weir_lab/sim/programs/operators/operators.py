"""A simulated operator: seeks, pauses and deletes a cluster while its consumers are at work."""

from __future__ import annotations

from weir.errors import ClusterInUse, OffsetOutOfRange, UnknownCluster, refusal
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m
from weir.testing.simulator.world import MS
from weir_lab.sim.history import Seek
from weir_lab.sim.programs.program import Client
from weir_lab.sim.programs.scene import Scene

_NEXT = (20 * MS, 300 * MS)
_PAUSED = (5 * MS, 120 * MS)
_PAUSE = 0.3
_DELETE = 0.3
_LAST = 4
#: How far back or ahead a seek goes, of what the partition holds.
_PLACES = (0.0, 0.3, 0.8, 1.0)


class Operator(Client):
    """Steers one cluster in one partition, one change at a time."""

    def __init__(
        self,
        scene: Scene,
        name: str,
        partition: int,
        cluster: str,
    ) -> None:
        """Change nothing yet."""
        super().__init__(scene, name)
        self._partition = partition
        self._cluster = cluster
        #: Whether the cluster may be paused: it must not stay so.
        self._paused = False
        self._busy = False
        self._seek: Seek | None = None
        self._deleting = False
        #: Seeks to make while it ends, when consumers are at work and no fault hides what comes.
        self._last = _LAST

    @property
    def finished(self) -> bool:
        """Whether the cluster goes on, and nothing is under way or to come."""
        return not self._paused and not self._busy and not self._last

    def ready(self) -> None:
        """Undo a pause whose end was not heard of; else go on in a while."""
        if self._paused:
            self._resume()
        elif not self.ending and self.world.chance(_DELETE):
            self._busy = True  # before the consumers are back
            self._delete(0)
        else:
            self._later()

    def closed(self) -> None:
        """What was asked may or may not have happened, or still happen in a moment."""
        super().closed()
        self._busy = False
        self._seek = None

    def _later(self) -> None:
        if self.ending:
            self.soon(self._act, self.link)
        else:
            self.world.after(self.rhythm(_NEXT), self._act, self.link)

    def _act(self, link: object) -> None:
        if link is not self.link or self.link is None or self._busy:
            return
        if self.ending and not self._last:
            return
        self._busy = True
        address = self.addresses[self._partition]
        if not self.ending and self.world.chance(_PAUSE):
            self._paused = True
            self.ask(a.PauseCluster(address, self._cluster), self._changed)
        else:
            self.ask(m.Positions(address), self._look)

    def _look(self, reply: m.Reply) -> None:
        if not isinstance(reply, m.PositionsReply):
            self._changed(reply)
            return
        if not self.ending and self.world.chance(_DELETE):
            self._delete(reply.start)
            return
        part = self.world.dice.choice(_PLACES)
        offset = reply.start + int((reply.end - reply.start) * part)
        seek = Seek(self._partition, self._cluster, offset, self.world.now)
        self.history.seeks.append(seek)
        self._seek = seek
        address = self.addresses[self._partition]
        self.ask(a.SeekCluster(address, self._cluster, offset), self._changed)

    def _delete(self, start: int) -> None:
        """What comes to be known of the cluster afterwards begins at the log's start."""
        self._seek = Seek(self._partition, self._cluster, start, self.world.now)
        self.history.seeks.append(self._seek)
        self._deleting = True
        self.ask(a.DeleteCluster(self.addresses[self._partition], self._cluster), self._changed)

    def _changed(self, reply: m.Reply) -> None:
        self._busy = False
        seek, self._seek = self._seek, None
        unknown = False
        if isinstance(reply, m.Refusal):
            error = refusal(reply.code, reply.message, reply.detail)
            gone = isinstance(error, OffsetOutOfRange) and self.history.retention_bytes
            busy = self._deleting and isinstance(error, ClusterInUse | UnknownCluster)
            if not error.retryable and not gone and not busy:
                self.complain("Honest", f"a change was refused: {error!r}")
            # It was passed on, perhaps, to a shard that is gone now.
            unknown = error.retryable and self.scene.brokers.divided
        self._deleting = False
        if seek is not None:
            seek.settled = self.world.now
            seek.done = isinstance(reply, a.ClusterChanged)
            if not seek.done and not unknown:
                self.history.seeks.remove(seek)  # one that was refused changed nothing
            elif seek.done and self.ending and self._last:
                self._last -= 1
                # A pause that had no answer may have come behind the word that ended it.
                self._paused = not self._last
        if self._paused:
            self.world.after(self.world.between(*_PAUSED), self._resume)
        else:
            self._later()

    def _resume(self) -> None:
        if self.link is None or self._busy or not self._paused:
            return
        self._busy = True
        address = self.addresses[self._partition]
        self.ask(a.PauseCluster(address, self._cluster, False), self._resumed)

    def _resumed(self, reply: m.Reply) -> None:
        self._busy = False
        if isinstance(reply, a.ClusterChanged):
            self._paused = False
            self._later()
        else:
            self.soon(self._resume)

"""Simulated consumers of clusters that keep order: keyed, or ordered."""

from __future__ import annotations

from typing import ClassVar

from weir.model.topic import Mode
from weir.testing.simulator.network import Link
from weir.testing.simulator.world import MS
from weir_lab.sim.history import Grant
from weir_lab.sim.programs.subscribers.readers import LEASE_MS_MAX, Consumer

_STALL = 0.1
_GIVE_BACK = 0.1
_PARTS = 0.3
_NOTHING = 1 << 62


class KeyedConsumer(Consumer):
    """Does what others do, in a cluster that is keyed."""

    mode: ClassVar[Mode] = Mode.KEYED


class OrderedConsumer(Consumer):
    """Does one thing after the other; now and then it stands still, and goes on as if it had not.

    Its successor must have begun where it stopped, whatever it acks then.
    """

    mode: ClassVar[Mode] = Mode.ORDERED

    @property
    def finished(self) -> bool:
        """Whether nothing is left to be done, nor to be granted."""
        return super().finished and not self._work

    def opened(self) -> None:
        """Begin a new connection with nothing in hand."""
        self._work: list[Grant] = []
        #: What it gave back has to come again before anything behind it, for a while.
        self._gave_back, self._return = _NOTHING, 0
        # A holder that is deposed loses all it holds, before its leases are over.
        self._knows_leases = False
        super().opened()

    def closed(self) -> None:
        """All that was in hand goes to another."""
        super().closed()
        self._work = []
        self._gave_back = _NOTHING

    def _handle(self, grant: Grant) -> None:
        if grant.first > self._gave_back and self.history.returns[self._return].confirmed < 0:
            # It was on its way, or what is given back is not taken back. At the end, too: what it
            # only dropped would stay with it, and it would go on behind that (one-node seed 1802).
            self.ending_since = max(self.ending_since, self.world.now)
            self._hands.give_back(grant, grant.first, grant.behind)
            return
        self._gave_back = _NOTHING
        self._work.append(grant)
        if len(self._work) == 1:
            self.soon(self._proceed, self.link)

    def _proceed(self, link: Link | None) -> None:
        """Begin with the next grant in hand."""
        if link is not self.link or not self._work:
            return
        stall = self.world.dice.randrange(2 * LEASE_MS_MAX * MS)
        if not self.ending and self.world.chance(_STALL):
            self.world.after(stall, self._do, link)
        else:
            self._do(link)

    def _do(self, link: Link | None) -> None:
        if link is not self.link or not self._work:
            return
        grant = self._work.pop(0)
        middle = self.world.dice.randrange(grant.first, grant.behind)
        if not self.ending and self.world.chance(_GIVE_BACK):
            # All behind it goes with it, and goes back by itself: another may have done what it
            # gives back, and then nothing else is taken from it. What came again of before it is
            # to be done.
            for behind in reversed([one for one in self._work if one.first >= middle]):
                self._hands.give_back(behind, behind.first, behind.behind)
            self._work = [one for one in self._work if one.first < middle]
            self._ack(grant, grant.first, middle)
            self._hands.give_back(grant, middle, grant.behind)
            self._gave_back, self._return = middle, len(self.history.returns) - 1
            self.world.after(2 * LEASE_MS_MAX * MS, self._forget, middle)
        elif self.world.chance(_PARTS):
            self._ack(grant, grant.first, middle)
            self._ack(grant, middle, grant.behind)
        else:
            self._ack(grant, grant.first, grant.behind)
        self.soon(self._proceed, link)

    def _forget(self, offset: int) -> None:
        """Another has done by now what was given back, or it comes in its turn."""
        if self._gave_back == offset:
            self._gave_back = _NOTHING

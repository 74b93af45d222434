"""A host whose leader stamps and promises: the rule of barriers beside a real Raft node."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import replace

import weir_raft as raft
from weir.broker.barriers.barriers import Promises
from weir.order.barrier import Barrier, Bound, barrier_at
from weir.order.clock import HighestStamp, HybridClock, stamp_at
from weir_raft.testing.actor import Actor
from weir_raft.testing.checks import Checks

#: When the world begins, so that no clock of it is ever below 0.
EPOCH_MS = 10_000_000


class BarrierChecks(Checks):
    """Raft's properties and *BarrierHolds*: what a barrier says stays true under any leader."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        #: By the offset it goes through, the highest stamp that anybody handed out with it.
        self.handed: dict[int, int] = {}
        #: Of every committed entry that has a stamp.
        self.stamps: dict[int, int] = {}
        #: How many barriers lay above the last committed stamp: those that promises alone allow.
        self.promised = 0
        self._last = 0

    def hand_out(self, barrier: Barrier) -> None:
        """A reader may be told this from here on."""
        self.handed[barrier.through] = max(barrier.stamp, self.handed.get(barrier.through, 0))
        self.promised += barrier.stamp > self.stamps.get(barrier.through - 1, 0)
        for index in range(barrier.through, self._last + 1):
            if index in self.stamps:
                self._hold(index, self.stamps[index], barrier.through, barrier.stamp)

    def stamped(self, index: int, stamp: int) -> None:
        """An entry is committed."""
        self.stamps[index] = stamp
        self._last = max(self._last, index)
        for through, barrier in self.handed.items():
            self._hold(index, stamp, through, barrier)

    def _hold(self, index: int, stamp: int, through: int, barrier: int) -> None:
        assert index < through or stamp > barrier, (
            f"{self._name}: entry {index} is stamped {stamp}, and barrier {barrier} was handed out "
            f"through {through}"
        )


class _Watch:
    """The time as an actor sees it."""

    def __init__(self, actor: OrderedActor) -> None:
        self._actor = actor

    def wall_ms(self) -> int:
        """Its own clock, which jumps."""
        return self._actor.wall_ms

    def monotonic_ms(self) -> int:
        """How much time has passed for it."""
        return self._actor.passed_ms


class OrderedActor(Actor):
    """A host with a clock of its own, a bound on its disk, and entries that have stamps."""

    def __init__(
        self,
        config: raft.Config,
        checks: BarrierChecks,
        post: Callable[[Iterable[raft.Message]], None],
        kept_entries: int,
        post_link: Callable[[int, int, raft.LinkMessage], None],
    ) -> None:
        super().__init__(config, checks, post, kept_entries, post_link)
        self._barriers = checks
        self.wall_ms = EPOCH_MS
        self.passed_ms = 0
        self._syncs = 0
        #: Bounds become durable with every so manieth write of other things.
        self.syncs_a_bound = 4
        self._durable_bound = 0

    def start(self) -> None:
        """Come up: what may have been promised in the last life is all that its bound allowed."""
        self._config = replace(self._config, fence=self._durable_bound)
        self.bound = Bound(self._durable_bound)
        self._bounds: list[int] = []
        self.highest = HighestStamp()
        self.clock = HybridClock(highest=self.highest)
        #: Of the entries of its log that have stamps, and that of its state.
        self.tail: dict[int, int] = {}
        self.last_stamp = 0
        super().start()
        for index in range(self.node.log.first_index, self.disk.last_index() + 1):
            self.keeps(self.disk.entries(index, index + 1, 1 << 30)[0])
        self._promises = Promises(self.multi, self.highest, (self,), _Watch(self))
        self.multi.fence_bound = self._durable_bound

    def extend_bound(self) -> None:
        """Write how far promises may go, unless there is enough in hand."""
        if extension := self.bound.extension(self.wall_ms):
            self._bounds.append(extension)

    def tick(self, elapsed_ms: int) -> None:
        """Let time pass, on its own clock too."""
        self.wall_ms += elapsed_ms
        self.passed_ms += elapsed_ms
        self.extend_bound()
        super().tick(elapsed_ms)
        self._promises.pursue()

    def sync(self, count: int) -> None:
        """Make writes durable; bounds later than all else, for nothing waits for them."""
        super().sync(count)
        self._syncs += 1
        if self._syncs % self.syncs_a_bound == 0:
            for bound in self._bounds:
                self._durable_bound = max(self._durable_bound, bound)
                self.bound.written(bound)
            self._bounds.clear()
        self.multi.fence_bound = self.bound.durable

    def crash(self, dice: random.Random) -> None:
        """Lose what is not synced: perhaps a bound that is on its way."""
        if self._bounds and dice.random() < 0.5:
            self._durable_bound = max(self._durable_bound, self._bounds[0])
        super().crash(dice)

    # Stamps

    def leads(self, leadership: raft.Leadership) -> None:
        """Stamp above the log, and above what anybody was promised."""
        last = max(self.last_stamp, leadership.fence, *self.tail.values(), 0)
        self.clock = HybridClock(last, self.highest)

    def keeps(self, entry: raft.Entry) -> None:
        """Know the stamps of the log."""
        for index in [index for index in self.tail if index >= entry.index]:
            del self.tail[index]
        if entry.kind is raft.EntryKind.NORMAL:
            assert isinstance(entry.data, tuple)
            self.tail[entry.index] = entry.data[1]

    def applies(self, entry: raft.Entry) -> None:
        """Tell the checks of a stamp that is committed now."""
        if entry.kind is raft.EntryKind.NORMAL:
            assert isinstance(entry.data, tuple)
            self.last_stamp = max(self.last_stamp, entry.data[1])
            self._barriers.stamped(entry.index, entry.data[1])

    def propose(self, number: int, seen: int = 0) -> None:
        """Append an entry with the next stamp."""
        self.node.propose((number, self.clock.stamp(self.wall_ms, seen)), 10)

    def change(self, change: raft.Change) -> None:
        """Begin to change the configuration: behind an entry stamped above all promises, which
        every leader elected by the new configuration has in its log (counterexample 3).
        """
        self.propose(0)
        self.node.change(change)

    # Promises

    def ask(self) -> None:
        """Ask everybody to promise that nothing is stamped up to now, and stamp nothing there."""
        self._promises.ask(stamp_at(self.wall_ms))
        self._promises.pursue()

    def hand_out(self) -> Barrier:
        """Tell readers how far the order is complete."""
        node, through = self.node, self.applied + 1
        undecided = min((s for i, s in self.tail.items() if i >= through), default=0)
        committed = self.last_stamp if node.accepts else 0
        return barrier_at(self.multi.fenced(0), committed, undecided, through)

    # Snapshots carry the last stamp beside the CRC.

    def state(self, index: int) -> bytes:
        """What a snapshot holds."""
        return super().state(index) + self.last_stamp.to_bytes(8, "little")

    def take_state(self, snapshot: raft.Snapshot) -> None:
        """Become what a snapshot holds, in front of a log that is read next."""
        super().take_state(snapshot)
        assert isinstance(snapshot.data, bytes | bytearray)
        self.last_stamp = int.from_bytes(snapshot.data[4:], "little")
        self.tail.clear()

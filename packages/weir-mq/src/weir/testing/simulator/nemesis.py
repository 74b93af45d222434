"""What breaks in a run of one node: power, processes, clocks, disks, and connections."""

from __future__ import annotations

from weir.testing.simulator.host import Host
from weir.testing.simulator.world import MS, World

_SKEW_MS = 8_000


class Nemesis:
    """Breaks things until it is told to stop."""

    def __init__(self, world: World, host: Host, every: tuple[int, int]) -> None:
        """Do nothing yet; a fault is to come each `every` virtual µs, at random."""
        self._every = every
        self.faults = 0
        self._world = world
        self._host = host
        self._stopped = False

    def start(self) -> None:
        """Begin to break things."""
        dice, host = self._world.dice, self._host
        host.faults.reads = dice.choice((0.0, 0.05))
        host.faults.flushes = dice.choice((0.0, 0.0, 0.01))
        host.faults.recoveries = dice.choice((0.0, 0.3))
        self._again()

    def stop(self) -> None:
        """Make no more faults: the clock runs true from here on, the node is up or on its way."""
        host = self._host
        self._stopped = True
        host.faults.reads = host.faults.flushes = host.faults.recoveries = 0.0
        host.time.skew_ms = 0
        if not host.up:
            host.restart()

    def _again(self) -> None:
        self._world.after(self._world.dice.randint(*self._every), self._strike)

    def _strike(self) -> None:
        if self._stopped:
            return
        dice, host = self._world.dice, self._host
        self.faults += 1
        roll = dice.random()
        if roll < 0.3:
            host.die(power=True)
            host.restart()
        elif roll < 0.5:
            host.die(power=False)
            host.restart()
        elif roll < 0.6:
            host.time.skew_ms = dice.randint(-_SKEW_MS, _SKEW_MS)
            self._world.note("skew", host.time.skew_ms)
        elif roll < 0.65:
            host.stop()
            self._world.after(dice.randint(0, 100 * MS), self._end_stopped, host.boots)
        elif roll < 0.8 and (trunks := host.trunks()):
            if self._world.chance(0.7):
                host.kill_shard(dice.choice(trunks)[0])
            else:
                host.break_trunk(*dice.choice(trunks))
        elif links := host.peers():
            for link in dice.sample(links, dice.randint(1, len(links))):
                link.cut()
        self._again()

    def _end_stopped(self, boot: int) -> None:
        """A node that was told to stop ends, drained or not, and is started again."""
        if self._host.up and self._host.boots == boot:
            self._host.die(power=self._world.chance(0.3))
            self._host.restart()

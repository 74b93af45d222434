"""What breaks in a world: `Nemesis` breaks a run of one node, `Storm` a set of nodes: power,
processes, clocks, disks, and connections.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

import msgspec

from weir.testing.simulator.brokerset import BrokerSet
from weir.testing.simulator.host import Host
from weir.testing.simulator.world import MS, SECOND, World

_SKEW_MS = 8_000
_DRIFT_MS = 900
_HOUR_MS = 3_600_000
_PAUSED = (100 * MS, 3 * SECOND)
_LONG = 10 * SECOND
_DEPOSED = (300 * MS, 3 * SECOND)
_PARTED = (200 * MS, 4 * SECOND)
_SLOW = (500 * MS, 3 * SECOND)
_MISLED = (300 * MS, 4 * SECOND)
#: When a node that starts does so in the next release.
_RELEASE = (2 * SECOND, 14 * SECOND)
_FULL = (100 * MS, 600 * MS)


class FaultPlan(msgspec.Struct, frozen=True):
    """Which faults a set of nodes meets, and how often; times are virtual microseconds."""

    every: tuple[int, int] = (200 * MS, 1_500 * MS)
    #: How long a node stays down.
    down: tuple[int, int] = (0, 2 * SECOND)
    #: Where clients are: places of the network, from -1 down.
    sites: tuple[int, ...] = (-1,)
    #: By their names in `Storm`; none named: all.
    kinds: tuple[str, ...] = ()


class Storm:
    """Breaks things until it is told to stop."""

    def __init__(self, world: World, brokers: BrokerSet, plan: FaultPlan) -> None:
        """Do nothing yet."""
        self.faults = 0
        self._world = world
        self._brokers = brokers
        self._every = plan.every
        self._down = plan.down
        self._places = [*brokers.hosts, *plan.sites]
        self._stopped = False
        self._parted = 0
        self._deposed: Host | None = None
        #: The latest that a clock said that was wrong by hours, in virtual milliseconds.
        self.latest_ms = 0
        kinds: list[tuple[str, int, Callable[[], None]]] = [
            ("kill", 6, self._kill),
            ("depose", 2, self._depose),
            ("kill shard", 1, self._kill_shard),
            ("stop", 2, self._stop_one),
            ("pause", 3, self._pause),
            ("skew", 1, self._skew),
            ("astray", 0, self._astray),
            ("drift", 0, self._drift),
            ("part", 6, self._part),
            ("slow", 2, self._slow),
            ("cut", 3, self._cut),
            ("fail disk", 1, self._fail_disk),
            ("fill disk", 1, self._fill_disk),
            ("slow disk", 1, self._slow_disk),
        ]
        self._kinds = [
            kind
            for name, weight, kind in kinds
            for _ in range(weight or name in plan.kinds)
            if not plan.kinds or name in plan.kinds
        ]

    def lose_hours(self) -> None:
        """Let clocks be wrong by hours, too."""
        self._kinds += [self._jump] * 3

    def start(self) -> None:
        """Begin to break things."""
        dice = self._world.dice
        for host in self._brokers.all:
            host.hardware.faults.reads = dice.choice((0.0, 0.05))
            host.hardware.faults.recoveries = dice.choice((0.0, 0.2))
            host.next_release = dice.randint(*_RELEASE)
            if self._drift in self._kinds:
                self._drift(host)
        self._again()

    def stop(self) -> None:
        """Make no more faults, and mend what can be mended: every node is up or on its way."""
        self._stopped = True
        self._brokers.net.heal()
        self._brokers.misled.clear()
        # What was stamped hours ahead cannot be taken back: that time has come.
        ahead_ms = max(0, self.latest_ms - self._world.now // MS)
        for host in self._brokers.all:
            host.hardware.faults.end()
            host.hardware.faults.slow = 1
            host.hardware.time.skew_ms = ahead_ms
            host.hardware.fill(False)
            host.go_on()
            if not host.up:
                host.restart()

    def _again(self) -> None:
        self._world.after(self._world.dice.randint(*self._every), self._strike)

    def _strike(self) -> None:
        if not self._stopped:
            self.faults += 1
            self._world.dice.choice(self._kinds)()
            self._again()

    def _later(self, span: tuple[int, int], do: Callable[..., None], *arguments: object) -> None:
        self._world.after(self._world.between(*span), self._unless_over, do, arguments)

    def _unless_over(self, do: Callable[..., None], arguments: tuple[object, ...]) -> None:
        if not self._stopped:
            do(*arguments)

    def _any(self) -> Host:
        return self._world.dice.choice(self._brokers.all)

    # -- nodes ---------------------------------------------------------------------------------

    def _kill(self) -> None:
        """Kill one, two or all at once; they come back one by one."""
        dice, hosts = self._world.dice, self._brokers.all
        count = dice.choice((1, 1, 1, 1, min(2, len(hosts)), len(hosts)))
        power = self._world.chance(0.5)
        for host in dice.sample(hosts, count):
            host.die(power)
            host.restart(self._world.between(*self._down))

    def _depose(self) -> None:
        """Kill the leader of a group, and restart the one that was deposed before.

        Entries that one of them did not send meet those that the other did not.
        """
        leaders = self._brokers.leaders()
        if not leaders:
            return
        host = self._world.dice.choice(leaders)
        if self._deposed is not None:
            self._deposed.start()
        self._deposed = host
        host.die(power=self._world.chance(0.5))
        host.restart(self._world.between(*_DEPOSED))

    def _kill_shard(self) -> None:
        host = self._any()
        if running := host.running:
            host.kill_shard(self._world.dice.choice(running).number)

    def _pause(self) -> None:
        host, duration = self._any(), self._world.between(*_PAUSED)
        if self._world.chance(0.1):
            duration = _LONG
        if len(host.running) > 1 and self._world.chance(0.5):
            host.pause_shard(self._world.dice.choice(host.running).number, duration)
        else:
            host.pause(duration)

    def _stop_one(self) -> None:
        """Let a node end as it should; it is started again, done or not."""
        host = self._any()
        host.stop()
        # Also when all is over: a node that is ending serves nobody any more.
        delay = self._world.between(*self._down)
        self._world.after(delay, self._end_stopped, host, host.boots)

    def _end_stopped(self, host: Host, boot: int) -> None:
        if host.up and host.boots == boot:
            host.die(power=self._world.chance(0.3))
            host.restart()

    def _skew(self) -> None:
        host = self._any()
        host.hardware.time.skew_ms = self._world.dice.randint(-_SKEW_MS, _SKEW_MS)
        self._world.note("skew", host.node, host.hardware.time.skew_ms)

    def _drift(self, host: Host | None = None) -> None:
        """Set a clock a little wrong: not so much that it is not gone by."""
        host = host or self._any()
        host.hardware.time.skew_ms = self._world.dice.randint(-_DRIFT_MS, _DRIFT_MS)
        self._world.note("drift", host.node, host.hardware.time.skew_ms)

    def _jump(self) -> None:
        """Set some clocks hours ahead or back, or all of them; or let all be right again."""
        dice, hosts = self._world.dice, self._brokers.all
        count = dice.choice((0, 1, 1, 2, len(hosts)))
        jump_ms = dice.choice((-1, 1)) * dice.randint(1, 5) * _HOUR_MS
        for host in dice.sample(hosts, min(count, len(hosts))) if count else hosts:
            host.hardware.time.skew_ms = jump_ms + dice.randint(0, _DRIFT_MS) if count else 0
            self.latest_ms = max(self.latest_ms, host.hardware.time.skew_ms + self._world.now // MS)
        self._world.note("jump", [host.hardware.time.skew_ms for host in hosts])

    def _astray(self) -> None:
        """Let one clock be wrong, or that one be right again: never two within moments."""
        wrong = [host for host in self._brokers.all if host.hardware.time.skew_ms]
        for host in wrong:
            host.hardware.time.skew_ms = 0
        if not wrong:
            self._skew()

    # -- the network ---------------------------------------------------------------------------

    def _part(self) -> None:
        """Close ways between two sides, in one direction or in both."""
        dice, net, places = self._world.dice, self._brokers.net, self._places
        nodes = [place for place in places if place > 0]
        roll = dice.random()
        if roll < 0.35:  # one node, with or without the clients near it
            one = {dice.choice(nodes)} | {
                site for site in places if site < 0 and dice.random() < 0.3
            }
            other = set(nodes) - one
            if dice.random() < 0.5:
                other = set(places) - one
        elif roll < 0.6:  # a bridge: two that do not hear each other, and one that hears both
            one, other = ({place} for place in dice.sample(places, 2))
        else:
            one = {place for place in places if dice.random() < 0.5}
            other = set(places) - one
        there, back = dice.choice(((True, True), (True, True), (True, False), (False, True)))
        for source in sorted(one):
            for target in sorted(other):
                if there:
                    net.close(source, target)
                if back:
                    net.close(target, source)
        self._world.note("part", sorted(one), sorted(other), there, back)
        self._parted += 1
        self._later(_PARTED, self._heal, self._parted)

    def _heal(self, number: int) -> None:
        if number == self._parted:
            self._world.note("heal")
            self._brokers.net.heal()

    def _slow(self) -> None:
        """Let one way, or all ways of a node, take long."""
        dice, net, places = self._world.dice, self._brokers.net, self._places
        slow, one = dice.choice((5, 20, 60)), dice.choice(places)
        targets = [place for place in places if place != one]
        for target in targets if self._world.chance(0.5) else [dice.choice(targets)]:
            net.way(one, target).slow = net.way(target, one).slow = slow
        self._world.note("slow", one, slow)
        self._parted += 1
        self._later(_SLOW, self._heal, self._parted)

    def _cut(self) -> None:
        """Break connections, some of clients, or all between a node and the others."""
        dice = self._world.dice
        if self._world.chance(0.5):
            cut = self._any()
            if self._world.chance(0.3):
                self._mislead(cut.node)
            for host in self._brokers.all if cut.node in self._brokers.misled else [cut]:
                for process in host.running:
                    process.sockets.sever()
        elif links := self._brokers.peers():
            for link in dice.sample(links, dice.randint(1, len(links))):
                link.cut()

    def _mislead(self, node: int) -> None:
        """Let the name of a node lead to another for a while, or to a stranger of its number."""
        others = [other for other in self._brokers.hosts if other != node]
        self._brokers.misled[node] = self._world.dice.choice([0, *others])
        self._world.note("mislead", node, self._brokers.misled[node])
        self._later(_MISLED, self._lead, node)

    def _lead(self, node: int) -> None:
        self._brokers.misled.pop(node, None)

    # -- disks ---------------------------------------------------------------------------------

    def _fail_disk(self) -> None:
        """Let a write or a sync fail: the node must end at once."""
        disk = self._world.dice.choice(list(self._any().hardware.disks.values()))
        disk.fail_next(self._world.dice.choice(("write", "sync")), errno.EIO)

    def _fill_disk(self) -> None:
        host = self._any()
        host.hardware.fill(True)
        self._world.note("full", host.node)
        self._later(_FULL, host.hardware.fill, False)

    def _slow_disk(self) -> None:
        host = self._any()
        host.hardware.faults.slow = self._world.dice.choice((3, 10))
        self._world.note("slow disk", host.node, host.hardware.faults.slow)
        self._later(_SLOW, self._quicken, host)

    def _quicken(self, host: Host) -> None:
        host.hardware.faults.slow = 1


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
        host.hardware.faults.reads = dice.choice((0.0, 0.05))
        host.hardware.faults.flushes = dice.choice((0.0, 0.0, 0.01))
        host.hardware.faults.recoveries = dice.choice((0.0, 0.3))
        self._again()

    def stop(self) -> None:
        """Make no more faults: the clock runs true from here on, the node is up or on its way."""
        host = self._host
        self._stopped = True
        host.hardware.faults.end()
        host.hardware.time.skew_ms = 0
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
            host.hardware.time.skew_ms = dice.randint(-_SKEW_MS, _SKEW_MS)
            self._world.note("skew", host.hardware.time.skew_ms)
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

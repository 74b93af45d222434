"""What one run is made of: the machine it is played on, the programs, and the faults."""

from __future__ import annotations

from dataclasses import dataclass

from weir.broker.shard import ShardSettings
from weir.log.settings import Settings
from weir.model.limits import KIB
from weir.sim.authors import Author, Pen
from weir.sim.checkers import ENTRY_BYTES_MAX
from weir.sim.history import History
from weir.sim.host import Host
from weir.sim.hubs import Hub
from weir.sim.operators import Operator
from weir.sim.process import Machine
from weir.sim.producers import Producer
from weir.sim.programs import Program
from weir.sim.readers import Consumer, Reader
from weir.sim.receivers import Receiver
from weir.sim.world import MS, World

CLUSTER = "crew"
FIELD = "field"
SYSTEM = 0x57454952
_SKEW_MS = 8_000
_RETENTION_EVERY_MS = 100
#: A quick disk, and one that is so slow that clients lose patience, and power cuts fall into it.
_BUDGETS = (12 * KIB, 256 * KIB, 1024 * KIB)
#: How many logs a node is founded with; up to three shards serve them.
_LOGS = (1, 1, 2, 3, 4)
_FLUSHES = ((200, 25 * MS), (5 * MS, 100 * MS), (5 * MS, 250 * MS))


@dataclass(frozen=True, slots=True)
class Shape:
    """How much happens in a run; times are virtual microseconds."""

    faults_until: int = 1_000 * MS
    fault_every: tuple[int, int] = (30 * MS, 250 * MS)
    partitions: int = 2
    producers: int = 3
    hubs: int = 2
    authors: int = 2
    consumers: int = 2
    receivers: int = 2
    batches: int = 12
    device_messages: int = 12
    #: How many bytes of messages a partition keeps: the seeds take these in turn; 0: all.
    retentions: tuple[int, ...] = (0, 0, 2 * KIB, 600)
    #: Whether an operator seeks and pauses: taken in turn, too.
    operators: tuple[bool, ...] = (True, False, False, True)
    #: How many places rot in the end, while the node is down: taken in turn, too.
    rots: tuple[int, ...] = (0, 1, 0, 2, 1)


def machine(world: World) -> Machine:
    """Draw the sizes of a run's log and budget: small, so that every path is walked."""
    dice = world.dice
    roll = dice.random()
    # Small enough in many runs for segments to be left behind, and used again.
    segment, entry = (24, 6 * KIB) if roll < 0.6 else (32 if roll < 0.8 else 64, ENTRY_BYTES_MAX)
    log = Settings(
        log=0,
        system=SYSTEM,
        segment_bytes=segment * KIB,
        entry_bytes_max=entry,
        cache_bytes_max=dice.choice((0, 2 * KIB, 256 * KIB)),
        spares=dice.choice((0, 1, 2)),
    )
    shard = ShardSettings(
        budget_bytes=dice.choice(_BUDGETS),
        checkpoint_bytes=dice.choice((1 * KIB, 4 * KIB, 1024 * KIB)),
        retention_every_ms=_RETENTION_EVERY_MS,
    )
    return Machine(log, shard, dice.choice(_FLUSHES), dice.choice(_LOGS))


class Workload:
    """The programs of one run."""

    def __init__(
        self, world: World, host: Host, history: History, shape: Shape, operated: bool
    ) -> None:
        """Make them; `start` lets them go, each when chance has it."""
        self._world = world
        self.producers: list[Program] = []
        self.consumers: list[Consumer] = []
        self.operators: list[Operator] = []
        self.readers: list[Reader] = []
        self.receivers: list[Receiver] = []
        for n in range(shape.producers):
            self.producers.append(
                Producer(
                    world,
                    host,
                    history,
                    f"p{n}",
                    shape.partitions,
                    n % shape.partitions,
                    shape.batches,
                )
            )
        for n in range(shape.hubs):
            self.producers.append(
                Hub(
                    world,
                    host,
                    history,
                    f"hub{n}",
                    7000 + n,
                    n % shape.partitions,
                    shape.device_messages,
                )
            )
        for n in range(shape.partitions):
            self.readers.append(Reader(world, host, history, f"reader{n}", shape.partitions, n))
        for n in range(shape.consumers):
            self.consumers.append(
                Consumer(world, host, history, f"consumer{n}", shape.partitions, 0, CLUSTER)
            )
        pen = Pen()
        for n in range(shape.authors):
            self.producers.append(
                Author(
                    world,
                    host,
                    history,
                    f"author{n}",
                    shape.partitions,
                    -1 % shape.partitions,
                    2 * shape.batches,
                    pen,
                )
            )
        # The least budget has no room for a subscription.
        for n in range(shape.receivers if host.budget_bytes > _BUDGETS[0] else 0):
            self.receivers.append(Receiver(world, host, history, f"lock{n}", 8000 + n, 0, FIELD))
        if operated:
            operator = Operator(world, host, history, "operator", shape.partitions, 0, CLUSTER)
            self.operators.append(operator)

    def start(self) -> None:
        """Let all programs begin within the first moments."""
        for program in self._all():
            self._world.after(self._world.between(0, 50 * MS), program.start)

    def end_producing(self) -> None:
        """Begin nothing new."""
        for program in (*self.producers, *self.operators):
            program.ending = True

    def end_consuming(self) -> None:
        """Work off what is left, readers to the end, consumers until there is nothing to grant."""
        for reader in self.readers:
            reader.ending, reader.at_end = True, False
        for consumer in self.consumers:
            consumer.ending, consumer.ending_since = True, self._world.now
        for receiver in self.receivers:
            receiver.end()

    def retire(self) -> None:
        """Let all programs be over."""
        for program in self._all():
            program.retire()

    def produced(self) -> bool:
        """Whether everything that was begun is confirmed, and the cluster goes on."""
        return all(program.finished for program in (*self.producers, *self.operators))

    def consumed(self) -> bool:
        """Whether readers are at the end and the cluster has nothing left."""
        readers = all(reader.finished for reader in self.readers)
        return readers and all(one.finished for one in (*self.consumers, *self.receivers))

    def _all(self) -> tuple[Program, ...]:
        return (
            *self.producers,
            *self.readers,
            *self.consumers,
            *self.receivers,
            *self.operators,
        )


class Nemesis:
    """Breaks things until it is told to stop."""

    def __init__(self, world: World, host: Host, shape: Shape) -> None:
        """Do nothing yet."""
        self._every = shape.fault_every
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
        elif links := host.links():
            for link in dice.sample(links, dice.randint(1, len(links))):
                link.cut()
        self._again()

    def _end_stopped(self, boot: int) -> None:
        """A node that was told to stop ends, drained or not, and is started again."""
        if self._host.up and self._host.boots == boot:
            self._host.die(power=self._world.chance(0.3))
            self._host.restart()

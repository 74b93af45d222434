"""How much happens in a run, and the sizes of the machine that it is played on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from weir.access.wrapping import KeyRing
from weir.broker.api.events import TICK_MS
from weir.broker.api.settings import Replication, ShardSettings
from weir.host.accept_queue import ConnectionLimits
from weir.model.limits import KIB
from weir.storage.format.segment import BLOCK
from weir.storage.segment_files import Settings
from weir.testing.simulator.nemesis import FaultPlan
from weir.testing.simulator.process import Machine
from weir.testing.simulator.world import MS, SECOND, World
from weir_lab.sim.checkers.judge import ENTRY_BYTES_MAX

SYSTEM = 0x57454952
_RETENTION_EVERY_MS = 100
LEAST_BUDGET = 12 * KIB
_BUDGETS = (LEAST_BUDGET, 256 * KIB, 1024 * KIB)
#: How many logs a node is founded with; up to three shards serve them.
_LOGS = (1, 1, 2, 3, 4)
#: A quick disk, and one that is so slow that clients lose patience, and power cuts fall into it.
_FLUSHES = ((60, 2 * MS), (200, 25 * MS), (5 * MS, 100 * MS), (5 * MS, 250 * MS))
#: How many connections a process takes in all, in a second, and at once; and how long a device may
#: be silent, in seconds. The first is what a server allows. A process takes more connections than
#: there are clients, or some would never be served.
_CONNECTIONS = (20_000, 20_000, 64)
_ACCEPTS = (2_000.0, 50.0)
_BURSTS = (10_000, 2)
_SILENCES = (1_800.0, 2.0)
#: What a replica is sent in one message, before it answers, and of a snapshot.
_APPENDS = (1, 2 * KIB, 1024 * KIB)
_IN_FLIGHT = (1, 8 * KIB, 8 * 1024 * KIB)
_CHUNKS = (100, 2 * KIB, 256 * KIB)

#: Programs that a run can do without.
_KINDS = ("hasty", "hubs", "authors", "consumers", "keepers", "receivers", "onlookers")


@dataclass(frozen=True, slots=True)
class Shape:
    """How much happens in a run; times are virtual microseconds.

    Of what is a tuple of choices the seeds take one in turn.
    """

    nodes: int = 1
    faults_until: int = 1_000 * MS
    fault_every: tuple[int, int] = (30 * MS, 250 * MS)
    #: Which faults a set meets, by the names of `weir.testing.simulator.nemesis`; none named: all.
    kinds: tuple[str, ...] = ()
    #: Whether faults are not random, but those of a plot, by its name in `weir_lab.sim.run`.
    plot: str = ""
    #: For how long, before other faults come, one clock of a set at a time is wrong.
    one_astray: int = 0
    #: What a follower is sent in one message, and before it answers, in bytes.
    appends: tuple[int, ...] = _APPENDS
    in_flight: tuple[int, ...] = _IN_FLIGHT
    #: How often a follower hears of its leader, and when one that does not seeks to lead, in ms.
    beats: tuple[tuple[int, int], ...] = ((100, 500),)
    #: How often a process looks at the clock, in ms.
    ticks: tuple[int, ...] = (TICK_MS,)
    #: How long a node of a set stays down.
    down: tuple[int, int] = (0, 2 * SECOND)
    #: How much programs do at least before faults end, and how long the run lasts at least.
    operations: int = 0
    at_least: int = 0
    #: What `weir_lab.sim.programs.scene.Scene` says of them.
    pace: tuple[int, int] = (1, 1)
    patience: int = 0
    sites: tuple[int, ...] = (-1,)
    partitions: int = 2
    #: How likely a kind of program has no part in a run; producers and readers always have.
    absent: float = 0.0
    #: Those that have a part in every run nevertheless.
    present: tuple[str, ...] = ()
    producers: int = 3
    #: Of level `received`.
    hasty: int = 0
    hubs: int = 2
    #: How many hubs of a fleet there are whose devices are replaced.
    replaced: int = 0
    authors: int = 2
    consumers: int = 2
    #: Consumers of a cluster that keeps order.
    keepers: int = 2
    receivers: int = 2
    onlookers: int = 0
    stewards: int = 0
    batches: int = 12
    device_messages: int = 12
    #: How many bytes of messages a partition keeps; 0: all.
    retentions: tuple[int, ...] = (0, 0, 2 * KIB, 600)
    #: Whether an operator seeks and pauses.
    operators: tuple[bool, ...] = (True, False, False, True)
    #: How many readers in total order there are, and clients that tell of what those read.
    ordered: tuple[int, ...] = (0,)
    #: How many readers end at a cut, where somebody reads the topic in total order.
    cutters: int = 0
    #: How many read portion after portion, each up to a cut of the broker's, likewise.
    planners: int = 0
    #: How many consumers take turns at it all in total order, and whether one seeks meanwhile.
    takers: tuple[int, ...] = (0,)
    #: Whether the topic grows, where somebody reads it in total order.
    grows: tuple[bool, ...] = (True, False)
    #: Whether a partition ends, where somebody reads the topic in total order.
    ends: tuple[bool, ...] = (False,)
    #: How many clients scatter, where somebody reads the topic in total order.
    scatterers: tuple[int, ...] = (0,)
    #: How many queries write by staging and publishing, where somebody reads in total order.
    sinkers: tuple[int, ...] = (0,)
    #: Whether producers and readers, and what else the client does, are the client as it ships.
    shipped: tuple[bool, ...] = (False,)
    #: How many processes run handlers, where the client that ships has a part.
    apps: tuple[int, ...] = (0,)
    #: How many parcels there are, large or delayed, likewise.
    parcels: tuple[int, ...] = (0,)
    #: Whether one of those that publish, and one that reads, call `weir.sync`.
    blocking: bool = False
    #: How many terminals show the topic, and take of it, likewise.
    tails: tuple[int, ...] = (0,)
    subs: tuple[int, ...] = (0,)
    #: How many errands there are for the processes of `weir work`, likewise.
    errands: tuple[int, ...] = (0,)
    #: How often each of two clients adds a version of a schema or publishes a value, likewise.
    typed: tuple[int, ...] = (0,)
    #: How many batches each of two queries writes to a topic, likewise.
    sunk: tuple[int, ...] = (0,)
    #: How many relays others read and consume by, likewise.
    relays: tuple[int, ...] = (0,)
    #: How many Spark queries read the topic, likewise.
    queries: tuple[int, ...] = (0,)
    #: Whether the clocks of a set jump by hours.
    hours: tuple[bool, ...] = (False,)
    #: How many places rot in the end, while the node is down.
    rots: tuple[int, ...] = (0, 1, 0, 2, 1)

    @property
    def fault_plan(self) -> FaultPlan:
        """Which faults a set meets."""
        return FaultPlan(self.fault_every, self.down, self.sites, self.kinds)


#: One node of up to three shards: quick, and strong in what concerns disks and shards.
NODE = Shape()
#: So many devices come at once that logs rest behind their flushes, and so few faults that what is
#: stuck then stays so. Devices that are told one message at a time would take too long for all.
NODE_CROWD = replace(
    NODE, hubs=8, device_messages=60, receivers=0, fault_every=(200 * MS, 900 * MS)
)
#: Devices are replaced while they publish, on a node that is killed, and in a set.
NODE_REPLACED = replace(
    NODE, producers=1, hubs=1, replaced=4, authors=0, consumers=0, keepers=0, receivers=0,
    device_messages=40, rots=(0,),
)  # fmt: skip
SET_REPLACED = replace(
    NODE_REPLACED,
    nodes=3,
    patience=2 * SECOND,
    faults_until=6_000 * MS,
    fault_every=(300 * MS, 900 * MS),
    down=(0, 500 * MS),
    pace=(8, 8),
)
#: The same as `NODE`, and clients scatter over partitions that others take turns at in total order.
NODE_SCATTERED = replace(NODE, ordered=(1,), takers=(3,), scatterers=(3,))
#: Three nodes over a network, where each partition is read by itself: what concerns replication.
UNORDERED = Shape(
    nodes=3,
    faults_until=24 * SECOND,
    fault_every=(200 * MS, 1_500 * MS),
    at_least=30 * SECOND,
    beats=((100, 500), (200, 1_000)),
    ticks=(TICK_MS, 2 * TICK_MS),
    pace=(10, 400),
    patience=1_200 * MS,
    sites=(-1, -2),
    absent=0.5,
    hasty=1,
    onlookers=2,
    stewards=1,
    rots=(0, 1, 0, 0, 2),
)

#: The same, and somebody reads all partitions in total order; in some worlds others take turns at
#: it, in others they scatter. There is enough to do without the half of what others send.
CROWDED = replace(
    UNORDERED,
    absent=0.6,
    batches=6,
    device_messages=6,
    hours=(False, False, False, False, True),
    ordered=(1, 2),
    takers=(0, 3, 0),
    scatterers=(0, 0, 3),
)
#: The same with fewer programs, who take their time: more such worlds are played in an hour, which
#: shows more than one in which more is done.
SET = replace(
    CROWDED,
    operations=200,
    beats=((200, 1_000),),
    ticks=(2 * TICK_MS,),
    pace=(30, 1_200),
    absent=0.9,
    producers=2,
    onlookers=1,
    batches=8,
    device_messages=4,
    ordered=(1,),
    cutters=1,
    takers=(0, 2, 0),
    scatterers=(0, 0, 2, 0, 0, 1),
    shipped=(False, True, True, False),
)
#: The same, and each promise can break in a fifth of the worlds at least. Clusters that keep order
#: are in all of them, for each is of one mode of several.
EVEN = replace(SET, absent=0.8, present=("keepers",))
#: The same, and the client as it ships does all of it.
SET_SHIPPED = replace(SET, operations=400, shipped=(True,))
#: Many devices come at once to a set whose leaders die, and whose disks are full and slow.
SET_CROWD = replace(
    SET,
    kinds=("depose", "fill disk", "slow disk", "cut"),
    faults_until=8 * SECOND,
    at_least=0,
    pace=(1, 30),
    present=("hubs",),
    hubs=40,
    device_messages=12,
    onlookers=0,
    stewards=0,
    hours=(False,),
    shipped=(False,),
)
#: One node, and the client as it ships does all that it can: it takes turns, or scatters.
NODE_SHIPPED = replace(NODE_SCATTERED, shipped=(True,), takers=(3, 0, 3), scatterers=(0, 3, 0))
#: The same three, and processes run handlers beside them, with an inbox.
NODE_HANDLERS = replace(NODE_SHIPPED, apps=(2,))
SET_HANDLERS = replace(SET, apps=(2,))
EVEN_HANDLERS = replace(EVEN, apps=(2,))
#: The same three, and large values and delayed messages go beside them, and code without async.
NODE_PARCELS = replace(NODE_SHIPPED, parcels=(30,), blocking=True)
SET_PARCELS = replace(SET, parcels=(20,), blocking=True)
EVEN_PARCELS = replace(EVEN, parcels=(20,), blocking=True)
#: The same three, and some read and consume by relays that ship, which may pull from another.
NODE_TIERS = replace(NODE_SHIPPED, relays=(1, 2, 3), rots=(0,))
SET_TIERS = replace(SET, shipped=(True,), relays=(2, 1, 3), rots=(0,))
#: A partition ends while others publish to it and read it, on one node and on three.
#: In half of the worlds the client as it ships does so.
NODE_ENDING = replace(
    NODE_SCATTERED,
    ends=(True,),
    takers=(3, 0),
    scatterers=(0, 3),
    rots=(0,),
    shipped=(False, False, True, True),
)
ENDING = replace(CROWDED, ends=(True,), rots=(0,), shipped=(False, True))
#: What reads beside clients that ship: Spark queries and commands; and versions of a schema.
_READING: dict[str, Any] = {
    "queries": (1,),
    "tails": (1,),
    "subs": (2, 0),
    "errands": (0, 12),
    "typed": (0, 0, 10),
    "sunk": (0, 8),
}
NODE_READS = replace(NODE_SHIPPED, planners=1, **_READING)
SET_READS = replace(SET, planners=1, **_READING)
EVEN_READS = replace(EVEN, planners=1, **_READING)
NODE_ENDING_READS = replace(NODE_ENDING, **_READING)
ENDING_READS = replace(ENDING, **_READING)
#: Queries write micro-batches, each of many batches at one stamp, that others read in total order.
NODE_SINKS = replace(
    NODE_SCATTERED, ordered=(2,), takers=(0, 3), scatterers=(0,), sinkers=(2,), grows=(True, False)
)
SINKS = replace(CROWDED, ordered=(2,), takers=(0, 2), scatterers=(0,), sinkers=(2,), rots=(0,))
#: Four nodes, of which three hold each group: groups move when a node is taken out of use.
FOUR = replace(UNORDERED, nodes=4)

#: The shapes by the names that `weir sim run --shape` takes.
SHAPES: dict[str, Shape] = {
    "set": SET,
    "set-shipped": SET_SHIPPED,
    "set-crowd": SET_CROWD,
    "even": EVEN,
    "node": NODE,
    "node-crowd": NODE_CROWD,
    "unordered": UNORDERED,
    "crowded": CROWDED,
    "node-scattered": NODE_SCATTERED,
    "node-shipped": NODE_SHIPPED,
    "node-handlers": NODE_HANDLERS,
    "set-handlers": SET_HANDLERS,
    "even-handlers": EVEN_HANDLERS,
    "node-parcels": NODE_PARCELS,
    "set-parcels": SET_PARCELS,
    "even-parcels": EVEN_PARCELS,
    "node-tiers": NODE_TIERS,
    "set-tiers": SET_TIERS,
    "node-ending": NODE_ENDING,
    "ending": ENDING,
    "four": FOUR,
    "node-sinks": NODE_SINKS,
    "sinks": SINKS,
    "node-reads": NODE_READS,
    "set-reads": SET_READS,
    "even-reads": EVEN_READS,
    "node-ending-reads": NODE_ENDING_READS,
    "ending-reads": ENDING_READS,
}


def cast(world: World, shape: Shape) -> Shape:
    """Draw which kinds of programs have a part in a run."""
    if not shape.absent:
        return shape
    left_out: dict[str, Any] = {
        kind: 0 for kind in _KINDS if kind not in shape.present and world.chance(shape.absent)
    }
    return replace(shape, **left_out)


def machine(world: World, shape: Shape, shipped: bool = False) -> Machine:
    """Draw the sizes of a run's log and budget: small, so that every path is walked."""
    dice = world.dice
    heartbeat_ms, election_ms = dice.choice(shape.beats)
    roll = dice.random()
    # Small enough in many runs for segments to be left behind, and used again.
    segment, entry = (24, 6 * KIB) if roll < 0.6 else (32 if roll < 0.8 else 64, ENTRY_BYTES_MAX)
    log = Settings(
        log=0,
        system=SYSTEM,
        segment_bytes=segment * KIB,
        entry_bytes_max=entry,
        cache_bytes_max=dice.choice((0, 2 * KIB, 256 * KIB)),
        spares=(spares := dice.choice((0, 1, 2))),
        # Its header, one entry, and what stands around that.
        first_segment_bytes=(2 + (entry + KIB) // BLOCK) * BLOCK if spares == 1 else 0,
    )
    shard = ShardSettings(
        budget_bytes=dice.choice(_BUDGETS if shape.nodes == 1 else _BUDGETS[1:]),
        checkpoint_bytes=dice.choice((1 * KIB, 4 * KIB, 1024 * KIB)),
        retention_every_ms=_RETENTION_EVERY_MS,
        replication=Replication(
            heartbeat_ms=heartbeat_ms,
            election_ms=election_ms,
            append_bytes_max=dice.choice(shape.appends),
            inflight_bytes_max=dice.choice(shape.in_flight),
            snapshot_chunk_bytes=dice.choice(_CHUNKS),
        ),
        random=dice.random,
        secret_bytes=dice.randbytes,
        key_ring=KeyRing([bytes(32)]),
    )
    logs = dice.choice(_LOGS if shape.nodes == 1 else _LOGS[:3])
    flush = dice.choice(_FLUSHES[: 4 if shape.nodes == 1 else 3])
    limits = ConnectionLimits(
        connections_max=dice.choice(_CONNECTIONS),
        accepts_per_second=dice.choice(_ACCEPTS),
        idle_seconds=dice.choice(_SILENCES),
        accept_burst=dice.choice(_BURSTS),
    )
    return Machine(
        log, shard, flush, logs, tick=dice.choice(shape.ticks) * MS, limits=limits, ports=shipped
    )

"""One seed, one run: faults, then peace, then a last power cut, then judgement.

outcome = run_seed(7)
outcome = run_seed(7, shape)      # the same seed and shape: the same trace hash

That holds on each machine with the same release of Python: asyncio differs even between 3.11.2 and
3.11.7.
"""

from __future__ import annotations

import gc
import logging
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from multiprocessing import get_context

from weir.errors import OffsetOutOfRange, refusal
from weir.model.topic import Order
from weir.order.clock import milliseconds_of
from weir.protocol.client import messages as m
from weir.spark.blocking_client import forget_all
from weir.testing.simulator.brokerset import BrokerSet
from weir.testing.simulator.nemesis import FaultPlan, Nemesis, Storm
from weir.testing.simulator.network import Link
from weir.testing.simulator.world import EPOCH_MS, MS, SECOND, World
from weir_lab.sim import rot
from weir_lab.sim.checkers.exercised import promises_tested
from weir_lab.sim.checkers.judge import LIVE_WITHIN, violations
from weir_lab.sim.distribution import drawn, scenarios
from weir_lab.sim.history import History, record_of
from weir_lab.sim.outcome import CRASH, USERS, Outcome
from weir_lab.sim.programs.program import TOPIC, Client
from weir_lab.sim.programs.publishers.scatterers import all_decided, highest_given, highest_stamp
from weir_lab.sim.programs.scene import Scene
from weir_lab.sim.programs.subscribers.wholes import Wholes
from weir_lab.sim.scenarios.betrayals import Eviction, Forgetful, Latecomer, Unsettled
from weir_lab.sim.scenarios.duel import Duel
from weir_lab.sim.scenarios.healing import Healing
from weir_lab.sim.scenarios.killers import play_killers
from weir_lab.sim.scenarios.lone_log import play_log
from weir_lab.sim.scenarios.lost_tails import play_tails
from weir_lab.sim.scenarios.plots import Plot
from weir_lab.sim.scenarios.users import play_users
from weir_lab.sim.shape import NODE, Shape, machine
from weir_lab.sim.workload import Domain, Workload

#: Failures in a world are not shown on the terminal: relays there log as they do elsewhere.
logging.getLogger("weir").addHandler(logging.NullHandler())

_DRAIN_WITHIN = 20 * SECOND
#: A cluster may have to begin again, one message at a time, on slow disks. A lease lasts longer:
#: a message that a dead session holds until then is found.
_CONSUME_WITHIN = 20 * SECOND
#: So many flushes one behind the other a program may take to come to its end.
_FLUSHES = 40
#: Participants wait longer each time for slow ones.
_DECIDE_WITHIN = 20 * SECOND
_LOOK = 50 * MS
_ENOUGH_WITHIN = 60 * SECOND
#: What is scattered goes to up to four partitions.
_MORE_PARTITIONS = (0, 0, 1, 2)
_QUIET = 1 * SECOND
#: How likely all programs go before the last power cut, and not with it.
_LEAVE_FIRST = 0.5
_DRAIN_BYTES = 64 * 1024
#: What happens to a set in the place of random faults.
_PLOTS: dict[str, type[Plot]] = {
    "duel": Duel,
    "unsettled": Unsettled,
    "forgetful": Forgetful,
    "eviction": Eviction,
    "latecomer": Latecomer,
}
#: So long a clock is wrong that all hear of it, before that and afterwards.
_ONE_ASTRAY = FaultPlan((3 * SECOND, 4 * SECOND), kinds=("astray",))
#: What is played beside a drawn world, and needs none.
SCENARIOS: dict[str, Callable[[int, Shape], Outcome]] = {
    "log": play_log,
    "tails": play_tails,
    "killers": play_killers,
    USERS: play_users,
}


class _Drain(Client):
    """Reads everything from offset 0 on, after all is over."""

    def __init__(self, scene: Scene) -> None:
        """Look for all partitions of the topic."""
        super().__init__(scene, "drain")
        self._wholes = Wholes(self, may_be_gone=False)
        #: The partitions that were not read to their end.
        self._left = set(range(scene.partitions))
        #: By partition, its end when it was begun with.
        self._ends: dict[int, int] = {}

    @property
    def finished(self) -> bool:
        """Whether every partition was read to its end."""
        return not self._left and not self._wholes.under_way

    def ready(self) -> None:
        """Begin with what is left, anew on each connection; the topic may have grown, of which a
        node that has just started may not have heard yet.
        """
        if len(self.addresses) <= max((one.partition for one in self.history.publishes), default=0):
            self.ask(m.DescribeTopic(TOPIC), self._described)
            return
        if not self._ends:
            self._left = set(range(len(self.addresses)))
        for partition in sorted(self._left):
            self._look(partition, self.link)

    def _described(self, reply: m.Reply) -> None:
        if isinstance(reply, m.TopicInfo):
            self.addresses = list(reply.addresses)
        self.retry(self.ready)

    def _look(self, partition: int, link: Link | None) -> None:
        """Ask where a partition ends: a new leader may give less than all of it."""
        if link is self.link:
            request = m.Positions(self.addresses[partition])
            self.ask(request, lambda reply: self._looked(partition, reply))

    def _looked(self, partition: int, reply: m.Reply) -> None:
        if isinstance(reply, m.PositionsReply):
            if reply.start:
                self.history.starts[partition] = reply.start
            self._ends[partition] = reply.end
            self.history.drained[partition] = []
            self._fetch(partition, reply.start, self.link)
        else:
            self.soon(self._look, partition, self.link)

    def closed(self) -> None:
        """Nothing that was asked has an answer any more."""
        super().closed()
        self._wholes.closed()

    def _fetch(self, partition: int, offset: int, link: Link | None) -> None:
        if link is self.link:
            request = m.Fetch(self.addresses[partition], offset, _DRAIN_BYTES, equal_stamps=True)
            self.ask(request, lambda reply: self._fetched(partition, offset, reply))

    def _fetched(self, partition: int, offset: int, reply: m.Reply) -> None:
        if isinstance(reply, m.Refusal) and refusal(reply.code, reply.message).retryable:
            self.soon(self._fetch, partition, offset, self.link)  # its leader is on its way
            return
        if isinstance(reply, m.Refusal) and reply.code == OffsetOutOfRange.code:
            self._look(partition, self.link)  # retention goes on
            return
        if not isinstance(reply, m.Fetched):
            self.complain("Live", f"the drained log is refused: {reply}")
            return
        records = self.history.drained[partition]
        found = self.check(partition, reply.batches, offset, reply.voids)
        records += [record_of(batch) for batch in found]
        for batch in found:
            self._wholes.read(partition, batch, _DRAIN_BYTES)
        if reply.next_offset < self._ends[partition]:
            self._fetch(partition, reply.next_offset, self.link)
        else:
            self._left.discard(partition)


class Run:
    """One seed, from its first fault to its judgement."""

    def __init__(self, seed: int, shape: Shape) -> None:
        self.world = world = World(seed)
        self.history = history = History(
            retention_bytes=shape.retentions[seed % len(shape.retentions)],
            one_wrong_until=sys.maxsize if shape.kinds == ("astray",) else shape.one_astray,
        )
        shipped = shape.shipped[seed % len(shape.shipped)]
        self.brokers = brokers = BrokerSet(world, machine(world, shape, shipped), shape.nodes)
        alone = shape.nodes == 1
        storm = _PLOTS[shape.plot] if shape.plot else Storm
        self.nemesis = (
            Nemesis(world, brokers.one, shape.fault_every)
            if alone
            else storm(world, brokers, shape.fault_plan)
        )
        if isinstance(self.nemesis, Storm) and shape.hours[seed % len(shape.hours)]:
            self.nemesis.lose_hours()
            history.values_expire = True  # for an hour may be over at any moment
        #: Before that one clock at a time is wrong, and nothing else.
        self._clocks = Storm(world, brokers, _ONE_ASTRAY) if shape.one_astray else None
        self.operations = 0
        self._shape = shape
        self._rots = shape.rots[seed % len(shape.rots)]
        ordered = shape.ordered[seed % len(shape.ordered)]
        scatterers = shape.scatterers[seed % len(shape.scatterers)] if ordered else 0
        sinkers = shape.sinkers[seed % len(shape.sinkers)] if ordered else 0
        parts = shape.partitions + (world.dice.choice(_MORE_PARTITIONS) if scatterers else 0)
        operated = shape.operators[seed % len(shape.operators)]
        # A reader of what rotted looks at the partitions of the beginning.
        grows = bool(ordered) and not self._rots and shape.grows[seed % len(shape.grows)]
        takers = shape.takers[seed % len(shape.takers)]
        order: Order = "total" if shipped and takers else "partition"
        self.scene = Scene(
            world,
            brokers,
            history,
            parts,
            shape.pace,
            shape.patience,
            shape.sites,
            order,
            delays=not shipped,
        )
        ends = bool(ordered) and not self._rots and shape.ends[seed % len(shape.ends)]
        apps = shape.apps[seed % len(shape.apps)]
        parcels = shape.parcels[seed % len(shape.parcels)]
        beside = (shape.queries, shape.tails, shape.subs, shape.errands)
        drawn = [of[seed // 4 % len(of)] for of in beside]
        drawn.append(shape.typed[seed // 8 % len(shape.typed)])
        drawn.append(shape.sunk[seed // 2 % len(shape.sunk)])
        drawn += [sinkers, shape.relays[seed // 2 % len(shape.relays)]]
        domain = Domain(ordered, grows, takers, scatterers, ends, shipped, apps, parcels, *drawn)
        self.workload = Workload(self.scene, shape, operated, domain)
        self._scatters = bool(scatterers or sinkers)
        self._ordered = bool(ordered or takers or shipped)

    def play(self) -> None:
        """Faults, then peace, then a last power cut, after which the log is drained."""
        world, workload, history = self.world, self.workload, self.history
        self.brokers.start()
        workload.start()
        began = self._shape.one_astray
        if self._clocks is not None:
            self._clocks.start()
            world.run(began)
            self._clocks.stop()
        self.nemesis.start()
        world.run(began + self._shape.faults_until)
        self._do_enough()
        self.nemesis.stop()
        stopped = world.now
        workload.end_producing()
        # A sink waits for dozens of flushes, one behind the other: a slow disk has more time.
        within = LIVE_WITHIN + _FLUSHES * self.brokers.machine.flush[1]
        world.run(stopped + within, workload.produced)
        history.healed = max(stopped, self._caught_up())
        world.run(history.healed + within, workload.produced)
        if not workload.produced() and not self.brokers.ruined:
            history.complaints.append(("Live", "a program did not come to its end"))
        self._decide()
        workload.end_consuming()
        # What a wrong clock has stamped is in nobody's order before that time has come.
        within = _CONSUME_WITHIN + _FLUSHES * self.brokers.machine.flush[1]
        world.run(max(world.now, history.healed) + within, workload.consumed)
        if not workload.consumed() and not self.brokers.ruined:
            history.complaints.append(("Live", "the cluster or a reader did not come to its end"))
        self.operations = len(history.operations)
        self.brokers.witness.compare(self.brokers.running)
        leave_first = world.chance(_LEAVE_FIRST)
        if leave_first:
            self._leave()
        self.brokers.die(power=True)
        if not leave_first:
            workload.retire()
        self.brokers.start()
        self._decide()
        self._drain()
        if self._rots and not history.complaints and self.brokers.far:
            Healing(self.scene, self._rots).play()
        elif self._rots and not history.complaints:
            self._rot()
        world.run(self._shape.at_least)
        history.complaints += self.brokers.witness.complaints
        history.skewed = any(host.hardware.time.pushed for host in self.brokers.all)

    @property
    def faults(self) -> int:
        """How many faults there were."""
        return self.nemesis.faults + (self._clocks.faults if self._clocks is not None else 0)

    def _leave(self) -> None:
        """Let all programs go: the shards give back the memory that they were charged for."""
        self.workload.retire()
        if self.history.complaints or self.brokers.ruined:
            return
        shards = self.brokers.running
        self.world.run(
            self.world.now + LIVE_WITHIN, lambda: not any(shard.charged for shard in shards)
        )
        for shard in shards:
            if shard.charged:
                text = f"shard {shard.name} holds {shard.charged:,} bytes for clients that are gone"
                self.history.complaints.append(("Live", text))

    def _do_enough(self) -> None:
        """Go on under faults for a while where little could be done, for most of it was down."""
        world, latest = self.world, self.world.now + _ENOUGH_WITHIN
        while len(self.history.operations) < self._shape.operations and world.now < latest:
            world.run(world.now + SECOND)

    def _caught_up(self) -> int:
        """Return when all clocks have come to what a wrong one stamped: an order waits for it, and
        so do scatterings.
        """
        # Readers in one order may wait for what a clock that was ahead has promised, too.
        last = highest_stamp(self.scene) if self._scatters or self._ordered else 0
        if self._ordered:
            last = max(last, max((seen.stamp for seen in self.history.seen), default=0))
            last = max(last, highest_given(self.scene))
        ahead_ms = self.brokers.one.hardware.time.skew_ms
        return (milliseconds_of(last) - EPOCH_MS - ahead_ms) * MS

    def _decide(self) -> None:
        """Wait until all scatterings are decided, also those of clients that died."""
        if not self._scatters:
            return
        world, until = self.world, self.world.now + _DECIDE_WITHIN
        while world.now < until and not all_decided(self.scene):
            world.run(world.now + _LOOK)
        if not all_decided(self.scene) and not self.brokers.ruined:
            self.history.complaints.append(("Live", "a scattering is never decided"))

    def _drain(self) -> None:
        drain = _Drain(self.scene)
        drain.start()
        self.world.run(self.world.now + _DRAIN_WITHIN, lambda: drain.finished)
        drain.retired = True
        if self.brokers.ruined:
            complaint = ("Durable", f"a node cannot be started any more: {self.brokers.ruined}")
            self.history.complaints.append(complaint)
        elif not drain.finished:
            self.history.complaints.append(("Live", "the log could not be drained"))

    def _rot(self) -> None:
        """A stop, or a quiet moment and a kill, then bit rot, and a survey of what is served."""
        world, host, complaints = self.world, self.brokers.one, self.history.complaints
        if world.chance(0.5):
            host.stop()
            world.run(world.now + LIVE_WITHIN, lambda: host.stopped)
            if not host.stopped:
                complaints.append(("Live", "the node does not drain"))
        else:
            world.run(world.now + _QUIET)  # all is below the durable mark by then
        host.die(power=False)
        spoilt = [rot.spoil(world, host.hardware.disks) for _ in range(self._rots)]
        survey = rot.Survey(self.scene)
        host.start()
        survey.start()
        world.run(world.now + _DRAIN_WITHIN, lambda: survey.finished or bool(host.ruined))
        if host.ruined:
            if wrong := rot.complaint(host.ruined, spoilt):
                complaints.append(("Honest", wrong))
        elif not survey.finished:
            complaints.append(
                ("Live", f"{rot.names(spoilt)} rotted, and the rest could not be read")
            )
        survey.judge(spoilt)


def run_drawn(seed: int) -> Outcome:
    """Play one seed in the shape that it draws, and the scenarios beside, and judge it."""
    found = replace(run_seed(seed, shape := drawn(seed)), is_drawn=True)
    for name in scenarios(seed):
        found = found.beside(SCENARIOS[name](seed, shape))
    return found


def run_seed(seed: int, shape: Shape | None = None) -> Outcome:
    """Play one seed to its end and judge it."""
    with _no_collection():
        return _judged(seed, shape or Shape())


def _judged(seed: int, shape: Shape) -> Outcome:
    started = time.perf_counter()
    forget_all()  # the sets that the Spark processes of an earlier world have met
    run = Run(seed, shape)
    try:
        run.play()
    except Exception as error:  # whatever the broker raised, the seed must be in the report
        last = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__} at {last.name}:{last.lineno}: {error}"
        run.history.complaints.append((CRASH, text))
        found = run.history.complaints
    else:
        found = violations(run.history)
    return Outcome(
        seed,
        shape,
        str(run.brokers.machine),
        run.faults,
        run.operations,
        found,
        run.world.trace_hash,
        time.perf_counter() - started,
        run.world.now / SECOND,
        tuple(run.world.recent) if found else (),
        promises_tested(run.history),
    )


@contextmanager
def _no_collection() -> Iterator[None]:
    """Leave cyclic garbage alone for as long as a run lasts: it ends before that is much.

    Nothing of the run may be in use behind it: else a collection looks at all of that in vain.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def run_seeds(first: int, count: int, shape: Shape | None = None) -> Iterator[Outcome]:
    """Play `count` seeds from `first` on, yielding each outcome as it comes."""
    for seed in range(first, first + count):
        yield run_seed(seed, shape)


def run_scenario(seed: int, name: str) -> Outcome:
    """Play one of SCENARIOS alone, and judge it."""
    with _no_collection():
        return replace(SCENARIOS[name](seed, NODE), scenario=name)


def run_many(
    first: int, count: int, shape: Shape | None, jobs: int, scenario: str = ""
) -> Iterator[Outcome]:
    """Play `count` seeds from `first` on in `jobs` processes; outcomes come in the seeds' order.

    Without a shape each is played in the one that it draws; with a scenario that alone is played.
    """
    seeds = range(first, first + count)
    play: Callable[[int], Outcome] = run_drawn if shape is None else partial(run_seed, shape=shape)
    if scenario:
        play = partial(run_scenario, name=scenario)
    if jobs == 1:
        yield from map(play, seeds)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        # One at a time: a seed takes a second, and may take ten times as long as the next one.
        yield from pool.map(play, seeds)

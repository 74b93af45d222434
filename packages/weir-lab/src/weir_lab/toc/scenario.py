"""What happens in a world: a seed draws its shape, its faults and what processes send.

outcome = play(7)
assert not outcome.violations
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

from weir_lab.toc.checkers import violations
from weir_lab.toc.network import Faults
from weir_lab.toc.rest import is_at_rest, is_settled
from weir_lab.toc.world import Shape, T, World
from weir_toc.endpoint.events import Service
from weir_toc.topology import rack_of

#: The network is faulty for so many intervals, and then it is quiet for so many at most.
ACTIVE = 12
QUIET_MAX = 1_200
#: It ends once all was settled for so many: what the end of one failure leads to is reported within
#: as long as an input may be silent, and a little. It is looked at so often.
#: It ends sooner if nobody is about to be taken for silent then, or to come back.
QUIET, QUIET_AT_REST, _LOOK = 14, 4, 2
#: In so many of the worlds that are not calm a cable is cut that heals.
FLAPS = 0.3
#: In so many of them all packets between two processes are lost, while beacons pass.
SEVERS = 0.15
#: In so many of them the leader of the controller is replaced while a cable breaks or heals.
LEADERS = 0.1
#: In so many of all worlds processes send many scatterings at once, and pieces are carried.
RUNS = 0.4
#: In so many of the worlds that are not calm a clock is set or stops.
CLOCK_FAULTS = 0.1
#: So far a clock is set. One of a process that is ahead delays what it sends by as much, and all
#: is to be delivered: only the smallest worlds have so much time.
STEP, STEP_AHEAD = 1_000 * T, 40 * T
#: In so many of all worlds the clocks of switches are as wrong as those of processes.
SKEWED_SWITCHES = 0.5
#: In so many of all worlds switches read what comes in bursts.
BURSTS = 0.3
#: In so many of all worlds the numbers of packets pass 2^31 or 2^32, or have passed it.
WRAPS = 0.4


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one seed."""

    seed: int
    shape: Shape
    violations: tuple[str, ...]
    packets: int
    delivered: int
    #: Best effort parts that were reported as late or lost.
    failed: int


def drawn(seed: int) -> Shape:
    """Return the shape of a seed: a quarter of all worlds are calm, and some have runs."""
    return replace(
        _drawn(seed),
        runs=Random(f"has runs {seed}").random() < RUNS,
        skews_switches=Random(f"skew of switches {seed}").random() < SKEWED_SWITCHES,
        reads_late=_reads_late(Random(f"bursts {seed}")),
        first_psn=_first_psn(Random(f"first number {seed}")),
    )


def _first_psn(random: Random) -> int:
    """Return 0, or a number near one at which a packet's 32 bits of it, or their half, wrap."""
    if random.random() >= WRAPS:
        return 0
    return random.choice((1 << 31, 1 << 32, 3 << 31)) + random.randint(-30, 5)


def _reads_late(random: Random) -> int:
    return random.choice((T // 20, T // 5)) if random.random() < BURSTS else 0


def _drawn(seed: int) -> Shape:
    random = Random(f"shape {seed}")
    racks = random.choice((1, 1, 2, 2, 3))
    spines = 0 if racks == 1 else random.choice((1, 1, 2))
    cores = random.choice((0, 0, 1)) if spines else 0
    processes = random.randint(2, 4)
    rewrites = random.random() < 0.75
    is_small = random.random() < 0.3
    budget, part = (60_000, 6_000) if is_small else (3_500_000, 32_768)
    start = (1 << 48) - random.randint(1, 20) * T - random.randrange(T)
    if random.random() < 0.25:
        return Shape(racks, spines, cores, processes, Faults(), 0, 0, rewrites, start, budget,
                     part, is_calm=True)  # fmt: skip
    faults = Faults(
        loss=random.choice((0.0, 0.01, 0.1)),
        duplication=random.choice((0.0, 0.05)),
        reordering=random.choice((0.0, 0.0, 0.05)),
        damage=random.choice((0.0, 0.01)),
        delay=random.choice((5_000, 50_000, 400_000)),
        jitter=random.choice((1_000, 200_000)),
    )
    skew = random.choice((0, T // 2, 5 * T))
    drift = random.choice((0, 50, 2_000))
    return Shape(
        racks, spines, cores, processes, faults, skew, drift, rewrites, start, budget, part
    )


def play(seed: int, shape: Shape | None = None) -> Outcome:
    """Play one seed, and return what was broken. The same seed is played the same way anywhere."""
    collects = gc.isenabled()
    gc.disable()  # a world keeps most of what it makes, and is small: nothing is found in it
    try:
        return _played(seed, shape or drawn(seed))
    finally:
        if collects:
            gc.enable()


def _played(seed: int, shape: Shape) -> Outcome:
    world = World(seed, shape)
    random = Random(f"script {seed}")
    world.run(4 * T)
    late_joiner = random.randrange(ACTIVE) if random.random() < 0.3 else -1
    fails = random.randrange(ACTIVE) if not world.shape.is_calm and random.random() < 0.4 else -1
    pauses = random.randrange(ACTIVE) if random.random() < 0.3 else -1
    may_burst = world.shape.part_max < 10_000
    bursts = random.randrange(ACTIVE) if may_burst and random.random() < 0.5 else -1
    runs = Random(f"runs {seed}")
    clocks = Random(f"faults of clocks {seed}")
    is_set = not world.shape.is_calm and clocks.random() < CLOCK_FAULTS
    sets = clocks.randrange(ACTIVE) if is_set else -1
    for turn in range(ACTIVE):
        if turn == late_joiner:
            world.join(random.randrange(world.shape.racks))
        if turn == fails:
            _fail(world, random)
        if turn == pauses and not world.shape.is_calm:
            world.pause(random.choice([*world.hosts]), random.randint(1, 6) * T)
        if turn == sets:
            _set_clock(world, clocks)
        for _ in range(random.choice((0, 1, 1, 2, 4))):
            _send(world, random)
        if turn == bursts:
            _burst(world, random)
        _send_runs(world, runs)
        world.run(random.randint(T // 4, T))
    _flap(world, seed, runs)
    _sever(world, seed, runs)
    _replace_leaders(world, seed, runs)
    _drain(world)
    delivered = sum(len(host.deliveries) for host in world.hosts.values())
    failed = sum(
        len(sending.failed) for host in world.hosts.values() for sending in host.sendings.values()
    )
    found = tuple(violations(world))
    return Outcome(seed, world.shape, found, world.network.packets, delivered, failed)


def play_many(first: int, count: int) -> Iterator[Outcome]:
    """Play seeds one after the other."""
    for seed in range(first, first + count):
        yield play(seed)


def _send(world: World, random: Random) -> None:
    """One process sends a scattering to some others, itself included now and then."""
    processes = [*world.hosts]
    service = random.choice((Service.BEST_EFFORT, Service.RELIABLE))
    source = random.choice(processes)
    receivers = random.sample(processes, random.randint(1, len(processes)))
    parts = []
    for to in receivers:
        size = random.choice((0, 8, 64, 64, 1_500, world.shape.part_max))
        parts.append((to, random.randbytes(min(size, world.shape.part_max))))
    world.send(source, service, parts)


def _burst(world: World, random: Random) -> None:
    """One process sends more large scatterings than fit in the windows of all others."""
    source = random.choice([*world.hosts])
    for _ in range(10):
        receivers = random.sample([*world.hosts], len(world.hosts))
        size = world.shape.part_max
        parts = [(to, random.randbytes(size)) for to in receivers]
        world.send(source, Service.RELIABLE, parts)


def _send_runs(world: World, random: Random) -> None:
    """Some processes send many scatterings of one size to one receiver at once, if any do."""
    if not world.shape.runs or random.random() < 0.6:
        return
    processes = [*world.hosts]
    to = random.choice(processes)
    for source in random.sample(processes, random.choice((1, 1, 2))):
        service = random.choice((Service.BEST_EFFORT, Service.RELIABLE))
        size = random.choice((0, 8, 8, 64, 500))
        count = random.randint(4, 40)
        many = [[(to, random.randbytes(size))] for _ in range(count)]
        if random.random() < 0.2:  # one to all of them ends a run, and another begins
            many[count // 2] = [(one, random.randbytes(size)) for one in processes]
        world.send_many(source, service, many)


def _fail(world: World, random: Random) -> None:
    """A process or a switch stops for good, a cable is cut, or a process sleeps for too long."""
    kind = random.choice(("process", "process", "switch", "cable", "sleep"))
    switches = [*world.switches]
    if kind == "process" or not world.topology.links:
        world.crash(random.choice([*world.hosts]))
    elif kind == "switch":
        world.crash(random.choice(switches))
    elif kind == "cable":
        link = random.choice(world.topology.links)
        world.cut(link.lower, link.upper)
    else:
        world.pause(random.choice([*world.hosts]), 40 * T)


def _set_clock(world: World, random: Random) -> None:
    """The clock of a process or a switch is set forward or back, or stops."""
    node = random.choice([*world.hosts] if random.random() < 0.6 else [*world.switches])
    kind = random.choice(("ahead", "back", "stopped"))
    if kind == "stopped":
        world.stop_clock(node)
    elif kind == "back":
        world.set_clock(node, -STEP)
    else:
        is_small = len(world.hosts) + len(world.switches) <= 4
        is_small = is_small and world.shape.part_max > 10_000  # windows are not full for so long
        world.set_clock(node, STEP if node in world.switches or is_small else STEP_AHEAD)


def _flap(world: World, seed: int, runs: Random) -> None:
    """In some worlds a cable is cut, heals, and is cut again, while processes go on to send.

    It breaks for less than the time after which a link is silent, or for longer; and it comes back
    for any time: also for too short to take the registers out that its silence has frozen.
    """
    random = Random(f"flaps {seed}")
    if world.shape.is_calm or random.random() > FLAPS:
        return
    world.control.late_removals = random.choice((0.0, 0.3))
    cables = [(link.lower, link.upper) for link in world.topology.links]
    if not cables or random.random() < 0.2:
        process = random.choice([*world.hosts])
        cables = [(process, world.topology.switch_of_rack(rack_of(process)).id)]
    for _ in range(random.choice((1, 1, 2))):
        one, other = random.choice(cables)
        for _ in range(random.randint(1, 4)):
            if random.random() < 0.3:
                world.cut(*random.choice(((one, other), (other, one))), both=False)
            else:
                world.cut(one, other)
            _go_on(world, random, runs, random.choice((3, 11, 13, 16, 25, 90)))
            world.heal(one, other)
            _go_on(world, random, runs, random.choice((0, 1, 2, 4, 8, 30)))
        if random.random() < 0.3:
            world.cut(one, other)
            _go_on(world, random, runs, 4)


def _sever(world: World, seed: int, runs: Random) -> None:
    """In some worlds packets from one process to another are lost, or those of both to each other.

    Their path is mended in the end, or never. A third process may fail meanwhile, so that what is
    under way is recalled; or the receiver is not connected to the controller, or answers nothing
    that is forwarded.
    """
    random = Random(f"severs {seed}")
    if world.shape.is_calm or random.random() > SEVERS or len(world.correct) < 2:
        return
    source, to = random.sample([*world.correct], 2)
    world.network.severed |= {(source, to)}
    kind = random.choice(("one way", "both", "both", "unreached"))
    if kind == "both":
        world.network.severed |= {(to, source)}
    elif kind == "unreached" and Random(f"answers nothing {seed}").random() < 0.4:
        world.control.mute.add(to)
    elif kind == "unreached":
        world.unreach(to)
    for _ in range(random.randint(1, 4)):
        others = random.sample([*world.hosts], random.randint(0, len(world.hosts)))
        size = random.choice((0, 64, 1_500, world.shape.part_max))
        parts = [(one, random.randbytes(size)) for one in sorted({source, to, *others})]
        world.send(source, Service.RELIABLE, parts)
        _go_on(world, random, runs, random.choice((1, 5, 20, 70)))
    if random.random() < 0.3:
        world.crash(random.choice([*world.hosts]))
    _go_on(world, random, runs, random.choice((0, 20, 90)))
    if random.random() < 0.5:
        world.network.severed.clear()
        world.control.unreached.clear()
        world.control.mute.clear()


def _replace_leaders(world: World, seed: int, runs: Random) -> None:
    """In some worlds the leader is replaced, again and again, while a cable breaks or heals.

    What the former one has sent to some nodes stands still meanwhile. It comes any time after the
    next one has told them what they may have missed.
    """
    random = Random(f"leaders {seed}")
    cables = [(link.lower, link.upper) for link in world.topology.links]
    if world.shape.is_calm or random.random() > LEADERS or not cables:
        return
    one, other = random.choice(cables)
    for _ in range(random.randint(1, 4)):
        nodes = [*world.switches, *world.hosts]
        world.control.stalled |= {*random.sample(nodes, random.randint(1, len(nodes)))}
        if (one, other) in world.network.cut:
            world.heal(one, other)
        else:
            world.cut(one, other)
        _go_on(world, random, runs, random.choice((4, 13, 16, 25)))
        world.replace_leader(random.choice((1, 4, 16, 30)) * T)
        _go_on(world, random, runs, random.choice((0, 2, 4, 8)))


def _go_on(world: World, random: Random, runs: Random, intervals: int) -> None:
    """Let about so many intervals pass, in which processes send."""
    for _ in range(intervals):
        if random.random() < 0.3:
            _send(world, random)
            _send_runs(world, runs)
        world.run(random.randint(T // 4, 3 * T // 2))


def _drain(world: World) -> None:
    """End all faults, and let time pass until all is settled, or for long enough."""
    network = world.network
    network.faults = Faults(delay=network.faults.delay, jitter=network.faults.jitter)
    quiet = 0
    for _ in range(QUIET_MAX // _LOOK):
        world.run(_LOOK * T)
        quiet = quiet + _LOOK if is_settled(world) else 0
        if quiet >= QUIET or (quiet >= QUIET_AT_REST and is_at_rest(world)):
            break

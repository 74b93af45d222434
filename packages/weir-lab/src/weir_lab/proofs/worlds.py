"""What weir claims of seeded worlds: brokers and bare Raft under faults that a seed decides."""

from __future__ import annotations

from weir_lab.barriers.faults import ACTORS, PATCHES
from weir_lab.proofs.claims import Figure, Goal, Proof, Sweep, tests
from weir_lab.sim.checkers.exercised import ALL, OF_SETS
from weir_lab.sim.mutants.registry import MUTANTS

#: How many worlds of a kind `make proof` plays; they are the first of those of the long sweep.
_FIRST = 1_000


def _worlds(
    name: str,
    what: str,
    shape: str,
    seeds: int,
    faults: int,
    of_each: int = 0,
    *,
    world_s: float,
) -> Proof:
    """Return a sweep of worlds, in each of which at least so many `faults` happen on average; each
    promise must be able to break in `of_each` of them. With an empty `shape`, seeds draw theirs,
    and some of them all that there are promises of.

    `world_s` is an estimate of the processor time that a world takes, in seconds.
    """
    figures = {one: Figure(one) for one in ("seeds", "faults", "operations", "violations")}
    figures |= {
        "operations a world": Figure("operations", "seeds", whole="mean"),
        "seconds a seed, two at a time": Figure("seconds", "seeds", whole="mean"),
    }
    promises = (OF_SETS if shape else ALL) if of_each else ()
    figures |= {f"worlds of {one}": Figure(f"worlds_of.{one}") for one in promises}
    named = f"--shape {shape} " if shape else ""
    words = f"weir sim run {named}--seed {{SEED}} --seeds {{SEEDS}} --jobs 2 --json"
    return Proof(
        name,
        what,
        tuple(words.split()),
        figures,
        (
            Goal("seeds", "=", seeds),
            # A simulation in which nothing happens breaks no promise either.
            Goal("faults", "≥", faults * seeds),
            Goal("operations", "≥", 200 * seeds),
            Goal("violations", "=", 0),
            *(Goal(f"worlds of {one}", "≥", of_each) for one in promises),
        ),
        sweep=Sweep(shape or "drawn", seeds),
        seconds=seeds * world_s / 2,
    )


_NODE = "worlds of one node, with crashes, torn writes, full and slow disks, and skewed clocks"
_SET = (
    "worlds of three nodes, with the same faults and with networks that lose, delay, repeat, "
    "reorder and cut. Readers also read all partitions in total order, from leaders and "
    "replicas, while partitions are added; in some worlds consumers share a cursor, in "
    "others clients publish atomically to several partitions"
)
_DRAWN = (
    "worlds of the default distribution: each seed draws how many nodes there are, which faults "
    "they meet, and which programs and clients there are"
)

#: The worlds that `make proof` plays.
OF_FIRST_WORLDS = (
    _worlds("first-seeds", f"The first 1,000 {_NODE}", "node", _FIRST, 3, world_s=0.21),
    _worlds("first-set-seeds", f"The first 1,000 {_SET}", "even", _FIRST, 20, 200, world_s=1.3),
    Proof(
        "seed-cost",
        "The time that one world of three nodes with the client as it ships takes on a machine "
        "without other load: 60 of them, one after the other",
        ("weir", "sim", "run", "--shape", "set-shipped", "--seeds", "60", "--jobs", "1", "--json"),
        {
            "violations": Figure("violations"),
            "seconds a seed": Figure("seconds", "seeds"),
            "operations of the least": Figure("least.operations"),
            "faults of the least": Figure("least.faults"),
            "virtual seconds of the least": Figure("least.virtual_seconds"),
        },
        (
            Goal("violations", "=", 0),
            Goal("seconds a seed", "≤", 1.5),
            Goal("operations of the least", "≥", 400),
            Goal("faults of the least", "≥", 20),
            Goal("virtual seconds of the least", "≥", 30),
        ),
    ),
)

#: The sweeps that `make proof-worlds` plays.
OF_WORLDS = (
    _worlds("set-seeds", f"10,000 {_SET}", "even", 10_000, 20, 2_000, world_s=1.3),
    _worlds("drawn-seeds", f"10,000 {_DRAWN}", "", 10_000, 10, 2_000, world_s=2.0),
    Proof(
        "barriers",
        "50,000 seeds of the rule of barriers: real Raft nodes with their votes and "
        "promises, on faulty networks and disks, with clocks that jump. Seconds are those of "
        "one core",
        ("weir", "sim", "barriers", "--seed", "{SEED}", "--seeds", "{SEEDS}", "--json"),
        {
            "seeds": Figure("seeds"),
            "broken": Figure("broken"),
            "barriers by promise alone": Figure("promised"),
            "entries committed": Figure("committed"),
            "seconds": Figure("seconds"),
        },
        (
            Goal("seeds", "=", 50_000),
            Goal("broken", "=", 0),
            Goal("barriers by promise alone", "≥", 100_000),
            Goal("seconds", "≤", 1_200),
        ),
        sweep=Sweep("barriers", 50_000, at_once=2),
        seconds=450,
    ),
    tests(
        "barrier-rules",
        "Each part of the rule of barriers is removed, one by one, and the same search finds "
        "a violation",
        "{TESTS:WEIR_BARRIER_FAULTS}",
        {"rules": Figure("rules"), "seeds until found, most": Figure("seeds", whole="most")},
        Goal("rules", "≥", len(ACTORS) + len(PATCHES)),
        seconds=120,
        WEIR_BARRIER_FAULTS="10000",
    ),
    tests(
        "raft",
        "4,000 seeds of Raft alone, in groups of one to five, on faulty networks and disks",
        "{TESTS:WEIR_RAFT_SEEDS}",
        {one: Figure(one) for one in ("seeds", "elections", "committed")},
        # Those with links between hosts, and those without.
        Goal("seeds", "≥", 8_000),
        Goal("elections", "≥", 16_000),
        Goal("committed", "≥", 160_000),
        WEIR_RAFT_SEEDS="4000",
    ),
)  # fmt: skip

#: What the worlds can find at all.
OF_POWER = (
    Proof(
        "mutants",
        "One rule of the code is removed at a time, and each time the simulation finds a "
        "broken promise",
        ("weir", "sim", "mutants", "--jobs", "2", "--json"),
        {one: Figure(one) for one in ("planted", "caught", "missed")},
        (Goal("planted", "≥", 12), Goal("missed", "=", 0)),
    ),
    Proof(
        "power",
        "In how many of 100 worlds of the default distribution each planted bug is caught, of "
        "those in which a promise of it is at stake. Each is played until five worlds have caught "
        "it, 200 were played, or 800 s are over. Seconds are those of one core",
        ("weir", "sim", "power", "--first", "{SEED}", "--count", "{SEEDS}", "--json"),
        {
            "planted": Figure("planted"),
            "caught %, median": Figure("median_caught", whole="median"),
            "caught %, least": Figure("least_caught", whole="least"),
            "missed": Figure("missed"),
            "at stake in too few worlds": Figure("rare"),
            "not touched": Figure("untouched"),
            "seconds": Figure("seconds"),
        },
        (
            Goal("planted", "=", len(MUTANTS)),
            Goal("caught %, median", "≥", 20),
            Goal("caught %, least", "≥", 0.1),
            Goal("missed", "=", 0),
            Goal("at stake in too few worlds", "=", 0),
            Goal("not touched", "=", 0),
            # Two hours of two cores.
            Goal("seconds", "≤", 14_400),
        ),
        # A bug each, so that no step lasts longer than one may be played.
        sweep=Sweep("power", len(MUTANTS), step=1, at_once=2),
        seconds=7_200,
        named="bugs.percent",
    ),
)

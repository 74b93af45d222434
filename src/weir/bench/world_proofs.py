"""What weir claims of seeded worlds: brokers and bare Raft under faults that a seed decides."""

from __future__ import annotations

from weir.bench.claims import Figure, Goal, Proof, tests

_SEEDS = 10_000
#: Those of sets take hours: so many proofs play a part of them each.
_PARTS = 4


def _worlds(
    name: str, what: str, options: str, faults: int, part: int = 0, seeds: int = _SEEDS
) -> Proof:
    seeds = seeds // _PARTS if part else seeds
    first = seeds * max(part - 1, 0)
    figures = {one: Figure(one) for one in ("seeds", "faults", "operations", "violations")}
    return Proof(
        name,
        what,
        (
            *("weir", "sim", "run", *options.split(), "--seeds", str(seeds), "--seed", str(first)),
            *("--jobs", "2", "--json"),
        ),
        {**figures, "seconds a seed, two at a time": Figure("seconds", "seeds")},
        (
            Goal("seeds", "=", seeds),
            # A simulation in which nothing happens breaks no promise either.
            Goal("faults", "≥", faults * seeds),
            Goal("operations", "≥", 200 * seeds),
            Goal("violations", "=", 0),
        ),
        timeout_s=21_600.0,
    )


OF_WORLDS = (
    _worlds(
        "seeds",
        "10,000 simulated worlds of one node: crashes, torn writes, full and slow disks, skewed "
        "clocks",
        "--one-node",
        3,
    ),
    *(
        _worlds(
            f"set-seeds-{part}",
            f"10,000 simulated worlds of three nodes, part {part} of {_PARTS}: the same, and "
            "networks that lose, delay, repeat, reorder and cut; all partitions are read in total "
            "order, too, from leaders and replicas, while partitions join; in some worlds "
            "consumers take turns, in others clients scatter",
            "",
            20,
            part,
        )
        for part in range(1, _PARTS + 1)
    ),
    Proof(
        "seed-cost",
        "what one of those worlds costs where nothing else runs: 60 of them, one after the other",
        ("weir", "sim", "run", "--seeds", "60", "--jobs", "1", "--json"),
        {
            "violations": Figure("violations"),
            "seconds a seed": Figure("seconds", "seeds"),
            "operations of the least": Figure("least.operations"),
            "faults of the least": Figure("least.faults"),
            "virtual seconds of the least": Figure("least.virtual_seconds"),
        },
        (
            Goal("violations", "=", 0),
            Goal("seconds a seed", "≤", 1.0),
            Goal("operations of the least", "≥", 200),
            Goal("faults of the least", "≥", 20),
            Goal("virtual seconds of the least", "≥", 30),
        ),
        timeout_s=600.0,
    ),
    _worlds(
        "crowded-seeds",
        "1,000 simulated worlds of three nodes in which more programs work than in those, and more "
        "of the time",
        "--crowded",
        20,
        seeds=1_000,
    ),
    tests(
        "scatter-seeds",
        "2,000 simulated worlds of one node where clients scatter to partitions that are read in "
        "total order",
        "{TESTS:WEIR_SCATTER_SEEDS}",
        14_400,
        WEIR_SCATTER_SEEDS="2000",
    ),
    tests(
        "ending-seeds",
        "2,000 simulated worlds of one node, and 500 of three, where a partition ends while others "
        "publish to it, scatter, and read in total order",
        "{TESTS:WEIR_ENDING_SEEDS}",
        14_400,
        WEIR_ENDING_SEEDS="2000",
    ),
    tests(
        "four-seeds",
        "200 simulated worlds of four nodes, between which groups move",
        "{TESTS:WEIR_FOUR_SEEDS}",
        7_200,
        WEIR_FOUR_SEEDS="200",
    ),
    Proof(
        "mutants",
        "one rule of the code taken away at a time: each time the simulation sees a promise break",
        ("weir", "sim", "mutants", "--jobs", "2", "--json"),
        {one: Figure(one) for one in ("planted", "caught", "missed")},
        (Goal("planted", "≥", 12), Goal("missed", "=", 0)),
        timeout_s=7_200.0,
    ),
    tests(
        "raft",
        "4,000 seeds of Raft by itself in groups of one to five, under bad networks and disks",
        "{TESTS:WEIR_RAFT_SEEDS}",
        14_400,
        WEIR_RAFT_SEEDS="4000",
    ),
)

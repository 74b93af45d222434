"""What weir claims of seeded worlds: brokers and bare Raft under faults that a seed decides."""

from __future__ import annotations

from weir.bench.claims import Figure, Goal, Proof, tests

_SEEDS = 10_000


def _worlds(name: str, what: str, options: str, faults: int) -> Proof:
    figures = {one: Figure(one) for one in ("seeds", "faults", "operations", "violations")}
    return Proof(
        name,
        what,
        ("weir", "sim", "run", *options.split(), "--seeds", str(_SEEDS), "--jobs", "2", "--json"),
        {**figures, "seconds a seed, two at a time": Figure("seconds", "seeds")},
        (
            Goal("seeds", "=", _SEEDS),
            # A simulation in which nothing happens breaks no promise either.
            Goal("faults", "≥", faults * _SEEDS),
            Goal("operations", "≥", 200 * _SEEDS),
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
    _worlds(
        "set-seeds",
        "10,000 simulated worlds of three nodes: the same, and networks that lose, delay, repeat, "
        "reorder and cut",
        "",
        20,
    ),
    _worlds(
        "order-seeds",
        "10,000 simulated worlds of three nodes in which all partitions are read in total order, "
        "from leaders and replicas, while partitions join: BarrierHolds, OneOrder, Causal",
        "--ordered",
        20,
    ),
    Proof(
        "mutants",
        "one rule of the code taken away at a time: each time the simulation sees a promise break",
        ("weir", "sim", "mutants", "--json"),
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

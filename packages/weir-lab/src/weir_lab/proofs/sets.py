"""What weir claims of a set of three nodes: what clients see of faults, of power cuts and slow
cables.
"""

from __future__ import annotations

from weir_lab.proofs.claims import NONE_LOST, WHOLE, Figure, Goal, Proof, bench, tests

_JUDGED = {
    name: Figure(name)
    for name in ("rounds", "lost", "repeated", "reordered", "misplaced", "strange", "stale")
}
_GAP = {
    "median ms without confirms": Figure("rto_median_ms"),
    "worst ms": Figure("rto_max_ms"),
    "ms that a reader in total order is behind its confirm, most": Figure("reader_lag_max_ms"),
}
_PEERS_OF_SETS = "rabbitmq,nats"


def _chaos(verb: str, what: str, times: int, *goals: Goal, words: tuple[str, ...] = ()) -> Proof:
    wrong = tuple(Goal(name, "=", 0) for name in _JUDGED if name != "rounds")
    return Proof(
        verb,
        what,
        ("weir", "chaos", verb, "--times", str(times), *words, "--json"),
        {**_GAP, **_JUDGED},
        (Goal("rounds", "=", times), *goals, *wrong),
    )


def _throughput(name: str, what: str, words: str, least: float) -> Proof:
    figures = {
        "messages/s flat out": Figure("flat_out_messages_per_s"),
        "messages/s sustained": Figure("messages_per_s"),
        "confirm p99 ms": Figure("confirm_p99_ms"),
        **WHOLE,
    }
    goals = (Goal("messages/s sustained", "≥", least), *NONE_LOST)
    return bench(name, what, f"throughput --replicas 3 {words}", figures, *goals)


def _calm(name: str, what: str, seconds: int, *goals: Goal, words: tuple[str, ...] = ()) -> Proof:
    return Proof(
        name,
        what,
        ("python", "-m", "weir_lab.bench.faults.calm", "--seconds", str(seconds), *words),
        {
            **{
                one: Figure(one) for one in ("elections", "seconds", "messages", "lost", "repeated")
            },
            "messages/s": Figure("messages_per_s"),
            "flushes above half a second": Figure("slow_flushes"),
        },
        (Goal("elections", "=", 0), Goal("seconds", "≥", seconds), *goals, *NONE_LOST[:2]),
    )


OF_SETS = (
    _chaos(
        "kill-leader",
        "kill -9 of the leader of three under 1,000 messages/s, 30 times",
        30,
        Goal("median ms without confirms", "≤", 1_000),
        Goal("worst ms", "≤", 4_000),
    ),
    _chaos(
        "kill-follower",
        "kill -9 of a follower under load, 30 times",
        30,
        Goal("worst ms", "≤", 100),
    ),
    _chaos(
        "pause-leader",
        "a leader that stands still for 8 s, 50 times; what it says when it wakes is not stale",
        50,
        Goal("median ms without confirms", "≤", 1_500),
        Goal("worst ms", "≤", 2_500),
        Goal("ms that a reader in total order is behind its confirm, most", "≤", 300),
        words=("--seconds", "8"),
    ),
    _chaos(
        "partition",
        "a leader that is cut off from the other nodes and not from clients, 10 times",
        10,
    ),
    _chaos("restart-all", "kill -9 of all three nodes at once, 20 times", 20),
    Proof(
        "regain",
        "kill -9 of two nodes of three and a restart, 20 times: each of 20 partitions changes its "
        "leader at most once, and all confirm within 2 s",
        ("weir", "chaos", "regain", "--times", "20", "--json"),
        {
            "rounds": Figure("rounds"),
            "rounds that went well": Figure("well"),
            "median ms until all confirmed": Figure("confirmed_median_ms"),
            "worst ms until all confirmed": Figure("confirmed_max_ms"),
            "leaders of a partition, most": Figure("changes_most"),
        },
        (Goal("rounds", "=", 20), Goal("rounds that went well", "=", 20)),
    ),
    _calm("calm", "publishing and reading at full load on three nodes elects nobody", 600),
    _calm(
        "calm-stalls",
        "the same while each disk's syncs stand still for 1 s now and then",
        300,
        Goal("flushes above half a second", "≥", 100),
        words=("--stall-s", "1"),
    ),
    tests(
        "set-kill",
        "kill -9 of the leader, 30 times, with a reader and two consumers: all once, in order",
        "{TESTS:WEIR_LEADER_KILLS}",
        {"kills": Figure("kills"), "messages": Figure("messages")},
        Goal("kills", "≥", 30),
        Goal("messages", "≥", 1_000),
        WEIR_LEADER_KILLS="30",
    ),
    tests(
        "set-kill-order",
        "kill -9 of a leader, 15 times: who reads in total order waits no longer than nothing of "
        "one of its partitions is confirmed",
        "{TESTS:WEIR_LAG_KILLS}",
        {
            "kills": Figure("kills"),
            "messages": Figure("messages"),
            "ms longer than no confirms, most": Figure("added_ms", whole="most"),
            "ms longer than no confirms, mean": Figure("added_ms", whole="mean"),
        },
        Goal("kills", "≥", 15),
        WEIR_LAG_KILLS="15",
    ),
    tests(
        "set-kill-turns",
        "kill -9 of who has the turn in total order, 10 times, every other time with the node that "
        "gave it: whoever follows goes on in the one order",
        "{TESTS:WEIR_TURN_KILLS}",
        {
            "kills": Figure("kills"),
            "messages": Figure("messages"),
            "begun again by who follows": Figure("again"),
        },
        Goal("kills", "≥", 10),
        Goal("begun again by who follows", "≤", 2_000),
        WEIR_TURN_KILLS="10",
    ),
    tests(
        "set-flips",
        "flipped bits, spoiled stretches or cut files on one node of three, in 200 lives of a set: "
        "nothing is lost, wrong bytes are never served, and the node takes back from the others "
        "what it lacks",
        "{TESTS:WEIR_SET_FLIPS}",
        {"lives": Figure("lives"), "times damaged": Figure("damages")},
        Goal("lives", "≥", 200),
        Goal("times damaged", "≥", 200),
        WEIR_SET_FLIPS="200",
    ),
    Proof(
        "idle-groups",
        "1,000 partitions of three replicas that rest: what the node uses that uses most, and what "
        "they add to it",
        ("python", "-m", "weir_lab.bench.storage.idle_groups"),
        {
            "% of a core": Figure("more.cpu_percent"),
            "MB": Figure("more.memory_mb"),
            "% of a core, the whole node": Figure("with_groups.cpu_percent"),
            "MB, the whole node": Figure("with_groups.memory_mb"),
        },
        (Goal("% of a core, the whole node", "<", 2), Goal("MB", "≤", 60)),
    ),
    _throughput(
        "set-produce", "publishing to three nodes that sync, 1 KB", "--shape produce --size 1024",
        72_000,
    ),
    _throughput(
        "set-consume", "a topic of 400,000 messages of 1 KB drained from three nodes",
        "--shape consume --size 1024 --messages 400000", 72_000,
    ),
    _throughput(
        "set-both", "publishing and reading at once, three nodes that sync, 1 KB",
        "--shape both --size 1024", 72_000,
    ),
    _throughput(
        "set-small", "publishing to three nodes that sync, 100 bytes", "--shape produce --size 100",
        350_000,
    ),
    bench(
        "set-latency",
        "one message at a time to its confirm by three nodes that sync",
        "latency --replicas 3",
        {
            "confirm p50 ms": Figure("confirm_p50_ms"),
            "confirm p99 ms": Figure("confirm_p99_ms"),
            "fdatasync p50 ms": Figure("fdatasync_p50_ms"),
            "delivery p99 ms": Figure("delivery_p99_ms"),
            **WHOLE,
        },
        Goal("confirm p50 ms", "≤", 2),
        *NONE_LOST,
    ),
    *(
        bench(
            f"compare-set-{shape}",
            f"{shape} of 1 KB on three nodes of weir, RabbitMQ (quorum queues) and NATS JetStream",
            f"compare --replicas 3 --peer {_PEERS_OF_SETS} --shape {shape} --size 1024",
            {
                "weir messages/s": Figure("rounds.0.figure"),
                "times the quorum queue": Figure("rounds.0.figure", "rounds.0.rows.1.figure"),
                "times the best that syncs": Figure("times_best_synced"),
            },
            Goal("weir messages/s", "≥", 72_000),
            Goal("times the quorum queue", "≥", 4),
        )
        for shape in ("produce", "consume", "both")
    ),
)  # fmt: skip


def _powercut(name: str, what: str, nodes: int) -> Proof:
    words = f"python -m weir_lab.bench.faults.powercut --nodes {nodes} --times 20 --json"
    counted = ("lost", "undelivered", "repeated", "reordered", "strange")
    figures = {
        "power cuts": Figure("cuts"),
        "messages confirmed": Figure("verdict.confirmed"),
        **{one: Figure(f"verdict.{one}") for one in counted},
        "worked on again before their ack": Figure("verdict.again"),
        "seconds until everything flowed again, most": Figure("rounds.*.up_s", highest=True),
    }
    goals = (Goal("power cuts", "≥", 20), *(Goal(one, "=", 0) for one in counted))
    return Proof(name, what, tuple(words.split()), figures, goals)


OF_MACHINES = (
    _powercut(
        "powercut",
        "20 power cuts of a node on a kernel of its own, under load, with a consumer that works 2 "
        "ms on each message (`make powercut` installs what it needs)",
        1,
    ),
    _powercut(
        "powercut-set", "the same on three kernels: 20 times one, two or all nodes lose power", 3
    ),
    Proof(
        "slow-link",
        "three nodes on cables of 100 Mbit/s: entries of 1 MiB cause no election",
        ("python", "-m", "weir_lab.bench.faults.slow_link", "--entries", "400"),
        {
            "elections": Figure("elections"),
            "entries": Figure("confirmed"),
            "busiest cable used": Figure("cable_used"),
        },
        (Goal("elections", "=", 0), Goal("busiest cable used", "≥", 0.8)),
    ),
    Proof(
        "far-link",
        "three nodes with 250 ms round trips between them: entries of 1 MiB cause no election",
        ("python", "-m", "weir_lab.bench.faults.slow_link",
         "--entries", "1000", "--partitions", "3",
         "--round-trip-ms", "250"),
        {
            "elections": Figure("elections"),
            "entries": Figure("confirmed"),
            "ms to a lone confirm": Figure("lone_ms"),
        },
        (Goal("elections", "=", 0), Goal("ms to a lone confirm", "≥", 500)),
    ),
)  # fmt: skip

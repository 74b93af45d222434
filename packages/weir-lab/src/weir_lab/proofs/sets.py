"""What weir claims of a set of three nodes: what clients see of faults, of power cuts and slow
cables.
"""

from __future__ import annotations

from weir.model.limits import FORMAT_LEVEL
from weir_lab.proofs.claims import NONE_LOST, WHOLE, Figure, Goal, Proof, Sweep, bench, tests

_JUDGED = {
    name: Figure(name)
    for name in ("rounds", "lost", "repeated", "reordered", "misplaced", "strange", "stale")
}
_GAP = {
    "median ms without confirms": Figure("rto_median_ms"),
    "worst ms": Figure("rto_max_ms"),
    "ms that a reader in total order is behind its confirm, most": Figure("reader_lag_max_ms"),
}


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
        (
            Goal("elections", "=", 0),
            Goal("seconds", "≥", seconds),
            # A set that has next to nothing to do elects nobody either. Two cores that others used
            # as well have shown 23,000 and, with disks that stall, 17,000.
            Goal("messages/s", "≥", 10_000),
            *goals,
            *NONE_LOST,
        ),
        seconds=seconds + 30,
    )


OF_SETS = (
    _chaos(
        "kill-leader",
        "The leader of three nodes is killed with kill -9 under 1,000 messages/s, 30 times",
        30,
        Goal("median ms without confirms", "≤", 1_000),
        Goal("worst ms", "≤", 4_000),
        Goal("ms that a reader in total order is behind its confirm, most", "≤", 1_000),
    ),
    _chaos(
        "kill-follower",
        "A follower is killed with kill -9 under load, 30 times",
        30,
        Goal("worst ms", "≤", 100),
    ),
    _chaos(
        "pause-leader",
        "A leader is paused for 8 s, 50 times. It serves nothing stale when it continues",
        50,
        Goal("median ms without confirms", "≤", 1_500),
        Goal("worst ms", "≤", 2_500),
        Goal("ms that a reader in total order is behind its confirm, most", "≤", 300),
        words=("--seconds", "8"),
    ),
    _chaos(
        "partition",
        "A leader is cut off from the other nodes but not from clients, 10 times",
        10,
    ),
    _chaos("restart-all", "All three nodes are killed with kill -9 at once, 20 times", 20),
    Proof(
        "regain",
        "Two of three nodes are killed with kill -9 and started again, 20 times: each of 20 "
        "partitions changes its leader at most once, and all of them confirm within 2 s",
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
    Proof(
        "tiers-chaos",
        "Core nodes, tandem relays and access relays are killed, paused and cut off, 100 times: "
        "readers at access relays, and one that moves between them, get what the core holds, in "
        "its order; a city goes on within 4 s when its upper relay fails",
        ("weir", "chaos", "tiers", "--times", "100", "--json"),
        {
            "faults": Figure("faults"),
            "messages": Figure("messages"),
            "moves of a reader": Figure("moves"),
            **{
                name: Figure(name)
                for name in ("lost", "repeated", "out_of_order", "differing")
            },
            "median ms that a city stalls": Figure("city_stall_median_ms"),
            "worst ms that a city stalls": Figure("city_stall_ms"),
        },
        (
            Goal("faults", "=", 100),
            Goal("messages", "≥", 100_000),
            Goal("moves of a reader", "≥", 100),
            *(Goal(name, "=", 0) for name in ("lost", "repeated", "out_of_order", "differing")),
            Goal("worst ms that a city stalls", "≤", 4_000),
        ),
        seconds=840,
    ),
    Proof(
        "world",
        "A company with data centres in six cities on an emulated network: three core sets, three "
        "tandem sets and six access sets. One of each is cut off for 10 s and comes back: readers "
        "in all cities get what the core holds, in its order",
        ("weir", "world", "--readers", "10", "--down", "10", "--json"),
        {
            "messages": Figure("messages"),
            "data centres cut off": Figure("cut_off"),
            **{
                name: Figure(name)
                for name in ("lost", "repeated", "out_of_order", "differing")
            },
            "bytes between cities, of those with readers at the core": Figure("backbone_ratio"),
            "ms to confirm in Tianjin, median": Figure("cities.0.confirm.p50_ms"),
            "ms to deliver in Tianjin, median": Figure("cities.0.delivery.p50_ms"),
            "the same with readers at the core": Figure("cities.0.delivery_direct.p50_ms"),
            "ms to deliver in Hangzhou, median": Figure("cities.1.delivery.p50_ms"),
            "ms to deliver in Shenzhen, median": Figure("cities.2.delivery.p50_ms"),
            "worst ms to deliver in Hangzhou while its tandem set is cut off": Figure(
                "cuts.1.delivery_ms.hangzhou"
            ),
        },
        (
            Goal("messages", "≥", 3_000),
            Goal("data centres cut off", "=", 3),
            *(Goal(name, "=", 0) for name in ("lost", "repeated", "out_of_order", "differing")),
            Goal("worst ms to deliver in Hangzhou while its tandem set is cut off", "≤", 4_000),
        ),
        seconds=120,
    ),
    _calm("calm", "Publishing and reading at full load on three nodes causes no election", 600),
    _calm(
        "calm-stalls",
        "The same, while syncs of each disk sometimes take 1 s",
        600,
        Goal("flushes above half a second", "≥", 200),
        words=("--stall-s", "1"),
    ),
    tests(
        "set-kill",
        "The leader is killed with kill -9, 30 times. A reader and two consumers get every "
        "message once, in order",
        "{TESTS:WEIR_LEADER_KILLS}",
        {"kills": Figure("kills"), "messages": Figure("messages")},
        Goal("kills", "≥", 30),
        Goal("messages", "≥", 1_000),
        WEIR_LEADER_KILLS="30",
    ),
    tests(
        "set-kill-turns",
        "The consumer that holds the cursor lease of a cluster in total order is killed with "
        "kill -9, 10 times, every other time together with the node that granted the lease. "
        "The next consumer continues in the same order",
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
        "One node of three has flipped bits, overwritten parts or shortened files, in 200 "
        "runs of a set: nothing is lost, wrong bytes are never served, and the node copies "
        "from the others what it lacks",
        "{TESTS:WEIR_SET_FLIPS}",
        {"lives": Figure("lives"), "times damaged": Figure("damages")},
        Goal("lives", "≥", 200),
        Goal("times damaged", "≥", 200),
        WEIR_SET_FLIPS="200",
    ),
    Proof(
        "idle",
        "A node of one shard, then one of two, that nobody uses: the processor time and memory of "
        "all its processes, and its part of the disk",
        ("python", "-m", "weir_lab.bench.storage.idle"),
        {
            "% of a core, most": Figure("cpu_percent"),
            "MB, one shard": Figure("uses.0.memory_mb"),
            "MB, two shards": Figure("uses.1.memory_mb"),
            "MB of disk, most": Figure("disk_mb"),
        },
        (
            Goal("% of a core, most", "≤", 0.5),
            Goal("MB, one shard", "≤", 60),
            Goal("MB of disk, most", "≤", 64),
        ),
        seconds=120,
    ),
    Proof(
        "idle-groups",
        "1,000 idle partitions with three replicas: the processor time and memory of the "
        "node that uses most, and the part of it that the partitions add",
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
        "set-produce", "Messages of 1 KB are published to three nodes that sync",
        "--shape produce --size 1024", 72_000,
    ),
    _throughput(
        "set-consume", "A topic of 400,000 messages of 1 KB on three nodes is read to its end",
        "--shape consume --size 1024 --messages 400000", 72_000,
    ),
    _throughput(
        "set-both",
        "Messages of 1 KB are published and read at the same time, on three nodes that sync",
        "--shape both --size 1024", 72_000,
    ),
    _throughput(
        "set-small", "Messages of 100 bytes are published to three nodes that sync",
        "--shape produce --size 100", 350_000,
    ),
    bench(
        "set-latency",
        "The time from publishing a single message to its confirm by three nodes that sync",
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
)  # fmt: skip


_POWER_JUDGED = ("lost", "undelivered", "repeated", "reordered", "strange", "differing")


def _power_figures(
    cuts: dict[str, Figure], judged: tuple[str, ...] = _POWER_JUDGED
) -> dict[str, Figure]:
    return {
        **cuts,
        "messages confirmed": Figure("verdict.confirmed"),
        **{one: Figure(f"verdict.{one}") for one in judged},
        "worked on again before their ack": Figure("verdict.again"),
        "seconds until everything flowed again, most": Figure(
            "rounds.*.up_s", highest=True, whole="most"
        ),
    }


def _powercut(name: str, what: str, nodes: int) -> Proof:
    words = f"python -m weir_lab.bench.faults.powercut --nodes {nodes} --times 20 --json"
    judged = _POWER_JUDGED[:-1]  # their topic has no readers
    figures = _power_figures({"power cuts": Figure("cuts")}, judged)
    goals = (Goal("power cuts", "≥", 20), *(Goal(one, "=", 0) for one in judged))
    return Proof(name, what, tuple(words.split()), figures, goals)


def _powercut_tiers() -> Proof:
    words = "python -m weir_lab.bench.faults.powercut --tiers --seed {SEED} --times {SEEDS} --json"
    tiers = ("core", "tandem", "access")
    cuts = {f"power cuts of {tier}": Figure(f"cuts_of.{tier}") for tier in tiers}
    return Proof(
        "powercut-tiers",
        "A core node, a tandem relay and an access relay, each in a virtual machine, lose power in "
        "turn, 20 times each, with a consumer at the access relay that works 2 ms on each message. "
        "Readers there get what the core holds, in its order",
        tuple(words.split()),
        _power_figures(
            {
                **cuts,
                "messages given to readers": Figure("verdict.read"),
                "bytes that came by the tandem relay": Figure("pulled.tandem"),
            }
        ),
        (
            *(Goal(one, "≥", 20) for one in cuts),
            Goal("messages confirmed", "≥", 20_000),
            Goal("messages given to readers", "≥", 60_000),
            # Else the access relay would hang on the core, and the second tier be idle.
            Goal("bytes that came by the tandem relay", "≥", 10_000_000),
            *(Goal(one, "=", 0) for one in _POWER_JUDGED),
        ),
        # A step of five rounds for each tier takes two to four minutes.
        sweep=Sweep("powercut-tiers", 20, step=5),
    )


#: In windows of rounds, for it takes long.
OF_ROTATIONS = (
    Proof(
        "rotate",
        "Certificates of nodes, the CA and the wrapping key are rotated under load, and the set is "
        "closed, in two sets of ten rounds; in each round a node is killed with kill -9 that has a "
        "half of its new files, and commands of the operator are killed, too",
        ("weir", "chaos", "rotate", "--times", "{SEEDS}", "--json"),
        {
            **_JUDGED,
            "ms without confirms that no kill explains, most": Figure(
                "longest_gap_ms", whole="most"
            ),
            "ms without confirms by a kill, most": Figure("kill_gap_ms", whole="most"),
            "certificates": Figure("done.certificates"),
            "CAs": Figure("done.authorities"),
            "wrapping keys": Figure("done.wrapping_keys"),
            "times closed": Figure("done.closed"),
            "commands killed": Figure("done.commands_killed"),
        },
        (
            Goal("rounds", "=", 20),
            Goal("certificates", "≥", 20),
            Goal("CAs", "≥", 2),
            Goal("wrapping keys", "≥", 2),
            Goal("times closed", "≥", 2),
            Goal("commands killed", "≥", 10),
            Goal("ms without confirms that no kill explains, most", "≤", 1_000),
            Goal("ms without confirms by a kill, most", "≤", 4_000),
            *(Goal(name, "=", 0) for name in _JUDGED if name != "rounds"),
        ),
        # Ten rounds rotate everything once, and come to the next certificate.
        sweep=Sweep("rotate", 20, step=10),
        seconds=720,
    ),
)

OF_UPGRADES = (
    Proof(
        "upgrade",
        "A set of three nodes under load by clients of both releases goes node by node from the "
        "wheels of the release before to this one, back, and forth again; then its format level is "
        "raised, and the clients of the release before go on",
        ("python", "-m", "weir_lab.bench.faults.upgrade", "--json"),
        {
            "starts with another release": Figure("steps"),
            "format level before it is raised": Figure("levels.0"),
            "format level": Figure("levels.1"),
            "messages": Figure("messages"),
            "requests of the new level, too early": Figure("asked"),
            "of these refused": Figure("early", "asked"),
            **{name: Figure(name) for name in ("lost", "repeated", "reordered", "differing")},
            "of the messages read by the release before at a relay": Figure("at_relay", "messages"),
            "seconds between two confirms, most": Figure("gap_s"),
        },
        (
            Goal("starts with another release", "=", 9),
            Goal("format level before it is raised", "=", FORMAT_LEVEL - 1),
            Goal("format level", "=", FORMAT_LEVEL),
            Goal("messages", "≥", 1_000),
            Goal("of these refused", "=", 1),
            *(Goal(name, "=", 0) for name in ("lost", "repeated", "reordered", "differing")),
            Goal("of the messages read by the release before at a relay", "=", 1),
            Goal("seconds between two confirms, most", "≤", 4),
        ),
        seconds=90,
    ),
    Proof(
        "upgrade-spark",
        "A Spark query of the release before goes on under its checkpoint when its set has this "
        "release and the new level, and then with this release; twice the end of its last batch "
        "was not noted",
        ("python", "-m", "weir_lab.bench.faults.upgrade", "--spark", "--json"),
        {
            "runs": Figure("runs"),
            "format level": Figure("level"),
            "messages": Figure("messages"),
            "batches read again": Figure("replayed"),
            **{name: Figure(name) for name in ("lost", "repeated", "differing")},
        },
        (
            Goal("runs", "=", 3),
            Goal("format level", "=", FORMAT_LEVEL),
            Goal("messages", "≥", 600),
            Goal("batches read again", "=", 2),
            *(Goal(name, "=", 0) for name in ("lost", "repeated", "differing")),
        ),
        seconds=90,
    ),
)

OF_MACHINES = (
    _powercut(
        "powercut",
        "A node in a virtual machine loses power 20 times under load, with a consumer that "
        "works 2 ms on each message (`make powercut` installs what it needs)",
        1,
    ),
    _powercut(
        "powercut-set",
        "The same with three virtual machines: one, two or all of them lose power, 20 times",
        3,
    ),
    _powercut_tiers(),
)

OF_LINKS = (
    Proof(
        "slow-link",
        "Three nodes on links of 100 Mbit/s: entries of 1 MiB cause no election",
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
        "Three nodes with round trips of 250 ms, to which entries of 1 MiB are published for ten "
        "minutes as fast as they are confirmed: no election",
        ("python", "-m", "weir_lab.bench.faults.slow_link",
         "--seconds", "600", "--partitions", "3", "--round-trip-ms", "250"),
        {
            "elections": Figure("elections"),
            "seconds": Figure("seconds"),
            "entries sent": Figure("sent"),
            "entries": Figure("confirmed"),
            "ms to a lone confirm": Figure("lone_ms"),
        },
        (
            Goal("elections", "=", 0),
            Goal("seconds", "≥", 600),
            # 120 MiB at least for each of ten minutes: else nothing was loaded.
            Goal("entries", "≥", 1_200),
            Goal("ms to a lone confirm", "≥", 500),
        ),
        seconds=660,
    ),
    Proof(
        "catch-up",
        "Three nodes on one machine: a follower gets 256 MiB back that it missed, and then another "
        "process reads them, while lone messages are published at 200/s; their latencies are held "
        "against those by themselves",
        ("python", "-m", "weir_lab.bench.faults.catch_up", "--json"),
        {
            "times the median by itself": Figure("p50_times"),
            "times the 99th percentile by itself": Figure("p99_times"),
            "MB/s beside live traffic": Figure("catch_up_mb_s"),
            "MB/s by itself": Figure("catch_up_alone_mb_s"),
            "times the median by itself, reading": Figure("cold_p50_times"),
            "times the 99th percentile by itself, reading": Figure("cold_p99_times"),
            "MB/s read beside live traffic": Figure("cold_mb_s"),
        },
        (
            Goal("times the median by itself", "≤", 2),
            Goal("times the 99th percentile by itself", "≤", 2),
            Goal("MB/s by itself", "≥", 100),
            Goal("times the median by itself, reading", "≤", 2),
            Goal("times the 99th percentile by itself, reading", "≤", 2),
        ),
        seconds=90,
    ),
)  # fmt: skip

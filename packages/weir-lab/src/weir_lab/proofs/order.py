"""What weir claims of one order over all partitions: its cost, and how late it is."""

from __future__ import annotations

from weir_lab.proofs.claims import NONE_LOST, WHOLE, Figure, Goal, Proof, Sweep, bench

_WITHOUT = "--idle 0 --no-faults"
_IN_ORDER = {"out of order": Figure("misplaced"), **WHOLE}
_OTHERS = {
    "of the sequencer": Figure("sequencer_ratio"),
    "delivery p99 ms": Figure("rows.*.delivery_p99_ms", highest=True),
    "in partition order, p99 ms": Figure("rows.*.partition_delivery_p99_ms", highest=True),
    **_IN_ORDER,
}
_ALL_IN_ORDER = (Goal("out of order", "=", 0), *NONE_LOST)

_TURNS = "in turn with partition order and with a sequencer node; the worst of three runs counts"

OF_ORDER = (
    bench(
        "order",
        f"Total order over 8 partitions with 1 to 200 producers, {_TURNS}. One partition is "
        "measured too",
        f"order --partitions 1,8 --producers 1,50,200 {_WITHOUT}",
        {
            "of partition order, 8 partitions": Figure("throughput_ratio_of.8"),
            "200 producers of one, 8 partitions": Figure("producers_ratio_of.8"),
            "of one partition": Figure("one_partition_ratio"),
            **_OTHERS,
        },
        Goal("of partition order, 8 partitions", "≥", 0.8),
        Goal("200 producers of one, 8 partitions", "≥", 0.8),
        *_ALL_IN_ORDER,
    ),
    bench(
        "order-few",
        f"Total order over 2 and 4 partitions with 1 to 200 producers, {_TURNS}",
        f"order --partitions 2,4 --producers 1,50,200 {_WITHOUT}",
        {"of partition order": Figure("throughput_ratio"), **_OTHERS},
        *_ALL_IN_ORDER,
    ),
    bench(
        "order-many",
        f"Total order over 16 partitions with 1 to 200 producers, {_TURNS}",
        f"order --partitions 16 --producers 1,50,200 {_WITHOUT}",
        {"of partition order": Figure("throughput_ratio"), **_OTHERS},
        *_ALL_IN_ORDER,
    ),
    bench(
        "order-idle",
        "The processor time that promises of 100 idle partitions cost, and the delivery time "
        "of a single message in their total order",
        "order --partitions 2 --producers 2 --runs 1 --messages 100000 --idle 100 --no-faults",
        {
            "% of a core, nothing published": Figure("idle.promises_idle"),
            "% of a core, 20 messages/s": Figure("idle.promises_trickle"),
            "delivery p50 ms": Figure("idle.delivery_p50_ms"),
            "budget ms": Figure("idle.budget_ms"),
            "of the budget": Figure("idle.delivery_p50_ms", "idle.budget_ms"),
            "in partition order, p50 ms": Figure("idle.partition_delivery_p50_ms"),
        },
        Goal("% of a core, nothing published", "≤", 1),
        Goal("% of a core, 20 messages/s", "≤", 2),
        Goal("of the budget", "≤", 1),
    ),
    bench(
        "order-readers",
        "What 200 readers of one topic in total order cost beside one reader; with nothing "
        "published, over a minute that begins 80 s after the last message",
        "order --partitions 2 --producers 2 --runs 1 --messages 100000 --idle 0 --no-faults "
        "--readers 200",
        {
            "rounds of promises, by one reader's": Figure("readers.promise_rounds_ratio"),
            "% of a core, nothing published": Figure("readers.many.cpu_idle"),
            "% of a core, 20 messages/s": Figure("readers.many.cpu_trickle"),
        },
        Goal("rounds of promises, by one reader's", "≤", 1.1),
        Goal("% of a core, nothing published", "≤", 1),
        seconds=340,
    ),
    bench(
        "order-faults",
        "Readers in total order on three nodes, while the leader of one partition is slow, pauses "
        "for 2 s, and is killed: how much longer they wait than that partition is unavailable",
        "order --partitions 2 --producers 2 --runs 1 --messages 100000 --idle 0",
        {
            "slow: partition away ms": Figure("lags.0.away_ms"),
            "slow: added ms": Figure("lags.0.added_ms"),
            "paused: partition away ms": Figure("lags.1.away_ms"),
            "paused: added ms": Figure("lags.1.added_ms"),
            "killed: no confirm for ms": Figure("lags.2.unconfirmed_ms"),
            "killed: partition away ms": Figure("lags.2.away_ms"),
            "killed: added ms": Figure("lags.2.added_ms"),
            "out of order": Figure("lags.*.misplaced", highest=True),
        },
        Goal("killed: partition away ms", "≤", 4_000),
        Goal("killed: added ms", "≤", 100),
        Goal("out of order", "=", 0),
    ),
)

OF_PACKETS = (
    bench(
        "toc-conformance",
        "8 processes of weir-toc exchange both services for 60 s, 10 scatterings a second of each "
        "process and service, without loss and with 1 %, at each place of aggregation, with T = 5 "
        "ms between beacons; every message is checked",
        "toc conformance",
        {
            "messages": Figure("messages"),
            "violations": Figure("violations"),
            "false removals": Figure("false_removals"),
            "late": Figure("late"),
            "late without loss": Figure("late_without_loss"),
            "NAK": Figure("nak"),
            "places passed": Figure("passed"),
            "places missing": Figure("missing"),
        },
        # One that exchanges nothing says nothing.
        Goal("messages", "≥", 100_000),
        Goal("violations", "=", 0),
        Goal("false removals", "=", 0),
        # Links of a tree are FIFO.
        Goal("late without loss", "=", 0),
        Goal("places passed", "=", 3),
        seconds=420,
    ),
    bench(
        "toc-rate",
        "One process of weir-toc sends messages of 64 bytes to another through an aggregator, as "
        "fast as possible and then one by one",
        "toc rate --interval-ms 1",
        {
            "best effort messages/s": Figure("best_effort_per_s"),
            "reliable messages/s": Figure("reliable_per_s"),
            "best effort p50 ms": Figure("services.0.latency_p50_ms"),
            "reliable p50 ms": Figure("services.1.latency_p50_ms"),
            "MB of an idle process": Figure("idle_rss_mb"),
            "lost": Figure("lost"),
            "out of order": Figure("misplaced"),
        },
        Goal("best effort messages/s", "≥", 250_000),
        Goal("reliable messages/s", "≥", 120_000),
        # T + 1 ms, and 2 T + 2 ms.
        Goal("best effort p50 ms", "≤", 2),
        Goal("reliable p50 ms", "≤", 4),
        Goal("MB of an idle process", "≤", 40),
        Goal("lost", "=", 0),
        Goal("out of order", "=", 0),
        seconds=60,
    ),
    bench(
        "toc-rate-xdp",
        "The same through programs in the kernel: sender and receiver are in two racks of a tree "
        "of network namespaces below one spine, with beacons each 5 ms",
        "toc rate --place xdp --interval-ms 5",
        {
            "best effort messages/s": Figure("best_effort_per_s"),
            "reliable messages/s": Figure("reliable_per_s"),
            "best effort p50 ms": Figure("services.0.latency_p50_ms"),
            "reliable p50 ms": Figure("services.1.latency_p50_ms"),
            "sender told of": Figure("services.0.failed"),
            "lost": Figure("lost"),
            "out of order": Figure("misplaced"),
        },
        Goal("best effort messages/s", "≥", 100_000),
        Goal("reliable messages/s", "≥", 50_000),
        # T + 1 ms, and 2 T + 2 ms.
        Goal("best effort p50 ms", "≤", 6),
        Goal("reliable p50 ms", "≤", 12),
        Goal("lost", "=", 0),
        Goal("out of order", "=", 0),
        seconds=60,
    ),
    bench(
        "toc-buffers",
        "What a receiver of weir-toc holds in virtual time while a link is 0 to 125 ms late, and "
        "while more is sent than fits in its memory",
        "toc buffers",
        {
            "bytes, most": Figure("held_max"),
            "bytes at 125 ms": Figure("runs.5.held"),
            "of that, away from a straight line": Figure("bend"),
            "packets without a window": Figure("over_budget"),
            "messages, of the least run": Figure("runs.*.delivered"),
        },
        Goal("bytes, most", "≤", 3_500_000),
        Goal("bytes at 125 ms", "≥", 1_000_000),
        Goal("of that, away from a straight line", "≤", 0.05),
        Goal("packets without a window", "=", 0),
        Goal("messages, of the least run", "≥", 500),
        seconds=60,
    ),
    bench(
        "toc-ports",
        "An aggregator of weir-toc to which 32 idle processes are linked, each of which sends a "
        "beacon every millisecond",
        "toc ports",
        {
            "cores": Figure("cores"),
            "beacons in/s": Figure("beacons_in_per_s"),
            "beacons out/s": Figure("beacons_out_per_s"),
            "links taken for silent": Figure("fenced"),
            "MB": Figure("rss_mb"),
        },
        Goal("cores", "≤", 0.5),
        Goal("beacons in/s", "≥", 30_000),
        Goal("beacons out/s", "≥", 30_000),
        Goal("links taken for silent", "=", 0),
        seconds=60,
    ),
    bench(
        "toc-ports-xdp",
        "A programmable switch of weir-toc with 32 ports, each of which leads to an idle process "
        "that sends a beacon every millisecond, all of them from the processor that takes what "
        "comes by the devices: its process, its thread of the kernel but for what that does as the "
        "receiver of its neighbours, and the program on its ports",
        "toc ports --place xdp",
        {
            "links": Figure("ports"),
            "cores": Figure("cores"),
            "of that, the process": Figure("process_cores"),
            "of that, the kernel's thread": Figure("kernel_cores"),
            "of that, the program on the ports": Figure("input_cores"),
            "beside that, for neighbours": Figure("neighbour_cores"),
            "beacons in/s": Figure("beacons_in_per_s"),
            "beacons out/s": Figure("beacons_out_per_s"),
            "links taken for silent": Figure("fenced"),
            "MB": Figure("rss_mb"),
        },
        Goal("links", "=", 32),
        Goal("cores", "≤", 0.1),
        Goal("beacons in/s", "≥", 30_000),
        Goal("beacons out/s", "≥", 30_000),
        Goal("links taken for silent", "=", 0),
        seconds=60,
    ),
    bench(
        "toc-skew",
        "The clocks of 8 processes of weir-toc, with T = 5 ms between beacons, are wrong by up to "
        "250 ms and drift by 50 parts per million: how far their synchronised time is from that of "
        "the leader, and whether order holds while they are followed, and while they jump",
        "toc skew",
        {
            "µs of error, p50": Figure("runs.0.error_p50_us"),
            "µs of error, p99": Figure("runs.0.error_p99_us"),
            "errors above the stated bound": Figure("outside"),
            "readings": Figure("runs.0.readings"),
            "messages, of the least run": Figure("runs.*.messages"),
            "violations": Figure("violations"),
            "false removals": Figure("false_removals"),
        },
        Goal("µs of error, p50", "≤", 20),
        Goal("µs of error, p99", "≤", 200),
        Goal("errors above the stated bound", "=", 0),
        Goal("readings", "≥", 1_000),
        Goal("messages, of the least run", "≥", 10_000),
        Goal("violations", "=", 0),
        Goal("false removals", "=", 0),
        seconds=120,
    ),
    bench(
        "toc-alarm",
        "8 processes of weir-toc run for ten minutes without a fault, with T = 20 ms between "
        "beacons. Then one link after the other lags by seven intervals T, at a process and at a "
        "switch: clocks that fall behind, processes that are stopped again and again, packets that "
        "wait or are lost",
        "toc alarm",
        {
            "T until named, most": Figure("named_t_max"),
            "T until named, median": Figure("named_t_median"),
            "links that lagged": Figure("rounds"),
            "not named": Figure("unnamed"),
            "wrong": Figure("wrong"),
            "seconds without a fault": Figure("quiet_seconds"),
            "false alarms": Figure("false_alarms"),
            "alarms not counted": Figure("uncounted"),
            "processes taken for dead": Figure("removed"),
        },
        Goal("T until named, most", "≤", 50),
        Goal("links that lagged", "≥", 21),
        Goal("not named", "=", 0),
        Goal("wrong", "=", 0),
        Goal("seconds without a fault", "≥", 600),
        Goal("false alarms", "=", 0),
        Goal("alarms not counted", "=", 0),
        seconds=840,
    ),
    Proof(
        "toc-chaos",
        "Processes, aggregators and leaders of the controller of weir-toc are killed with kill -9 "
        "under load, leaders also while they handle a failure, cables are cut, also those to the "
        "core, and processes are stopped for 5 T and 50 T, 20 times each, with T = 20 ms between "
        "beacons; what is promised of failures is checked on every message",
        ("weir", "chaos", "toc", "--times", "20", "--json"),
        {
            "rounds": Figure("rounds"),
            "messages": Figure("messages"),
            "violations": Figure("violations"),
            "false removals": Figure("false_removals"),
            **{
                f"{kind}: {what}": Figure(f"kinds.{kind}.{path}")
                for kind in ("process", "aggregator", "leader", "cable", "handling", "stop", "core")
                for what, path in (
                    ("median ms until told", "detection_median_ms"),
                    ("median T until told", "detection_median_t"),
                    ("median ms until on again", "recovery_median_ms"),
                    ("median T until on again", "recovery_median_t"),
                    ("most ms until on again", "recovery_max_ms"),
                )
            },
            **{
                f"leaders killed while a failure is {what}": Figure(f"handled.{phase}")
                for what, phase in (
                    ("reported", "undecided"),
                    ("decided", "unsettled"),
                    ("settled and to be removed", "to_remove"),
                )
            },
            "core: messages between racks while it is cut, least": Figure("kinds.core.passed_min"),
            "stall of 5 T: median T until on again": Figure("kinds.stall.recovery_median_t"),
            "stall of 5 T: most T until on again": Figure("kinds.stall.recovery_max_t"),
        },
        (
            Goal("rounds", "=", 160),
            Goal("messages", "≥", 10_000),
            Goal("violations", "=", 0),
            Goal("false removals", "=", 0),
            # Two processes of each rack hear both of the other one.
            Goal("core: messages between racks while it is cut, least", "≥", 8),
        ),
        seconds=840,
    ),
    Proof(
        "toc-worlds",
        "100,000 worlds of the transport of packets: switches and processes on networks that lose, "
        "repeat, reorder, damage and cut, with clocks that are wrong, pauses, joins, crashes and "
        "stamps that wrap. Seconds are those that a core computes",
        ("weir", "sim", "toc", "--seed", "{SEED}", "--seeds", "{SEEDS}", "--json"),
        {
            "seeds": Figure("seeds"),
            "violations": Figure("violations"),
            "packets": Figure("packets"),
            "messages delivered": Figure("delivered"),
            "seconds a seed": Figure("cpu_seconds", "seeds", whole="mean"),
            "seconds of the slowest seed": Figure("cpu_seconds_slowest", whole="most"),
        },
        (
            Goal("seeds", "=", 100_000),
            Goal("violations", "=", 0),
            # A world in which nothing is delivered breaks no promise either.
            Goal("messages delivered", "≥", 2_000_000),
            Goal("seconds a seed", "≤", 0.05),
        ),
        # One at a time: two slow each other down.
        sweep=Sweep("toc-worlds", 100_000, step=1_000),
        seconds=4_800,
    ),
    Proof(
        "toc-bugs",
        "One rule of the transport of packets is taken away at a time, and each time a world of "
        "it breaks a promise",
        ("weir", "sim", "toc", "--planted", "--json"),
        {one: Figure(one) for one in ("planted", "caught", "missed")},
        (Goal("planted", "≥", 16), Goal("missed", "=", 0)),
        seconds=240,
    ),
    Proof(
        "toc-minute",
        "A process of weir-toc is stopped by SIGSTOP for a minute under load, 3 times, with "
        "T = 20 ms between beacons: it fails, settles what it holds, and joins again; each message "
        "is checked",
        ("weir", "chaos", "toc", "--kinds", "minute", "--times", "3", "--json"),
        {
            "rounds": Figure("rounds"),
            "messages": Figure("messages"),
            "violations": Figure("violations"),
            "false removals": Figure("false_removals"),
            "median T until told": Figure("kinds.minute.detection_median_t"),
            "median T until on again": Figure("kinds.minute.recovery_median_t"),
        },
        (
            Goal("rounds", "=", 3),
            Goal("messages", "≥", 3_000),
            Goal("violations", "=", 0),
            Goal("false removals", "=", 0),
        ),
        seconds=300,
    ),
)

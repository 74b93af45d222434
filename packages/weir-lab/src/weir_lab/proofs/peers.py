"""What weir claims beside other brokers, beside servers to which devices connect directly, with the
oldest PySpark, and of a pipeline on a Spark cluster.
"""

from __future__ import annotations

from weir_lab.proofs.claims import Figure, Goal, Proof, Sweep, bench

ALL_PEERS = "redis,nats,rabbitmq,activemq"
#: The same by the names that their rows have, in each of their settings.
BURST_PEERS = (
    *("redis:always", "redis:everysec", "nats:always", "nats:default", "activemq:nio"),
    *("rabbitmq:quorum", "rabbitmq:classic", "rabbitmq:stream"),
)
#: Those whose messages workers can share, and Python clients that are shipped.
_WORKING_PEERS = (
    *(side for side in BURST_PEERS if side != "rabbitmq:stream"),
    *("redis-py:always", "nats-py:always"),
)
_PEERS_OF_SETS = "rabbitmq,nats"


def _seconds(place: int, side: int) -> Figure:
    """Return the response time of a side in one of the rounds."""
    return Figure(f"rounds.{place}.rows.{side}.result.seconds")


def _python_path(place: int, side: str) -> str:
    return f"rounds.{place}.rows.[{side}].result.python_per_s"


def _python(place: int, side: str) -> Figure:
    """Return the rate of a side's Python client in one of the rounds."""
    return Figure(_python_path(place, side))


def _times_python(place: int, side: str) -> Figure:
    """Return how many times the rate of a side's Python client that of weir's is."""
    return Figure(_python_path(place, "weir"), _python_path(place, side))


OF_PEERS: tuple[Proof, ...] = (
    bench(
        "compare-timeliness",
        "The timeliness test on weir and on other brokers, with 1, 50 and 200 producers",
        f"compare --peer {ALL_PEERS} --shape timeliness --producers 1,50,200",
        {
            "times the best that syncs": Figure("times_best_synced"),
            "times the best of any kind": Figure("times_best"),
            "weir messages/s, 1 producer": Figure("rounds.0.figure"),
            "times any kind, 1 producer": Figure("rounds.0.times_best"),
            "times any kind, 50 producers": Figure("rounds.1.times_best"),
            "times any kind, 200 producers": Figure("rounds.2.times_best"),
        },
        Goal("times the best that syncs", "≥", 6),
        Goal("times the best of any kind", "≥", 1.5),
    ),
    bench(
        "compare-burst",
        "The burst test on weir and on other brokers, compared by the time to the last "
        "confirm. That time includes the second in which the devices send, for every broker, "
        "so 0.99 means a difference of at most 1 %. Each broker has three runs and the "
        "median counts, so that one slow sync does not decide. For 8,000 devices the table "
        "shows by how much the last confirm comes after that second, and the 99th percentile "
        "of the confirms",
        f"compare --peer {ALL_PEERS} --shape burst --devices 1000,2000,4000,6000,8000 --turns 3",
        {
            "times the best that syncs": Figure("times_best_synced"),
            "times the best of any kind": Figure("times_best"),
            "times the best that syncs, 8,000 devices": Figure("rounds.4.times_best_synced"),
            **{
                f"{side}: {what}": Figure(f"rounds.4.rows.[{side}].result.{path}")
                for side in ("weir", *BURST_PEERS)
                for what, path in (
                    ("ms beyond the second", "beyond_ms"),
                    ("confirm p99 ms", "confirm_p99_ms"),
                )
            },
        },
        Goal("times the best that syncs", "≥", 0.99),
        Goal("weir: ms beyond the second", "≤", 20),
        seconds=630,
    ),
    bench(
        "compare-singles",
        "Connections that each await one publish at a time, on weir and on other brokers, all "
        "driven by one program in C; then Python clients send as many. Each broker has three runs "
        "and the median counts. A run beside which others used more than 0.2 cores is run again",
        "compare --peer redis,nats --shape singles --connections 1,10,100,1000 --turns 3",
        {
            "times the best that syncs, 100 connections": Figure("rounds.2.times_best_synced"),
            "weir messages/s, 100 connections": Figure("rounds.2.figure"),
            "µs of the server for a message": Figure("rounds.2.rows.[weir].result.server_us"),
            "weir messages/s, Python clients": Figure("rounds.2.rows.[weir].result.python_per_s"),
            "the same, one connection": Figure("rounds.0.rows.[weir].result.python_per_s"),
            "cores that others used": Figure("rounds.2.rows.[weir].foreign_cores"),
        },
        Goal("times the best that syncs, 100 connections", "≥", 0.5),
        Goal("weir messages/s, 100 connections", "≥", 35_000),
        Goal("µs of the server for a message", "≤", 22),
        seconds=870,
    ),
    bench(
        "compare-python",
        "The same with the Python clients that are shipped: weir's, redis-py and nats-py, with one "
        "connection and with 100. `make peers` installs them. Each has three runs and the median "
        "counts",
        "compare --peer redis-py:always,nats-py:always --shape singles --connections 1,100 "
        "--turns 3",
        {
            "weir messages/s, one connection": _python(0, "weir"),
            "redis-py messages/s, one connection": _python(0, "redis-py:always"),
            "nats-py messages/s, one connection": _python(0, "nats-py:always"),
            "times redis-py, one connection": _times_python(0, "redis-py:always"),
            "weir messages/s, 100 connections": _python(1, "weir"),
            "redis-py messages/s, 100 connections": _python(1, "redis-py:always"),
            "nats-py messages/s, 100 connections": _python(1, "nats-py:always"),
            "times redis-py, 100 connections": _times_python(1, "redis-py:always"),
        },
        Goal("times redis-py, one connection", "≥", 1),
        Goal("times redis-py, 100 connections", "≥", 1.5),
        seconds=300,
    ),
    bench(
        "compare-workers",
        "16 workers of one process take a topic that was filled before, and ack all of it, until "
        "the broker knows the last ack. weir is taken and acked in batches and, beside, message "
        "by message; Redis is acked by the hundred, NATS message by message, RabbitMQ and ActiveMQ "
        "by what one read brings. redis-py and nats-py are the Python clients that are shipped. "
        "A stream of RabbitMQ is no work queue",
        f"compare --peer {ALL_PEERS},redis-py:always,nats-py:always --shape workers --workers 16 "
        "--messages 2000000",
        {
            "times the best that syncs": Figure("times_best_synced"),
            "times the best of any kind": Figure("times_best"),
            "message by message, times redis:always": Figure(
                "rounds.0.rows.[weir:messages].figure", "rounds.0.rows.[redis:always].figure"
            ),
            **{
                f"{side}: messages/s": Figure(f"rounds.0.rows.[{side}].figure")
                for side in ("weir", "weir:messages", *_WORKING_PEERS)
            },
            "weir lost": Figure("rounds.0.rows.[weir].result.lost"),
            "weir repeated": Figure("rounds.0.rows.[weir].result.repeated"),
        },
        Goal("times the best that syncs", "≥", 2),
        Goal("message by message, times redis:always", "≥", 1),
        Goal("weir lost", "=", 0),
        Goal("weir repeated", "=", 0),
        seconds=600,
    ),
    bench(
        "compare-latency",
        "The confirm of a single message on weir and on other brokers; above 1, weir is faster. "
        "The goal in milliseconds is twice what such a machine has shown",
        f"compare --peer {ALL_PEERS} --shape latency",
        {
            "times the best that syncs": Figure("times_best_synced"),
            "times the best of any kind": Figure("times_best"),
            "weir: ms to a lone confirm, median": Figure("rounds.0.figure"),
        },
        Goal("times the best that syncs", "≥", 1),
        Goal("weir: ms to a lone confirm, median", "≤", 0.75),
    ),
    *(
        bench(
            f"compare-set-{shape}",
            f"The test `{shape}` with messages of 1 KB, on three nodes each of weir, RabbitMQ "
            "(quorum queues) and NATS JetStream",
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
    bench(
        "compare-dormitory",
        "1,000 to 8,000 locks report within a second, and each record is committed to the "
        "same PostgreSQL: by handlers of weir, by servers to which the locks connect "
        "directly, or by consumers of ActiveMQ. Seconds are until the last reply; recorded "
        "is the share of the sent records that are in the table",
        "compare --shape dormitory --peer direct,activemq --devices 1000,2000,4000,6000,8000",
        {
            "weir recorded": Figure("rounds.*.rows.0.result.share_recorded"),
            "direct recorded": Figure("rounds.*.rows.1.result.share_recorded"),
            "activemq recorded": Figure("rounds.*.rows.2.result.share_recorded"),
            "weir seconds, 4,000 locks": _seconds(2, 0),
            "direct seconds, 4,000 locks": _seconds(2, 1),
            "activemq seconds, 4,000 locks": _seconds(2, 2),
            "weir seconds, 8,000 locks": _seconds(4, 0),
            "direct seconds, 8,000 locks": _seconds(4, 1),
            "activemq seconds, 8,000 locks": _seconds(4, 2),
            "times the better, 1,000 locks": Figure("rounds.0.times_best"),
            "times the better, 8,000 locks": Figure("rounds.4.times_best"),
        },
        Goal("weir recorded", "=", 1),
        Goal("times the better, 1,000 locks", "≥", 0.99),
        Goal("times the better, 8,000 locks", "≥", 1),
    ),
)

OLDEST_SPARK = Proof(
    "spark-oldest",
    "All Spark tests run with the oldest supported PySpark; CI runs them with the newest",
    ("scripts/spark-oldest",),
    {"tests": Figure("passed")},
    (Goal("tests", "≥", 140),),
)

_KILLED = ("drivers", "executors", "leaders")
#: What must be nowhere: by a count of the second topic and of the table, and by the audit job.
_WRONG = {
    "lost": "lost",
    "repeated": "repeated",
    "lost in the table": "lake_lost",
    "repeated in the table": "lake_repeated",
    "lost, by the audit job": "audit_lost",
    "repeated, by the audit job": "audit_repeated",
}

PIPELINE_KILLS = Proof(
    "pipeline-kills",
    "Drivers, executors and leaders are killed with kill -9, 10 times each, while a job on a Spark "
    "cluster carries messages from a topic to another one and from there to a Delta table",
    ("python", "-m", "weir_lab.spark_cluster.kills", "--seed", "{SEED}", "--times", "{SEEDS}",
     "--json"),
    {
        "messages": Figure("sent"),
        **{f"{kind} killed": Figure(kind) for kind in _KILLED},
        **{name: Figure(path) for name, path in _WRONG.items()},
    },
    (
        # 500 before each kill: else nothing would be on its way.
        Goal("messages", "≥", 15_000),
        *(Goal(f"{kind} killed", "≥", 10) for kind in _KILLED),
        *(Goal(name, "=", 0) for name in _WRONG),
    ),
    sweep=Sweep("pipeline-kills", 10, step=5),
    seconds=900,
)  # fmt: skip

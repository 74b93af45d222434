"""What weir claims of clusters and handlers, and of the paper's experiment (SmartDep §3): a
dormitory.
"""

from __future__ import annotations

from weir_lab.proofs.claims import NONE_LOST, WHOLE, Figure, Goal, Proof, bench, tests


def _killed(name: str, what: str, options: str, processes: int, leaders: int, *more: Goal) -> Proof:
    figures = {
        "consumers": Figure("consumers_seen"),
        "processes killed": Figure("handlers_killed"),
        "nodes killed": Figure("leaders_killed"),
        **WHOLE,
        "lost without the inbox": Figure("never_begun"),
        "repeated without the inbox": Figure("begun_again"),
        "least of a consumer, of the mean": Figure("least"),
        "most of a consumer, of the mean": Figure("most"),
    }
    goals = [
        Goal("consumers", "≥", 100),
        *NONE_LOST,
        Goal("lost without the inbox", "=", 0),
        *more,
    ]
    if leaders:
        goals.append(Goal("nodes killed", "≥", leaders))
    if processes:
        goals.append(Goal("processes killed", "≥", processes))
        # Else nothing was shown: half of the processes die between a commit and its ack.
        goals.append(Goal("repeated without the inbox", "≥", 1))
    words = ("python", "-m", "weir_lab.bench.faults.killed", *options.split(), "--json")
    return Proof(name, what, words, figures, tuple(goals))


def _lag(name: str, what: str, options: str) -> Proof:
    figures = {
        "restarts": Figure("restarts"),
        "times they disagreed": Figure("disagreed"),
        "counted against the ledger": Figure("wrong"),
        "messages": Figure("published"),
        "not done, at most": Figure("most_left"),
    }
    goals = (
        Goal("restarts", "≥", 20),
        Goal("times they disagreed", "=", 0),
        Goal("counted against the ledger", "=", 0),
    )
    return Proof(
        name,
        what,
        ("python", "-m", "weir_lab.bench.consumers.lag", *options.split()),
        figures,
        goals,
    )


OF_HANDLERS = (
    bench(
        "handlers",
        "The handlers of one process check and ack 400,000 messages, one by one. And a "
        "cluster pulls and acks 4,000,000 messages in whole batches, compared with a plain "
        "reader",
        "handlers",
        {
            "messages/s handled": Figure("messages_per_s"),
            "messages/s pulled": Figure("pulled_per_s"),
            "messages/s read": Figure("read_per_s"),
            "pulled of read": Figure("pulled_of_read"),
            **WHOLE,
        },
        Goal("messages/s handled", "≥", 20_000),
        Goal("pulled of read", "≥", 0.5),
        *NONE_LOST,
    ),
    bench(
        "workers",
        "16 workers of one process share a topic and ack what they take, one by one and in "
        "batches. A keyed cluster takes the same messages of 1,000 keys. Full speed is 80 % of the "
        "steady rate, and the part that was slowest to reach it counts. Costs are processor time "
        "of the broker and of the workers",
        "workers",
        {
            "messages/s": Figure("messages_per_s"),
            "messages/s in batches": Figure("batched_per_s"),
            "messages/s by key": Figure("keyed.messages_per_s"),
            "messages/s by key in batches": Figure("keyed_batches.messages_per_s"),
            "times the costs, by key": Figure("keyed_times"),
            "the same in batches": Figure("keyed_batches_times"),
            "seconds until full speed": Figure("full_speed_s"),
            "cores that others used": Figure("foreign_cores"),
            **WHOLE,
        },
        Goal("messages/s", "≥", 300_000),
        Goal("messages/s in batches", "≥", 700_000),
        Goal("times the costs, by key", "≤", 1.5),
        Goal("seconds until full speed", "≤", 0.2),
        *NONE_LOST,
        seconds=120,
    ),
    bench(
        "readers",
        "16 readers of one topic, in two processes, each read 2,000,000 messages by themselves; "
        "the slowest counts. Processor time is of each message that a reader was given",
        "readers",
        {
            "messages/s each": Figure("messages_per_s"),
            "messages/s of all": Figure("all_per_s"),
            "ns of the broker": Figure("server_ns"),
            "ns of the reader": Figure("client_ns"),
            "cores that others used": Figure("foreign_cores"),
            **WHOLE,
        },
        Goal("messages/s each", "≥", 400_000),
        *NONE_LOST,
        seconds=30,
    ),
    _killed(
        "handlers-killed",
        "100 consumers, five in each of 20 processes, share a topic with 2 partitions. While "
        "they handle 100,000 messages, processes are killed with kill -9 30 times, and the "
        "node once. With an inbox in PostgreSQL every message has its effect once",
        "",
        30,
        1,
    ),
    _killed(
        "handlers-leader-killed",
        "The same on three nodes, whose leader is killed with kill -9 five times meanwhile",
        "--nodes 3 --leader-kills 5",
        30,
        5,
    ),
    _killed(
        "handlers-even",
        "100 consumers with handlers of 400 ms share a topic with 2 partitions: how evenly "
        "they share 20,000 messages",
        "--kills 0 --leader-kills 0 --messages 20000 --work-ms 400 --backlog 3000",
        0,
        0,
        Goal("least of a consumer, of the mean", "≥", 0.7),
        Goal("most of a consumer, of the mean", "≤", 1.4),
    ),
    _killed(
        "handlers-even-busy",
        "The same with handlers that only commit to the database, on a machine that is fully used",
        "--kills 0 --leader-kills 0 --messages 20000",
        0,
        0,
        Goal("least of a consumer, of the mean", "≥", 0.5),
        Goal("most of a consumer, of the mean", "≤", 1.6),
    ),
    _lag(
        "lag",
        "`weir cluster lag` is compared with a full count of what is not acked, after each "
        "of 20 restarts of a node that was killed with kill -9 under load",
        "",
    ),
    _lag("lag-set", "The same on three nodes, of which a leader is killed", "--nodes 3"),
    Proof(
        "work",
        "`weir work --max 8` handles 100,000 messages of 2 ms each: it starts more "
        "processes, and stops them afterwards",
        ("python", "-m", "weir_lab.bench.consumers.pool", "--json"),
        {
            "processes at most": Figure("most_processes"),
            "seconds until they are there": Figure("to_most_s"),
            "messages/s": Figure("messages_per_s"),
            "seconds from the last message to one process": Figure("to_least_s"),
            **WHOLE,
        },
        (
            Goal("processes at most", "=", 8),
            Goal("seconds until they are there", "≤", 15),
            # It cools down for 10 s before it lets any go.
            Goal("seconds from the last message to one process", "≤", 30),
            *NONE_LOST,
        ),
    ),
    tests(
        "inbox-postgres",
        "An inbox on a PostgreSQL server: each message is delivered to all writers at once "
        "and has one effect. Other cases have concurrent writers, and rows that are deleted "
        "meanwhile",
        "packages/weir-lab/tests/interop/test_inbox_postgres.py",
        {
            "messages": Figure("messages"),
            "writers": Figure("writers", whole="least"),
            "cases": Figure("passed"),
        },
        Goal("messages", "≥", 200),
        Goal("writers", "≥", 8),
        Goal("cases", "≥", 14),
    ),
)

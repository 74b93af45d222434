"""What weir claims of clusters and handlers: how fast they are, that each effect happens once, and
what it costs to know what is done.
"""

from __future__ import annotations

from weir.bench.claims import NONE_LOST, WHOLE, Figure, Goal, bench, tests

OF_HANDLERS = (
    bench(
        "handlers",
        "400,000 messages one by one through the handlers of one process, each checked and acked; "
        "and 4,000,000 pulled by a cluster in whole batches and acked, beside a plain reader",
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
    tests(
        "handlers-killed",
        "100 handler processes with an inbox in PostgreSQL, 30 of them and the node killed with -9 "
        "at any moment, while 100,000 messages flow: each has its effect, and has it once",
        "{TESTS:WEIR_HANDLER_KILLS}",
        3_600,
        WEIR_HANDLER_KILLS="30",
        WEIR_HANDLERS="100",
        WEIR_HANDLED="100000",
    ),
    tests(
        "handlers-leader-killed",
        "the same on three nodes, whose leader is killed with -9 five times meanwhile",
        "{TESTS:WEIR_HANDLER_KILLS}",
        3_600,
        WEIR_HANDLER_KILLS="30",
        WEIR_HANDLERS="100",
        WEIR_HANDLED="100000",
        WEIR_HANDLER_NODES="3",
        WEIR_HANDLER_LEADER_KILLS="5",
    ),
    tests(
        "holes",
        "10,000,000 holes in what a cluster has done: 5 bytes each at most, in memory and in a "
        "checkpoint",
        "tests/unit/broker/test_broker_ranges.py",
        1_800,
        WEIR_HOLES="10000000",
    ),
    tests(
        "inbox-postgres",
        "an inbox on a PostgreSQL server: writers beside each other, and rows that go meanwhile",
        "tests/interop/test_inbox_postgres.py",
        900,
    ),
)

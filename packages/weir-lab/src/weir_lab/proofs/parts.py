"""What weir claims of parts of the broker, each in a process of its own, without a node."""

from __future__ import annotations

from weir_lab.proofs.claims import Figure, Goal, Proof, bench, tests

OF_PARTS: tuple[Proof, ...] = (
    Proof(
        "fuzz",
        "Each decoder of the protocols gets 10,000,000 damaged inputs",
        ("python", "packages/weir-mq/tests/fuzz/fuzz_dialects.py"),
        {"inputs of each reader": Figure("*.inputs")},
        (Goal("inputs of each reader", "≥", 10_000_000),),
        {"WEIR_FUZZ": "10000000"},
    ),
    tests(
        "log-flips",
        "200 times a bit is flipped or the end cut off, in a file of a log without a node: "
        "the log returns the right bytes or none",
        "{TESTS:WEIR_FLIPS}",
        {"flips and cuts": Figure("changes"), "logs that refused to open": Figure("refused")},
        Goal("flips and cuts", "≥", 200),
        # Else it would be safe to serve nothing at all.
        Goal("logs that refused to open", "≤", 100),
        seconds=60,
        WEIR_FLIPS="200",
    ),
    tests(
        "delays",
        "A message is delayed for 30 days, and 1,000,000 batches are delayed: memory stays bounded",
        "{TESTS:WEIR_DELAYED_BATCHES}",
        {
            "days": Figure("days"),
            "messages past the one that waits": Figure("messages"),
            "runs of offsets kept for them": Figure("runs"),
            "delayed batches": Figure("batches"),
            "bytes each, a replica": Figure("row_bytes"),
            "bytes more each, where led": Figure("alarm_bytes"),
        },
        Goal("days", "≥", 30),
        Goal("runs of offsets kept for them", "≤", 1),
        Goal("delayed batches", "≥", 1_000_000),
        Goal("bytes each, a replica", "≤", 65),
        Goal("bytes more each, where led", "≤", 97),
        WEIR_DELAYED="30",
        WEIR_DELAYED_BATCHES="1000000",
    ),
    tests(
        "keyed",
        "Random programs on keyed clusters, compared with the rule itself: no message of a "
        "key is delivered out of order",
        "{TESTS:WEIR_KEYED}",
        {"programs": Figure("programs")},
        Goal("programs", "≥", 1_000),
        WEIR_KEYED="1000",
    ),
    tests(
        "holes",
        "A cluster has acked all but 10,000,000 messages, each between acked ones: each "
        "takes at most 5 bytes in memory and in a checkpoint",
        "{TESTS:WEIR_HOLES}",
        {
            "holes": Figure("holes"),
            "bytes of memory each": Figure("memory_bytes"),
            "bytes of a checkpoint each": Figure("encoded_bytes"),
        },
        Goal("holes", "≥", 10_000_000),
        Goal("bytes of memory each", "≤", 5),
        Goal("bytes of a checkpoint each", "≤", 5),
        WEIR_HOLES="10000000",
    ),
    bench(
        "producers",
        "A million producer ids of window 1, in the registry and in a partition that each wrote "
        "to: memory, and for how long a snapshot stops the shard, in processor time",
        "producers",
        {
            "MB": Figure("memory_mb"),
            "bytes of an id in a checkpoint": Figure("checkpoint_bytes_per_id"),
            "ms to take a snapshot": Figure("taken_ms"),
            "ms, one write after it": Figure("write_ms"),
            "ms at most": Figure("stop_ms"),
        },
        Goal("MB", "≤", 100),
        Goal("ms at most", "≤", 5),
        seconds=120,
    ),
)

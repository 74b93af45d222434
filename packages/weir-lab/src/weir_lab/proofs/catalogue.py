"""What weir claims in figures: each proof's command, what is read from its output, and the goals.

These take longer than a check of every change may. Each of TARGETS is one of make; `make proof
ONLY=burst,latency` runs some of all; docs/PROOF.md is made from what came out.
"""

from __future__ import annotations

from weir_lab.proofs.access import OF_ACCESS, OF_ACCESS_SEEDS, OF_HANDSHAKES, OF_LOGINS
from weir_lab.proofs.claims import NONE_LOST, WHOLE, Figure, Goal, Proof, Target, bench, tests
from weir_lab.proofs.handlers import OF_HANDLERS
from weir_lab.proofs.order import OF_ORDER, OF_PACKETS
from weir_lab.proofs.parts import OF_PARTS
from weir_lab.proofs.peers import OF_PEERS, OLDEST_SPARK, PIPELINE_KILLS
from weir_lab.proofs.sets import OF_LINKS, OF_MACHINES, OF_ROTATIONS, OF_SETS, OF_UPGRADES
from weir_lab.proofs.worlds import OF_FIRST_WORLDS, OF_POWER, OF_WORLDS

#: What a request may cost, by the names that `weir bench journey` prints.
JOURNEYS = {
    "publish_calls": 350,
    "publish_files": 45,
    "publish_changes": 350,
    "pull_calls": 1_016,
    "ack_calls": 620,
    "barrier_calls": 900,
    "lone_calls": 110,
}

MEASURED = (
    bench(
        "timeliness",
        "4,000,000 messages of 100 bytes are sent by 1, 50 and 200 producers; the time is "
        "from the first send to the last receive",
        "timeliness --messages 4000000 --producers 1,50,200",
        {
            "messages/s, 1 producer": Figure("runs.0.messages_per_s"),
            "messages/s, 50 producers": Figure("runs.1.messages_per_s"),
            "messages/s, 200 producers": Figure("runs.2.messages_per_s"),
            "50 producers of one": Figure("runs.1.messages_per_s", "runs.0.messages_per_s"),
            "200 producers of one": Figure("runs.2.messages_per_s", "runs.0.messages_per_s"),
            "lost": Figure("runs.*.lost", highest=True),
            "repeated": Figure("runs.*.repeated", highest=True),
        },
        Goal("messages/s, 1 producer", "≥", 1_000_000),
        Goal("messages/s, 50 producers", "≥", 600_000),
        Goal("messages/s, 200 producers", "≥", 600_000),
        Goal("50 producers of one", "≥", 0.7),
        Goal("200 producers of one", "≥", 0.7),
        *NONE_LOST,
    ),
    bench(
        "produce",
        "The highest rate at which messages of 100 bytes can be published before latency doubles",
        "throughput --shape produce",
        {
            "messages/s sustained": Figure("messages_per_s"),
            "messages/s flat out": Figure("flat_out_messages_per_s"),
            "confirm p99 ms": Figure("confirm_p99_ms"),
            **WHOLE,
        },
        Goal("messages/s sustained", "≥", 1_000_000),
        *NONE_LOST,
    ),
    bench(
        "consume",
        "One reader reads a topic of 4,000,000 messages to its end; the stream of RabbitMQ gives "
        "8,250,000/s on such a machine",
        "throughput --shape consume --messages 4000000",
        {"messages/s": Figure("messages_per_s"), **WHOLE},
        Goal("messages/s", "≥", 8_500_000),
        *NONE_LOST,
    ),
    bench(
        "both",
        "The highest rate of publishing and reading at the same time before latency doubles. The "
        "goals are a half of what such a machine has shown",
        "throughput --shape both",
        {
            "messages/s sustained": Figure("messages_per_s"),
            "messages/s flat out": Figure("flat_out_messages_per_s"),
            "delivery p99 ms": Figure("delivery_p99_ms"),
            **WHOLE,
        },
        Goal("messages/s sustained", "≥", 650_000),
        Goal("messages/s flat out", "≥", 1_650_000),
        *NONE_LOST,
    ),
    bench(
        "filter",
        "One tag of ten is read of 2,000,000 messages: with all tags in each batch, and in runs of "
        "one tag. What moves, and what the node reads, over the bytes that match",
        "filter --tags 10",
        {
            "moved, all tags in each batch": Figure("shapes.0.bytes_ratio"),
            "moved, runs": Figure("shapes.1.bytes_ratio"),
            "read, runs": Figure("shapes.1.disk_ratio"),
            "messages/s scanned, all tags": Figure("shapes.0.scanned_per_s"),
            "messages/s scanned, runs": Figure("shapes.1.scanned_per_s"),
        },
        Goal("moved, all tags in each batch", "≤", 1.3),
        Goal("moved, runs", "≤", 1.05),
        Goal("read, runs", "≤", 1.1),
        Goal("messages/s scanned, all tags", "≥", 1_500_000),
        Goal("messages/s scanned, runs", "≥", 1_500_000),
        seconds=60,
    ),
    bench(
        "tiers",
        "Five relays, one below the other: single messages, then 100,000 messages a second in "
        "batches of 100 for 60 s",
        "tiers --depth 5",
        {
            "relays": Figure("depth"),
            "ms that a hop adds, median": Figure("hop_added_p50_ms"),
            "ms behind the confirm in total order, p99": Figure("behind_confirm_p99_ms"),
            "messages/s": Figure("bulk.messages_per_s"),
            "batches/s": Figure("bulk.batches_per_s"),
            "ms to the last reader at that rate, median": Figure("bulk.delivered.p50_ms"),
            "µs of a processor for a batch and hop": Figure("bulk.cpu_us_per_batch_and_hop"),
            "messages that the last relay lacked, second quarter": Figure("bulk.lag_half"),
            "messages that the last relay lacked, last quarter": Figure("bulk.lag_end"),
            "fell behind more and more": Figure("bulk.growing"),
        },
        Goal("ms that a hop adds, median", "≤", 2),
        Goal("messages/s", "≥", 99_000),
        Goal("µs of a processor for a batch and hop", "≤", 60),
        Goal("fell behind more and more", "=", 0),
    ),
    bench(
        "tiers-cities",
        "The same messages are read by 20 readers in each of three cities, at the core and at a "
        "relay in their city: bytes of packets between the core and the cities",
        "tiers --cities 3 --readers 20",
        {
            "bytes with relays, of those without": Figure("ratio"),
            "bytes without relays": Figure("direct.moved"),
            "bytes with relays": Figure("relays.moved"),
            "ms to deliver without relays, median": Figure("direct.delivery.p50_ms"),
            "ms to deliver with relays, median": Figure("relays.delivery.p50_ms"),
            **{name: Figure(name) for name in ("lost", "repeated", "out_of_order", "differing")},
        },
        Goal("bytes with relays, of those without", "≤", 0.07),
        *(Goal(name, "=", 0) for name in ("lost", "repeated", "out_of_order", "differing")),
        seconds=120,
    ),
    bench(
        "burst",
        "1,000 to 8,000 devices connect and send a message within a second, and each waits "
        "for its confirm",
        "burst --devices 1000,2000,4000,6000,8000",
        {
            "confirmed": Figure("runs.*.share_confirmed"),
            "delivered": Figure("runs.*.share_delivered"),
            "seconds, 1,000 devices": Figure("runs.0.seconds"),
            "seconds, 4,000 devices": Figure("runs.2.seconds"),
            "seconds, 8,000 devices": Figure("runs.4.seconds"),
            "confirm p99 ms, 8,000 devices": Figure("runs.4.confirm_p99_ms"),
        },
        Goal("confirmed", "=", 1),
        Goal("delivered", "=", 1),
    ),
    bench(
        "latency",
        "The time from publishing a single message to its confirm, compared with a sync of "
        "the disk; and the delivery time at 1,000 messages/s",
        "latency",
        {
            "confirm p50 ms": Figure("confirm_p50_ms"),
            "fdatasync p50 ms": Figure("fdatasync_p50_ms"),
            "ms over fdatasync": Figure("over_fdatasync_ms"),
            "delivery p50 ms": Figure("delivery_p50_ms"),
            "delivery p99 ms": Figure("delivery_p99_ms"),
            "delivery p99.9 ms": Figure("delivery_p999_ms"),
            **WHOLE,
        },
        Goal("ms over fdatasync", "≤", 0.3),
        *NONE_LOST,
    ),
    bench(
        "journey",
        "The calls of Python that one request costs on three nodes, whose disks and network are in "
        "memory, and how often those change file; `lone` goes to a node that is alone",
        "journey",
        {figure: Figure(figure) for figure in JOURNEYS},
        *(Goal(figure, "≤", most) for figure, most in JOURNEYS.items()),
        seconds=5,
    ),
    bench(
        "spark",
        "Spark reads a topic into its noop sink, compared with a Python source that only "
        "reads Arrow files",
        "spark --messages 4000000",
        {
            "rows/s": Figure("rows_per_s"),
            "of the bare source": Figure("ratio"),
            "rows/s, whole query": Figure("query_rows_per_s"),
            "column value alone, of nine": Figure("columns_ratio"),
            "typed rows/s, JSON": Figure("typed_rows_per_s.json"),
            "typed rows/s, Avro": Figure("typed_rows_per_s.avro"),
            "typed rows/s, Protobuf": Figure("typed_rows_per_s.protobuf"),
            "typed rows/s, Arrow": Figure("typed_rows_per_s.arrow"),
            "fresh within ms, p99": Figure("freshness_p99_ms"),
            "the same in total order": Figure("total_freshness_p99_ms"),
            "times a micro-batch, 64 partitions": Figure("partitions_ratio"),
        },
        Goal("rows/s", "≥", 1_000_000),
        Goal("of the bare source", "≥", 0.9),
        Goal("column value alone, of nine", "≥", 1.5),
        Goal("typed rows/s, JSON", "≥", 300_000),
        Goal("fresh within ms, p99", "≤", 1_000),
        Goal("the same in total order", "≤", 1_300),
        Goal("times a micro-batch, 64 partitions", "≤", 1.5),
    ),
    Proof(
        "restart",
        "A node with a log of 10 GB starts: the time from the start of its process to the "
        "first confirm, after kill -9 and after a normal stop. The slower one counts. A "
        "third start has no index files",
        ("python", "-m", "weir_lab.bench.storage.restart", "--gib", "9.35"),
        {
            "seconds": Figure("restart_seconds"),
            "seconds after kill -9": Figure("after_kill_seconds"),
            "seconds after a stop": Figure("after_stop_seconds"),
            "seconds without index files": Figure("without_index_seconds"),
            "bytes": Figure("log_bytes"),
            "messages": Figure("messages"),
        },
        (Goal("seconds", "≤", 5), Goal("bytes", "≥", 10_000_000_000)),
    ),
    Proof(
        "scrub",
        "Every byte of a stopped node's log is verified: frames, batches and hashes. And the "
        "background scrub of a running node: its rate while nothing is published and while "
        "single messages are, and the confirm times of those messages without it and with it",
        ("python", "-m", "weir_lab.bench.storage.scrub"),
        {
            "MB/s": Figure("mb_per_s"),
            "MiB": Figure("verified_mib"),
            "background MB/s, idle": Figure("background.idle_mb_per_s"),
            "background MB/s, busy": Figure("background.beside.scrubbed_mb_per_s"),
            "confirm p99 ms without it": Figure("background.before.confirm_p99_ms"),
            "confirm p99 ms beside it": Figure("background.beside.confirm_p99_ms"),
            "p99 beside of p99 without": Figure("background.p99_ratio"),
        },
        (
            Goal("MB/s", "≥", 500),
            # 4 MiB four times a second, for each of two logs.
            Goal("background MB/s, idle", "≤", 34),
            Goal("p99 beside of p99 without", "≤", 1.5),
        ),
    ),
    Proof(
        "strangers",
        "Normal clients share a node with 1,000 connections that announce 8 MiB and send 1 "
        "KB, and with 64 devices that ping without a pause",
        ("python", "-m", "weir_lab.bench.faults.strangers"),
        {
            "p99 of frames of 60 KiB, beside claims of alone": Figure("p99_ratio"),
            "longest of those, ms": Figure("beside_longest_ms"),
            "batch of 1 MiB beside claims, ms": Figure("batch_ms"),
            "MiB of memory more": Figure("resident_more_mib"),
            "a device's confirm beside pings, ms": Figure("device_wait_ms"),
        },
        (
            Goal("p99 of frames of 60 KiB, beside claims of alone", "≤", 2),
            Goal("longest of those, ms", "≤", 1_000),
            Goal("batch of 1 MiB beside claims, ms", "≤", 1_000),
            Goal("MiB of memory more", "≤", 100),
            Goal("a device's confirm beside pings, ms", "≤", 250),
        ),
    ),
)

SURVIVED = (
    tests(
        "kill",
        "A node is killed with kill -9 under load, 20 times. Every message is there once, at "
        "the offset of its receipt",
        "{TESTS:WEIR_KILLS}",
        {"kills": Figure("kills"), "messages": Figure("messages")},
        Goal("kills", "≥", 20),
        Goal("messages", "≥", 1_000),
        WEIR_KILLS="20",
    ),
    tests(
        "full-disk",
        "A disk becomes full under load: every confirmed message is there, and acks continue",
        "packages/weir-mq/tests/crash/test_full_disk.py",
        {"messages confirmed": Figure("confirmed")},
        Goal("messages confirmed", "≥", 1),
    ),
    tests(
        "bad-disk",
        "A disk fails a sync or a write under load: the node exits and loses nothing",
        "packages/weir-mq/tests/crash/test_bad_disk.py",
        {
            "failures": Figure("failures"),
            "messages confirmed before": Figure("confirmed"),
            "seconds to the node's end, most": Figure("ended_s", whole="most"),
        },
        Goal("failures", "≥", 4),
        Goal("messages confirmed before", "≥", 420),
    ),
    Proof(
        "flips",
        "200 times a bit is flipped or the end cut off, in one file of a real node's folder. "
        "The node serves what was published; or the node, a reader or the start reports what "
        "is missing",
        ("python", "-m", "weir_lab.bench.faults.flips", "--times", "200"),
        {
            "flips": Figure("flips"),
            "cuts": Figure("cuts"),
            "times all was served": Figure("whole"),
            "times it was told that not all was": Figure("told"),
            "times the node refused to start": Figure("refused"),
            "wrong bytes": Figure("wrong"),
            "silent losses": Figure("silent"),
            "no end": Figure("stuck"),
            "messages served": Figure("served"),
        },
        (
            Goal("flips", "≥", 120),
            Goal("cuts", "≥", 20),
            Goal("wrong bytes", "=", 0),
            Goal("silent losses", "=", 0),
            Goal("no end", "=", 0),
            # Else it would be safe to serve nothing at all.
            Goal("times the node refused to start", "≤", 100),
        ),
    ),
    tests(
        "hostile",
        "Clients send invalid bytes, stop reading, or open more connections than allowed",
        "packages/weir-mq/tests/interop/test_hostile_peers.py",
        {"attacks": Figure("passed")},
        Goal("attacks", "≥", 17),
    ),
    Proof(
        "hostile-beside",
        "One message is published after the other, without other load and next to 10,000 "
        "idle connections and 50 attackers",
        ("python", "scripts/hostile_proof.py"),
        {
            "p99 of that alone": Figure("p99_ratio"),
            "p99 ms": Figure("p99_beside_ms"),
            "idle connections": Figure("idle_connections"),
            "bytes each": Figure("bytes_each"),
        },
        (
            Goal("p99 of that alone", "≤", 2),
            Goal("idle connections", "≥", 10_000),
            Goal("bytes each", "≤", 30_000),
        ),
        {"WEIR_HOSTILE": "10000"},
    ),
    tests(
        "large-value",
        "A value of 1 GiB passes through a node, whose memory does not grow with the value",
        "{TESTS:WEIR_VALUE_MIB}",
        {"MiB of the value": Figure("value_mib"), "MiB more memory": Figure("grown_mib")},
        Goal("MiB of the value", "≥", 1_024),
        Goal("MiB more memory", "≤", 64),
        WEIR_VALUE_MIB="1024",
    ),
)

#: Everything that is claimed, by the target of make that runs it.
TARGETS = (
    Target(
        "proof",
        "measures the broker with real processes, and plays the first 1,000 worlds of each kind",
        170,
        (
            *(*MEASURED, *OF_SETS, *OF_ORDER, *OF_HANDLERS),
            *(*SURVIVED, *OF_LINKS, *OF_FIRST_WORLDS, *OF_ACCESS, *OF_HANDSHAKES, *OF_LOGINS),
        ),
    ),
    Target(
        "proof-worlds", "plays the long sweeps of worlds, of Raft and of barriers", 300, OF_WORLDS
    ),
    Target(
        "proof-parts",
        "attacks parts of the broker without a node: decoders, logs and the records of clusters; "
        "and plays worlds with users",
        100,
        (*OF_PARTS, *OF_ACCESS_SEEDS),
    ),
    Target(
        "proof-peers",
        "needs other software: it compares the broker with other brokers, cuts the power of "
        "virtual machines, runs Spark's tests with the oldest PySpark, kills parts of a pipeline "
        "on a Spark cluster, rotates the certificates and keys of a set, and upgrades one",
        120,
        (*OF_PEERS, *OF_MACHINES, OLDEST_SPARK, PIPELINE_KILLS, *OF_ROTATIONS, *OF_UPGRADES),
    ),
    Target(
        "proof-power",
        "plants bugs, and measures in how many worlds each is caught",
        125,
        OF_POWER,
    ),
    Target("proof-packets", "measures weir-toc and plays its worlds", 140, OF_PACKETS),
)
PROOFS: dict[str, Proof] = {proof.name: proof for target in TARGETS for proof in target.proofs}

"""What limits a node is named from its figures: each resource in turn, and its clients."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from weir.cli.doctor.bottleneck import BUSY, Figures, Machine, Shard, Watch, judge

PAGE = """\
# TYPE weir_messages_in_total counter
weir_messages_in_total{{topic="a",partition="0"}} {messages}
weir_messages_out_total{{topic="a",partition="0"}} 0
weir_flush_seconds_bucket{{log="0",le="0.1"}} 7
weir_flush_seconds_sum{{log="0"}} {idle}
weir_flush_seconds_count{{log="0"}} {idle}
weir_flush_seconds_sum{{log="1"}} {flushing}
weir_flush_seconds_count{{log="1"}} {flushes}
weir_commit_seconds_sum {waited}
weir_commit_seconds_count {commits}
weir_connections 3
weir_holds_total {holds}
"""


def page(**values: float) -> Figures:
    zero = dict.fromkeys(
        ("messages", "idle", "flushing", "flushes", "waited", "commits", "holds"), 0
    )
    return Figures(PAGE.format(**{**zero, **values}))


def shard(works: float = 0.1, waits: float = 0.0, **after: float) -> Shard:
    later = {"messages": 1_000, "flushing": 1.0, "flushes": 500, "waited": 20.0, "commits": 1_000}
    stages = {"broker.produce": 30, "server": 60, "raft": 10}
    return Shard(page(), page(**{**later, **after}), works, waits, stages)


QUIET = Watch(10.0, [shard()])


def test_clients_that_keep_little_under_way_are_named() -> None:
    found = judge(QUIET)
    assert found.limit == "clients"
    assert "3 connections keep 2.0 batches under way, of 20.00 ms each" in found.because
    assert (found.messages_in, found.messages_out) == (100.0, 0.0)
    assert [row.resource for row in found.rows] == [
        "disk", "processor", "network", "follower", "memory", "clients",
    ]  # fmt: skip


def test_the_busiest_log_is_named() -> None:
    found = judge(replace(QUIET, shards=[shard(), shard(flushing=9.0, flushes=450)]))
    assert found.limit == "disk"
    assert "log 1 writes and syncs 90% of the time, 20.00 ms each" in found.because
    assert "faster disk" in found.rows[0].advice


def test_the_stages_of_the_busiest_loop_are_named() -> None:
    found = judge(replace(QUIET, shards=[shard(), shard(works=0.9, waits=0.05)]))
    assert found.limit == "processor"
    assert "shard 1's loop works 90% of the time (server 60%, broker.produce 30%" in found.because
    assert "larger batches" in found.rows[1].advice


def test_a_loop_that_waits_for_others_is_told_apart() -> None:
    found = judge(replace(QUIET, shards=[shard(works=0.2, waits=0.7)]))
    assert found.limit == "processor"
    assert "waits for a processor 70%" in found.because
    assert "other programs" in found.rows[1].advice


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        (Machine(sent_bytes=9e7, link_bytes=1e8), "90% of what the interface can"),
        (Machine(sent_bytes=1.0, retransmitted=0.05), "5.00% of all segments were sent again"),
    ],
)
def test_a_network_that_is_full_or_loses_is_named(machine: Machine, words: str) -> None:
    found = judge(replace(QUIET, machine=machine))
    assert (found.limit, words in found.because) == ("network", True)


def test_a_slow_follower_is_named_by_its_node() -> None:
    found = judge(replace(QUIET, lagging={2: 0.1, 3: 0.9}))
    assert (found.limit, found.because) == (
        "follower",
        "replicas of node 3 are behind in 90% of the looks",
    )
    assert judge(replace(QUIET, lagging={2: 0.1, 3: 0.2})).limit == "clients"


def test_followers_whose_confirms_take_far_longer_than_a_sync_here_are_named() -> None:
    late = shard(flushing=1.0, flushes=500, waited=80.0, commits=1_000)
    found = judge(replace(QUIET, shards=[late], followers={3}))
    assert (found.limit, found.because) == (
        "follower",
        "a batch waits 80.00 ms for its commit, and a sync here takes 2.00 ms: it waits for node 3",
    )
    assert "for node 2 or 3" in judge(replace(QUIET, shards=[late], followers={2, 3})).because
    assert judge(replace(QUIET, shards=[late])).limit == "clients", "there is no follower"
    busy = shard(works=0.8, flushing=1.0, flushes=500, waited=80.0, commits=1_000)
    assert judge(replace(QUIET, shards=[busy], followers={3})).limit == "processor"
    alike = shard(flushing=1.0, flushes=500, waited=12.0, commits=1_000)
    assert judge(replace(QUIET, shards=[alike], followers={3})).limit == "clients"


def test_a_node_that_is_gone_is_told_and_does_not_hide_the_slow_one() -> None:
    gone = judge(replace(QUIET, silent={3}))
    assert gone.limit == "clients"
    assert gone.rows[3].found == "no answer of node 3; all others are up to date whenever looked at"
    both = judge(replace(QUIET, lagging={2: 0.9}, silent={3}))
    assert (both.limit, both.because) == (
        "follower",
        "no answer of node 3; replicas of node 2 are behind in 90% of the looks",
    )


def test_a_full_budget_is_named() -> None:
    assert judge(replace(QUIET, budget=0.8)).limit == "memory"
    assert judge(replace(QUIET, shards=[shard(holds=11)])).limit == "memory"


def test_a_node_without_load_is_limited_by_nothing() -> None:
    idle = Shard(page(), page(), works=1.0)
    assert judge(Watch(10.0, [idle])).limit == "nothing"


def test_below_the_bar_nothing_but_clients_limits() -> None:
    just = shard(works=BUSY - 0.01, flushing=10 * (BUSY - 0.01))
    assert judge(replace(QUIET, shards=[just])).limit == "clients"

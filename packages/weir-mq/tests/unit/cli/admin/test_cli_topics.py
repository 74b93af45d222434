"""`weir topic` and `weir cluster` against a node in memory."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from weir import sync, testing
from weir.cli.admin.clusters import _summary
from weir.cli.admin.topics import _held_by
from weir.cli.main import main
from weir.cli.retention import duration_of, shown_retention, size_of
from weir.client.administration import Cluster, Held, Part, Share
from weir.client.client import Client
from weir.client.connection.network_client import NetworkClient
from weir.model.ids import Address
from weir.model.topic import TopicSettings
from weir.protocol.client.messages import TopicInfo

Weir = Callable[..., tuple[int, str, str]]


@pytest.fixture
def node() -> Iterator[testing.Node]:
    with testing.node() as node:
        yield node


@pytest.fixture
def weir(node: testing.Node, capsys: pytest.CaptureFixture[str]) -> Weir:
    """Return a function that runs a command: its exit code, what it printed, what it complained."""

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main([*arguments, "--url", node.url])
        done = capsys.readouterr()
        return code, done.out, done.err

    return run


@pytest.fixture
def w(node: testing.Node) -> Iterator[sync.Client]:
    with sync.connect(node.url) as client:
        yield client


def test_a_topic_keeps_what_it_is_told_to(weir: Weir) -> None:
    made = weir("topic", "create", "t", "--retention", "12h", "--retention-bytes", "10GiB")
    assert made[:2] == (0, "topic t has 1 partition; kept: 12h, 10GiB a partition\n")
    altered = weir("topic", "alter", "t", "--retention", "forever", "--retention-bytes", "none")
    assert altered == (0, "topic t has 1 partition; kept: forever\n", "")
    assert "forever" in weir("topic", "list")[1]
    assert weir("topic", "create", "u")[1] == "topic u has 1 partition; kept: 7d\n"


def test_a_topic_scatters_with_what_it_is_told_to(weir: Weir) -> None:
    weir("topic", "create", "t", "--scatter-with", "u", "--scatter-with", "home/v")
    assert "scatters with: u, home/v\n" in weir("topic", "describe", "t")[1]
    assert weir("topic", "alter", "t", "--scatter-with", "w")[0] == 0
    found = json.loads(weir("topic", "describe", "t", "--json")[1])
    assert found["topic"]["scatter_with"] == ["w"]
    assert weir("topic", "alter", "t", "--scatter-with", "")[0] == 0
    assert "scatters" not in weir("topic", "describe", "t")[1]


def test_messages_of_devices_get_a_key(weir: Weir) -> None:
    assert weir("topic", "create", "t", "--key-by", "device")[0] == 0
    assert "number of their hub as their key\n" in weir("topic", "describe", "t")[1]
    assert json.loads(weir("topic", "describe", "t", "--json")[1])["topic"]["key_by"] == "device"
    code, _, complaint = weir("topic", "create", "u", "--key-by", "hub")
    assert code == 1
    assert "give 'device'" in complaint


def test_stats_are_shown_by_partition(weir: Weir, w: sync.Client) -> None:
    w.create_topic("t", 2)
    w.publish("t", b"value", partition=1)
    code, out, _ = weir("topic", "stats", "t")
    empty, full = out.splitlines()[1:]
    assert code == 0
    assert (empty.split(), full.split()[:2]) == (["0", "0", "0", "0", "0", "-", "-"], ["1", "1"])
    rows = json.loads(weir("topic", "stats", "t", "--json")[1])["partitions"]
    assert [row["messages"] for row in rows] == [0, 1]
    assert rows[1]["first_stamp"] == rows[1]["last_stamp"] > 0


def test_more_partitions_come_with_a_warning(weir: Weir) -> None:
    weir("topic", "create", "t")
    code, out, warning = weir("topic", "alter", "t", "--partitions", "3")
    assert (code, out) == (0, "topic t has 3 partitions; kept: 7d\n")
    assert "no order among them" in warning
    assert weir("topic", "alter", "t", "--partitions", "3", "--retention", "1d")[2] == ""


def test_a_partition_ends_with_a_warning(weir: Weir) -> None:
    weir("topic", "create", "t", "--partitions", "3")
    assert "STATE" not in weir("topic", "describe", "t")[1]
    for _ in range(2):  # the second time it has ended already
        code, out, warning = weir("topic", "end-partition", "t", "2")
        assert (code, out) == (0, "partition 2 of t has ended; 2 take messages\n")
        assert "no order among them" in warning
    assert weir("topic", "end-partition", "t", "1")[1].endswith("ended; 1 takes messages\n")
    text = weir("topic", "describe", "t")[1]
    assert "STATE" in text
    assert text.count("ended") == 2
    found: Any = json.loads(weir("topic", "describe", "t", "--json")[1])
    states = [row["state"] for row in found["topic"]["partitions"]]
    assert states == ["open", "ended", "ended"]
    code, _, complaint = weir("topic", "end-partition", "t", "0")
    assert code == 1
    assert "partition 0 of t cannot end" in complaint


def test_a_description_has_all_there_is_to_know(weir: Weir, w: sync.Client) -> None:
    weir("topic", "create", "t", "--partitions", "2")
    w.publish("t", b"x", partition=1)
    weir("cluster", "seek", "t", "crew", "--to", "earliest", "--create")
    code, text, _ = weir("topic", "describe", "t")
    assert code == 0
    assert "clusters: crew" in text
    found: Any = json.loads(weir("topic", "describe", "t", "--json")[1])
    assert found["schema"] == "weir.topic/1"
    topic = found["topic"]
    assert (topic["retention_ms"], topic["retention_bytes"]) == (7 * 86_400_000, 0)
    assert [row["next_offset"] for row in topic["partitions"]] == [0, 1]
    assert topic["partitions"][1]["bytes"] > 0
    assert [(row["name"], row["lag"]) for row in topic["clusters"]] == [("crew", 1)]


def test_a_deletion_is_asked_for_by_name(
    weir: Weir, w: sync.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    weir("topic", "create", "t")
    w.publish("t", b"x")
    monkeypatch.setattr("sys.stdin", io.StringIO("u\n"))
    code, out, err = weir("topic", "delete", "t")
    assert (code, out.strip()) == (1, "")
    assert "1 message of t will be gone" in err
    assert "nothing was deleted" in err
    for verb in (["topic", "delete", "t"], ["cluster", "delete", "t", "crew"]):
        monkeypatch.setattr("sys.stdin", io.StringIO(""))
        code, out, err = weir(*verb)
        assert (code, out) == (1, "")
        assert err.endswith("(--yes does not ask): nothing was deleted\n")
    monkeypatch.setattr("sys.stdin", io.StringIO("t\n"))
    code, out, _ = weir("topic", "delete", "t")
    assert (code, out.strip()) == (0, "topic t is deleted; it held 1 message")
    assert weir("topic", "list")[1] == "no topics yet\n"
    weir("topic", "create", "t")
    assert weir("topic", "delete", "t", "--yes")[0] == 0


def test_a_cluster_is_seen_and_steered(weir: Weir, w: sync.Client) -> None:
    weir("topic", "create", "t", "--partitions", "2")
    for number in range(6):
        w.publish("t", b"x", partition=number % 2)
    assert weir("cluster", "list", "t")[1] == "no cluster reads t yet\n"
    made = weir("cluster", "seek", "t", "crew", "--to", "latest", "--create")
    assert made[1] == "cluster crew: 0 not done, 0 granted\n"
    moved = weir("cluster", "seek", "t", "crew", "--to", "1", "--partition", "1")
    assert moved[1] == "cluster crew: 2 not done, 0 granted\n"
    assert weir("cluster", "seek", "t", "crew", "--to", "-1h", "--partition", "0")[1].startswith(
        "cluster crew: 5 not done"
    )
    paused = weir("cluster", "pause", "t", "crew")
    assert paused[1] == "cluster crew: 5 not done, 0 granted, paused\n"
    assert weir("cluster", "list", "t")[1].splitlines()[1].split()[:2] == ["crew", "5"]
    assert weir("cluster", "resume", "t", "crew")[1] == made[1].replace("0 not", "5 not")
    (row,) = json.loads(weir("cluster", "list", "t", "--json")[1])["clusters"]
    assert [share["lag"] for share in row["partitions"]] == [3, 2]
    lag = json.loads(weir("cluster", "lag", "t", "crew", "--json")[1])
    assert (lag["schema"], lag["lag"], lag["paused"]) == ("weir.cluster/1", 5, False)
    assert weir("cluster", "delete", "t", "crew", "--yes")[1] == "cluster crew of t is deleted\n"


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["topic", "describe", "absent"], 1, "no topic 'absent'"),
        (["topic", "alter", "absent", "--retention", "1d"], 1, "no topic 'absent'"),
        (["topic", "delete", "absent", "--yes"], 1, "no topic 'absent'"),
        (["topic", "alter", "t"], 2, "say what to change"),
        (["topic", "create", "u", "--retention", "5parsecs"], 2, "--retention"),
        (["topic", "create", "u", "--retention-bytes", "-1"], 2, "below 0"),
        (["topic", "create", "u", "--retention", "0s"], 2, "write 'forever' to keep everything"),
        (["topic", "create", "u", "--retention-bytes", "0"], 2, "write 'none' to keep everything"),
        (["topic", "alter", "t", "--partitions", "0"], 2, "0 is not in the range x>=1"),
        (
            ["topic", "create", "t", "--new", "--retention", "1h"],
            1,
            "t exists with 1 partition, "
            "order=partition, retention=7d and retention-bytes=none; choose",
        ),
        (["cluster", "seek", "t", "c", "--to", "2999-01-01", "--create"], 1, "a time ahead of"),
        (["topic", "create", "u", "--retention", "1ms"], 1, 'at least 1,000 ms, or "forever"'),
        (["topic", "create", "u", "--retention", "0.4ms"], 1, 'or "forever"'),
        (["topic", "create", "u", "--retention-bytes", "0.4B"], 1, "give 1 byte or more"),
        (["topic", "create", "u", "--retention-bytes", "9999999TiB"], 1, 'at most, or "forever"'),
        (["cluster", "lag", "t", "absent"], 1, "no cluster 'absent' reads t"),
        (["cluster", "seek", "t", "absent", "--to", "latest"], 1, "no cluster 'absent' reads t"),
        (["cluster", "seek", "t", "c", "--to", "5"], 2, "an offset needs --partition"),
        (["cluster", "seek", "t", "c", "--to", "yesterday"], 1, "is no time"),
        (["cluster", "delete", "t", "absent", "--yes"], 1, "no cluster 'absent' reads t"),
        (["node", "add", "far:6800"], 1, "set it first by `weir node add HOST:PORT --node 1`"),
        (["node", "add", "far:6800", "--brokerset", "70000"], 2, "ids of sets end at 65,535"),
    ],
)
def test_mistakes_are_told_in_a_line(
    weir: Weir, arguments: list[str], code: int, complaint: str
) -> None:
    weir("topic", "create", "t")
    found, out, err = weir(*arguments)
    assert (found, out) == (code, "")
    assert complaint in err
    assert err.count("\n") == 1


def test_what_is_granted_while_nobody_is_at_work_says_so() -> None:
    def cluster(consumers: int) -> Cluster:
        return Cluster("crew", (Share(0, 0, 9, 4, 5, granted=1, consumers=consumers),))

    assert _summary(cluster(1)) == "cluster crew: 5 not done, 1 granted"
    assert _summary(cluster(0)).endswith("1 granted, and no consumer is at work")


def test_retention_is_shown_as_it_is_written() -> None:
    assert shown_retention(TopicSettings(90_000, 1_536)) == "1.5m, 1.5KiB a partition"
    assert [duration_of(s) for s in (0.25, 59, 3_600, 604_800)] == ["0.25s", "59s", "1h", "7d"]
    assert [size_of(n) for n in (5, 1 << 20, 3 << 40)] == ["5B", "1MiB", "3TiB"]


@pytest.mark.parametrize(
    ("behind", "shown"),
    [
        ((), "1, 2, 3"),
        ((2,), "1, 2, 3 (node 2 is behind)"),
        ((2, 3), "1, 2, 3 (nodes 2, 3 are behind)"),
    ],
)
def test_nodes_that_are_behind_are_named(behind: tuple[int, ...], shown: str) -> None:
    assert _held_by(Part(0, Address(1, 0, 0), 0, 0, 0, (), (1, 2, 3), behind)) == shown


def test_a_list_is_one_request_whatever_it_lists(
    weir: Weir, w: sync.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("t", "ns/u", "v"):
        w.create_topic(name, 3)
    w.publish("t", b"x", partition=1)
    asked: list[str] = []
    request = NetworkClient.request

    async def counted(self: NetworkClient, of: Any, *more: Any, **named: Any) -> Any:
        asked.append(type(of).__name__)
        return await request(self, of, *more, **named)

    monkeypatch.setattr(NetworkClient, "request", counted)
    found: Any = json.loads(weir("topic", "list", "--json")[1])
    assert asked == ["ListOffsets"]
    rows = {one["name"]: one["partitions"] for one in found["topics"]}
    assert sorted(rows) == ["ns/u", "t", "v"]
    assert [(one["first_offset"], one["next_offset"]) for one in rows["t"]] == [
        (0, 0),
        (0, 1),
        (0, 0),
    ]


def test_a_silent_partition_is_a_cell(weir: Weir, monkeypatch: pytest.MonkeyPatch) -> None:
    info = TopicInfo(1, "default", "t", "partition", [Address(0, 0, 65_536, 0)] * 3)

    async def held(self: Client) -> list[Held]:
        return [Held(info, [(2, 7), None, (0, 4)])]

    monkeypatch.setattr(Client, "held", held)
    code, text, _ = weir("topic", "list")
    assert code == 0
    assert "9 (1 of 3 partitions silent)" in text
    found: Any = json.loads(weir("topic", "list", "--json")[1])
    assert found["topics"][0]["partitions"][1] == {
        "partition": 1,
        "first_offset": None,
        "next_offset": None,
    }

"""The command `weir`, process by process, against a real node."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from weir.cli.main import main
from weir.model.ids import node_of
from weir.server.interpreter import environment, python
from weir.testing.nodes import Node, running_node, start_node

SECONDS = 60


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with running_node(segment_mib=32, spares=0) as one:
        yield one


@pytest.fixture
def topic(node: Node, request: pytest.FixtureRequest) -> str:
    """A topic of the test's own, with two partitions."""
    name = request.node.name.replace("[", "-").replace("]", "")
    assert weir(node, "topic", "create", name, "--partitions", "2").returncode == 0
    return name


def started(url: str, *arguments: str, **more: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        python("weir.cli", *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**environment(), "WEIR_URL": url},
        **more,
    )


def weir(node: Node, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    with started(node.url, *arguments, stdin=subprocess.PIPE) as process:
        out, err = process.communicate(stdin, SECONDS)
    return subprocess.CompletedProcess(arguments, process.returncode, out, err)


def lines(done: subprocess.CompletedProcess[bytes]) -> list[str]:
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().splitlines()


def one_object(done: subprocess.CompletedProcess[bytes], schema: str) -> dict[str, Any]:
    """The object of --json: exactly one, which says what it is."""
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["schema"] == schema
    assert found["command"].startswith("weir ")
    assert ("machine" in found) == schema.startswith("weir.bench")
    assert "settings" in found
    return found


def failure(done: subprocess.CompletedProcess[bytes]) -> str:
    """The one line of an error."""
    err = done.stderr.decode()
    assert done.returncode == 1, err
    assert done.stdout == b""
    assert err.count("\n") == 1
    return err


def test_values_go_in_and_come_out(node: Node, topic: str) -> None:
    done = weir(node, "pub", topic, "a", "b", "--key", "UA", "--tag", "EWR", "--partition", "1")
    assert lines(done) == [f"{topic}/1: offsets 0 to 1"]
    shown = weir(node, "tail", topic, "--no-follow")
    assert lines(shown) == ["1/0  key=UA  tag=EWR  a", "1/1  key=UA  tag=EWR  b"]


def test_lines_of_stdin_go_in_and_come_out(node: Node, topic: str) -> None:
    text = b"".join(b"%d\n" % n for n in range(20_000)) + b"no newline"
    assert lines(weir(node, "pub", topic, "--partition", "0", stdin=text)) == [
        f"{topic}/0: offsets 0 to 20,000"
    ]
    shown = lines(weir(node, "tail", topic, "--no-follow", "--partition", "0"))
    assert shown == [*(f"0/{n}  {n}" for n in range(20_000)), "0/20000  no newline"]


def test_a_topic_in_total_order_is_shown_in_it(node: Node, request: pytest.FixtureRequest) -> None:
    name = request.node.name
    weir(node, "topic", "create", name, "--partitions", "3", "--order", "total")
    described = lines(weir(node, "topic", "describe", name))
    assert described[0].startswith(f"topic {name}, id ")
    assert described[0].endswith(", order=total")
    for number in range(6):
        weir(node, "pub", name, f"m{number}", "--partition", str(5 * number % 3))
    shown = lines(weir(node, "tail", name, "--no-follow"))
    assert shown == ["0/0  m0", "2/0  m1", "1/0  m2", "0/1  m3", "2/1  m4", "1/1  m5"]
    by_partition = lines(weir(node, "tail", name, "--no-follow", "--order", "partition"))
    assert sorted(by_partition) == sorted(shown)
    assert "order='causal': give" in failure(weir(node, "tail", name, "--order", "causal"))


def test_receipts_say_where_each_message_is(node: Node, topic: str) -> None:
    done = weir(node, "pub", topic, "a", "b", "--partition", "1", "--json")
    receipts = one_object(done, "weir.pub/1")["receipts"]
    assert [(r["topic"], r["partition"], r["offset"]) for r in receipts] == [
        (topic, 1, 0),
        (topic, 1, 1),
    ]
    assert all(r["stamp"] > 0 and not r["duplicate"] for r in receipts)


def test_topics_are_listed(node: Node, topic: str) -> None:
    weir(node, "pub", topic, "x", "--partition", "1")
    assert any(line.split()[:4] == [topic, "2", "partition", "1"] for line in listed(node))
    rows = one_object(weir(node, "topic", "list", "--json"), "weir.topics/1")["topics"]
    (row,) = (row for row in rows if row["name"] == topic)
    assert [(p["partition"], p["next_offset"]) for p in row["partitions"]] == [(0, 0), (1, 1)]


def listed(node: Node) -> list[str]:
    return lines(weir(node, "topic", "list"))


def test_a_topic_is_made_once_unless_one_is_content(node: Node, topic: str) -> None:
    again = ("topic", "create", topic, "--partitions", "2")
    assert weir(node, *again).returncode == 0
    assert "exists with 2 partitions" in failure(weir(node, *again, "--new"))
    other = ("topic", "create", topic, "--partitions", "3")
    assert "exists with 2 partitions" in failure(weir(node, *other))


def test_a_tail_begins_and_ends_where_it_is_told(node: Node, topic: str) -> None:
    weir(node, "pub", topic, *"abcde", "--partition", "0")
    shown = weir(node, "tail", topic, "--from", "2", "--partition", "0", "-n", "2", "-o", "json")
    assert [(m["offset"], m["value"]) for m in map(json.loads, lines(shown))] == [
        (2, "c"),
        (3, "d"),
    ]
    assert lines(weir(node, "tail", topic, "--from", "latest", "--no-follow")) == []


def test_a_tail_follows_until_ctrl_c(node: Node, topic: str) -> None:
    with started(node.url, "tail", topic, "--from", "earliest") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for value in ("one", "two"):
            weir(node, "pub", topic, value, "--partition", "0")
            assert process.stdout.readline().decode().split() == [
                f"0/{('one', 'two').index(value)}",
                value,
            ]
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 0
        assert process.stderr.read() == b""


def test_a_tail_whose_reader_has_enough_ends_quietly(node: Node, topic: str) -> None:
    weir(node, "pub", topic, "--partition", "0", stdin=b"x" * 100 + b"\n" * 50_000)
    with started(node.url, "tail", topic, "--from", "earliest") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        weir(node, "pub", topic, "one more", "--partition", "0")
        assert process.wait(SECONDS) == 0
        assert process.stderr.read() == b""


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["pub", "absent", "x"], "no topic 'absent': `weir topic create absent`"),
        (["tail", "absent"], "no topic 'absent'"),
        (["topic", "create", "a b"], "topic 'a b' is not allowed"),
        (["topic", "create", "t", "--partitions", "9999"], "9999 partitions: a topic has 1"),
        (["topic", "create", "t", "--order", "none"], "order='none': give 'partition'"),
    ],
)
def test_a_refusal_is_one_line(node: Node, arguments: list[str], what: str) -> None:
    assert failure(weir(node, *arguments)).startswith(what)


def test_an_offset_needs_a_partition_and_must_exist(node: Node, topic: str) -> None:
    assert "say which one with --partition 0 to 1" in failure(
        weir(node, "tail", topic, "--from", "1")
    )
    far = weir(node, "tail", topic, "--from", "99", "--partition", "0")
    assert "the nearest offset is 0: give --from 0, or earliest" in failure(far)


def test_no_broker_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weir.cli.connection.TIMEOUT_SECONDS", 0.2)
    assert main(["topic", "list", "--url", "weir://127.0.0.1:1"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("no connection to 127.0.0.1:1 within 0.2 s")
    assert err.count("\n") == 1
    assert "`weir serve`" in err


def test_a_folder_and_a_port_in_use_are_one_line(node: Node, tmp_path: Path) -> None:
    assert failure(weir(node, "inspect", str(node.folder))).startswith(
        f"{node.folder / 'log-0'} is in use by a running node: stop that one first"
    )
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = weir(node, "serve", "--data", str(tmp_path / "d"), "--port", port)
    assert done.returncode == 1
    assert f"127.0.0.1:{port} is in use: stop what listens there" in done.stderr.decode()
    assert not (tmp_path / "d").exists(), "a node that never served is not founded"


def test_a_node_serves_until_it_is_told_to_stop(tmp_path: Path) -> None:
    config = tmp_path / "weir.toml"
    config.write_text(f'[node]\ndata = "{tmp_path}/file"\nport = 1\n[log]\nspares = 0\n')
    flags = ("--config", str(config), "--data", str(tmp_path / "flag"), "--port", "0")
    with started("", "serve", *flags) as process:
        assert process.stdout is not None
        words = process.stdout.readline().decode().split()
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 0
    assert words[:2] == ["weir", "serves"]
    assert words[2].startswith("weir://127.0.0.1:")
    assert words[3:] == ["from", str(tmp_path / "flag")]
    assert not (tmp_path / "file").exists()


def test_a_stopped_node_is_inspected(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with start_node(data, tmp_path, segment_mib=32, spares=0, logs=1) as node:
        weir(node, "topic", "create", "flights")
        weir(node, "pub", "flights", "a", "b")
    files = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    done = weir(node, "inspect", str(data), "--group", "65536", "--limit", "1", "--json")
    (log,) = one_object(done, "weir.inspect/1")["logs"]
    (group,) = (one for one in log["groups"] if one["name"] == "flights/0")
    assert (log["damage"], log["torn"]) == (None, None)
    assert log["mark"] <= log["tail"]
    assert (group["group"], group["next_offset"], group["last_term"]) == (65_536, 2, 1)
    assert node_of(group["hard_state"]["vote"]) == 1
    (entry,) = log["entries"]
    assert (entry["kind"], entry["first_offset"], entry["next_offset"]) == ("batches", 0, 2)
    absent = weir(node, "inspect", str(data), "--group", "9")
    assert "has a group 9; there are 0 (registry), 65536 (flights/0)" in failure(absent)
    shown = weir(node, "inspect", str(data), "--group", "65536")
    assert "flights/0" in shown.stdout.decode()
    assert {path: path.read_bytes() for path in data.rglob("*") if path.is_file()} == files


def test_a_damaged_log_is_shown_with_code_1(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with start_node(data, tmp_path, segment_mib=32, spares=0, logs=1) as node:
        weir(node, "topic", "create", "flights")
        weir(node, "pub", "flights", "a")
    segment = data / "log-0" / "segment-00000001"
    with segment.open("r+b") as file:
        file.seek(4_096 + 200)
        file.write(b"rot")
    done = weir(node, "inspect", str(data))
    assert done.returncode == 1
    assert "DAMAGED: log 0 is damaged at position" in done.stdout.decode()


def test_timeliness_is_one_object(node: Node) -> None:
    small = ("--messages", "20000", "--producers", "3", "--size", "50", "--json")
    found = one_object(weir(node, "bench", "timeliness", *small), "weir.bench.timeliness/1")
    assert found["settings"]["producers"] == 3
    assert (found["messages"], found["bytes"], found["confirmed"]) == (20_000, 1_000_000, 20_000)
    assert (found["lost"], found["repeated"], found["reordered"]) == (0, 0, 0)
    assert found["messages_per_s"] > 0
    assert {"server", "producers", "consumer"} == found["cpu_s"].keys()


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_a_bench_that_is_stopped_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    more = {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        python("weir.cli", "bench", "timeliness", "--messages", "50000000"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**environment(), **more},
    ) as process:
        assert process.stderr is not None
        assert b"received" in process.stderr.readline()  # it is well under way
        below = descendants(process.pid)
        assert len(below) >= 2
        process.send_signal(number)
        assert process.wait(SECONDS) == 130
        assert process.stderr.read().count(b"Traceback") == 0
    assert not [pid for pid in below if Path(f"/proc/{pid}").exists()]
    assert os.listdir(tmp_path) == []


def descendants(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]

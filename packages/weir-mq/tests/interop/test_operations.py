"""What an operator does: start, look, stop, back up and put back, on real nodes."""

from __future__ import annotations

import asyncio
import json
import os
import re
import select
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import weir
from weir.cli.main import main
from weir.model.message import Message
from weir.server.disk.node_folder import NodeFolder
from weir.server.interpreter import environment, python
from weir.testing.nodes import Node, running_node, start_node

SECONDS = 60
TINY = {"segment_mib": 32, "spares": 0, "shards": 1, "logs": 1}
#: More than fits in one batch.
LARGE = os.urandom(1 << 20) * 9
SMALL = {
    "WEIR__LOG__SEGMENT_MIB": "32MiB",
    "WEIR__LOG__SPARES": "0",
    "WEIR__NODE__PORT": "0",
    "WEIR__NODE__SHARDS": "1",
    "WEIR__NODE__LOGS": "1",
}


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    settings = {**TINY, "shards": 2, "logs": 2}
    with running_node(**settings, listen="127.0.0.1:0", format="json") as one:
        yield one


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def one_object(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    code, out, err = said(capsys, *arguments, "--json")
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


def spawned(*arguments: str, **more: str) -> subprocess.Popen[str]:
    """A `weir` process with small files, on a free port."""
    return subprocess.Popen(
        python("weir.cli", *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**environment(), **SMALL, **more},
        text=True,
    )


def line_with(stream: Any, what: str) -> str:
    """Read up to the line that says it."""
    for line in stream:
        if what in line:
            return str(line)
    raise AssertionError(f"it ended without saying {what!r}")


# -- a running node ---------------------------------------------------------------------------


def test_a_node_tells_in_objects_and_shows_figures(node: Node) -> None:
    lines = [json.loads(line) for line in node.said().splitlines() if line.startswith("{")]
    assert all({"ts", "level", "event", "from"} <= line.keys() for line in lines)
    urls = re.findall(r"http://\S+/metrics", " ".join(line["event"] for line in lines))
    assert len(urls) == 2, "one a shard"
    for url in urls:
        with urllib.request.urlopen(url, timeout=SECONDS) as page:
            assert "weir_ready 1\n" in page.read().decode()


def test_doctor_finds_the_node(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    checks = ("--only", "endpoint", "--only", "folder")
    found = one_object(capsys, "doctor", "--data", str(node.folder), *checks)
    states = {one["check"]: one["state"] for one in found["findings"]}
    assert states == {"folder": "ok", "endpoint": "ok"}
    assert all(not one["advice"] for one in found["findings"])
    assert "and so do its 2 shards" in found["findings"][-1]["found"]


def test_doctor_misses_a_node_that_must_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = said(capsys, "doctor", "--data", str(tmp_path), "--only", "endpoint")
    assert code == 1
    assert f"start one: weir serve --data {tmp_path}" in out
    assert said(capsys, "doctor", "--data", str(tmp_path), "--only", "clock")[0] == 0


def test_doctor_sees_a_node_that_does_not_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weir.cli.connection.TIMEOUT_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        place = {"host": "127.0.0.1", "port": deaf.getsockname()[1], "pid": os.getpid()}
        (tmp_path / "endpoint.json").write_text(json.dumps(place))
        code, out, _ = said(capsys, "doctor", "--data", str(tmp_path), "--only", "endpoint")
    assert code == 1
    assert f"process {os.getpid()}) does not serve: no connection to" in out


# -- starting and stopping --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--host", "no.such.host.invalid"], "the host 'no.such.host.invalid' is not known here"),
        (["--host", "192.0.2.1"], "192.0.2.1:0 is no address of this machine: listen on"),
    ],
)
def test_an_address_that_cannot_be_is_one_line(
    arguments: list[str], says: str, tmp_path: Path
) -> None:
    with spawned("serve", "--data", str(tmp_path / "d"), *arguments) as process:
        _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 1
    assert err.splitlines()[-1].startswith(says)
    assert "Traceback" not in err


def test_a_port_of_the_figures_that_is_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        with spawned("serve", "--data", str(tmp_path / "d"), "--metrics", place) as process:
            _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 1
    assert err.splitlines()[-1].startswith(f"{place} is in use: stop what listens there")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_a_drain_that_hangs(number: signal.Signals, tmp_path: Path) -> None:
    # A shard that never says that it has stopped, as one whose disk has no room does.
    script = (
        "from weir.broker.shard import Shutdown; from weir.cli.main import run; "
        "Shutdown.proceed = lambda self: None; run()"
    )
    with subprocess.Popen(
        [*python("weir.cli")[:-2], "-c", script, "serve", "--data", str(tmp_path / "d")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**environment(), **SMALL},
        text=True,
    ) as process:
        line_with(process.stdout, "weir serves")
        process.send_signal(number)
        line_with(process.stderr, "draining")
        assert "connections=0" in line_with(process.stderr, "still draining")
        process.send_signal(number)
        assert process.wait(SECONDS) == 128 + number


def test_a_second_signal_ends_a_node_of_which_a_shard_hangs(tmp_path: Path) -> None:
    two = {"WEIR__NODE__SHARDS": "2", "WEIR__NODE__LOGS": "2"}
    with spawned("serve", "--data", str(tmp_path / "d"), **two) as process:
        line_with(process.stdout, "weir serves")
        tasks = Path(f"/proc/{process.pid}/task").glob("*/children")
        shards = [int(child) for task in tasks for child in task.read_text().split()]
        ends = [os.pidfd_open(shard) for shard in shards]
        os.kill(shards[0], signal.SIGSTOP)
        process.terminate()
        line_with(process.stderr, "draining")
        process.terminate()
        assert process.wait(SECONDS) == 128 + signal.SIGTERM
        os.kill(shards[0], signal.SIGCONT)
        for end in ends:  # no shard outlives the node
            assert select.select([end], [], [], SECONDS)[0]
            os.close(end)
    assert len(shards) == 2


def test_a_shard_that_stands_still_is_replaced_and_the_node_goes_on(tmp_path: Path) -> None:
    settings = {**TINY, "shards": 2, "logs": 2, "hang_seconds": 3}
    with running_node(tmp_path / "d", **settings, listen="127.0.0.1:0") as node:
        assert "asked for" not in node.said()
        (page,) = re.findall(r"shard 0: metrics at (http://\S+)/metrics", node.said())
        tasks = Path(f"/proc/{node.pid}/task").glob("*/children")
        _, second = sorted(int(child) for task in tasks for child in task.read_text().split())
        end = os.pidfd_open(second)
        os.kill(second, signal.SIGSTOP)
        assert select.select([end], [], [], SECONDS)[0], "it is killed"
        os.close(end)

        async def publish() -> None:
            async with weir.connect(node.url) as client:
                await client.create_topic("t", 2)
                for partition in range(2):
                    await client.publish("t", b"x", partition=partition)

        asyncio.run(asyncio.wait_for(publish(), SECONDS))
        with urllib.request.urlopen(f"{page}/readyz", timeout=SECONDS) as ready:
            assert ready.status == 200
        for words in ("shard 1 does not answer", "said nothing for 3 s", "shard 1 serves again"):
            assert words in node.said()


def test_a_node_of_fewer_logs_than_shards_says_so(tmp_path: Path) -> None:
    NodeFolder(tmp_path / "d").found(1)
    with running_node(tmp_path / "d", **{**TINY, "logs": 0, "shards": 4}) as node:
        assert "WARNING 4 shards were requested, and 1 run: each needs" in node.said()


@pytest.mark.parametrize("shards", ["1", "2"])
def test_the_manager_hears_when_the_node_is_up_and_when_it_stops(
    shards: str, tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(SECONDS)
        notify = {
            "NOTIFY_SOCKET": str(tmp_path / "notify"),
            "WEIR__NODE__SHARDS": shards,
            "WEIR__NODE__LOGS": shards,
        }
        with spawned("serve", "--data", str(tmp_path / "d"), **notify) as process:
            assert manager.recv(1024).startswith(b"READY=1\nSTATUS=serving")
            process.terminate()
            assert manager.recv(1024).startswith(b"STOPPING=1\n")
            assert process.wait(SECONDS) == 0


def test_a_node_to_play_with_comes_and_goes(tmp_path: Path) -> None:
    with spawned("dev", TMPDIR=str(tmp_path)) as process:
        first = line_with(process.stdout, "weir serves")
        line_with(process.stdout, "weir pub example hello")
        url = first.split()[2]

        async def there() -> list[str]:
            async with weir.connect(url) as client:
                return [info.name for info in await client.topics()]

        assert asyncio.run(there()) == ["example"]
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert os.listdir(tmp_path) == []


# -- backup and restore -----------------------------------------------------------------------


async def fill(url: str) -> list[list[Message]]:
    """Messages of every kind in two topics; returns them by partition."""
    async with weir.connect(url) as client:
        await client.create_topic("shop/doors", 2, retention="30d", retention_bytes=1 << 40)
        await client.create_topic("empty")
        async with client.producer("shop/doors", linger=0) as producer:
            for n in range(500):
                producer.send(b"%d" % n, key=f"k{n % 7}", tag="open" if n % 2 else None)
            for n in range(5):
                producer.send(b"h%d" % n, headers={"n": b"%d" % n}, partition=0, time=n)
                await producer.flush()
            await producer.publish(LARGE, key="large", tag="open", headers={"a": b"b"}, partition=1)
            producer.send(b"behind it", partition=1)
    return await contents(url, "shop/doors")


async def contents(url: str, topic: str) -> list[list[Message]]:
    async with weir.connect(url) as client:
        found: list[list[Message]] = [[] for _ in (await client.describe(topic)).addresses]
        async with client.reader(topic, follow=False, value_bytes_max=len(LARGE)) as reader:
            async for message in reader:
                found[message.partition].append(message)
    return found


async def settings(url: str) -> dict[str, object]:
    async with weir.connect(url) as client:
        return {info.name: info.settings for info in await client.topics()}


def told(messages: list[list[Message]]) -> list[list[tuple[object, ...]]]:
    """All of the messages but their stamps."""
    return [
        [(m.offset, m.value, m.key, m.tag, m.time, {**m.headers}) for m in partition]
        for partition in messages
    ]


def test_topics_of_a_running_node_come_back(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = asyncio.run(fill(node.url))
    there = tmp_path / "backup"
    made = one_object(capsys, "backup", "--to", str(there), "--url", node.url)
    assert (made["topics"], made["messages"]) == (2, 507)
    assert "is there already" in said(capsys, "backup", "--to", str(there), "--url", node.url)[2]
    assert said(capsys, "restore", str(there), "--verify")[0] == 0
    assert "holds topics: start a node" in said(capsys, "restore", str(there))[2]
    again = said(capsys, "restore", str(there), "--to", node.url)
    assert again[0] == 1
    assert "is there already: restore to another node" in again[2]
    with running_node(**TINY) as other:
        done = one_object(capsys, "restore", str(there), "--to", other.url)
        assert (done["messages"], done["changes"]) == (507, [])
        after = asyncio.run(contents(other.url, "shop/doors"))
        assert told(after) == told(before)
        assert asyncio.run(contents(other.url, "empty")) == [[]]
        assert asyncio.run(settings(other.url)) == asyncio.run(settings(node.url))


def test_a_folder_comes_back_as_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, there, back = tmp_path / "data", tmp_path / "backup", tmp_path / "back"
    with start_node(data, tmp_path, **TINY) as one:
        before = asyncio.run(fill(one.url))
        code, _, err = said(capsys, "backup", str(data), "--to", str(there))
        assert code == 1
        assert "is in use by a running node: stop that one first" in err
    assert not there.exists()
    assert said(capsys, "backup", str(data), "--to", str(there))[0] == 0
    assert said(capsys, "restore", str(there), "--data", str(back))[0] == 0
    assert "is there already" in said(capsys, "restore", str(there), "--data", str(back))[2]
    with start_node(back, tmp_path, **TINY) as one:
        assert asyncio.run(contents(one.url, "shop/doors")) == before

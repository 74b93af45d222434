"""Real nodes whose log lost its synced tail while they were down: nothing goes without words."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import weir
from weir.cli.main import main
from weir.cli.process import Signals
from weir.cli.survey import survey
from weir.errors import WeirError
from weir.storage.format.durable_position import NAME
from weir.testing.nodes import NodeFailed, start_node
from weir.testing.nodes import NodeSet as DevSet

TINY: dict[str, Any] = {"segment_mib": 32, "spares": 0, "shards": 1, "logs": 1}
COUNT = 160
#: A position is saved within 20 ms of its flush; a machine that is busy takes longer.
SAVED_SECONDS = 5.0


async def fill(url: str) -> None:
    async with weir.connect(url, request_timeout=20.0) as client:
        await client.create_topic("doors")
    await publish(url)


async def publish(url: str) -> None:
    async with (
        weir.connect(url, request_timeout=20.0) as client,
        client.producer("doors", linger=0) as producer,
    ):
        for number in range(COUNT):
            await producer.send(b"%d" % number * 40)


async def read(url: str) -> list[bytes]:
    async with (
        asyncio.timeout(60),
        weir.connect(url, request_timeout=20.0) as client,
        client.reader("doors", follow=False) as reader,
    ):
        return [bytes(message.value) async for message in reader]


EXPECTED = [b"%d" % number * 40 for number in range(COUNT)]


def saved(folder: Path) -> None:
    """Wait until the position file has not changed for longer than a save takes."""
    until, last = time.monotonic() + SAVED_SECONDS, b""
    while (now := (folder / NAME).read_bytes()) != last and time.monotonic() < until:
        last = now
        time.sleep(0.3)


def tail_of(folder: Path) -> tuple[Path, int]:
    """Return the last segment's file and the byte where its frames end."""
    found = survey(folder)
    last = found.segments[-1].segment
    return folder / last.name, found.tail - last.base


def zeroed(path: Path, at: int, older: bytes) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes(size - at))


def cut(path: Path, at: int, older: bytes) -> None:
    with path.open("r+b") as file:
        file.truncate(at)


def set_back(path: Path, at: int, older: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(older[at:])


#: Of a set and of a log, unit tests refuse each.
RUINS = [zeroed, *(pytest.param(one, marks=pytest.mark.slow) for one in (cut, set_back))]


@pytest.mark.parametrize("ruin", RUINS)
def test_a_lone_node_refuses_a_log_that_ends_too_early(
    tmp_path: Path, ruin: Callable[..., None]
) -> None:
    data, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    folder = data / "log-0"
    with start_node(data, tmp_path, **TINY, position_folder=str(elsewhere)) as node:
        (path,) = folder.glob("segment-*")
        older = path.read_bytes()
        asyncio.run(fill(node.url))
        saved(elsewhere / "log-0")
        node.kill()
    assert not (folder / NAME).exists()
    shutil.copytree(data, tmp_path / "copy")
    path, end = tail_of(folder)
    ruin(path, end * 2 // 3 // 8 * 8, older)
    with (
        pytest.raises(NodeFailed) as refused,
        start_node(data, tmp_path, **TINY, position_folder=str(elsewhere)),
    ):
        pass
    assert "log 0 is damaged at position" in str(refused.value)
    assert "had been durable" in str(refused.value)
    shutil.rmtree(data)
    shutil.copytree(tmp_path / "copy", data)
    shutil.rmtree(elsewhere)  # a missing file says nothing, and is made again
    with start_node(data, tmp_path, **TINY, position_folder=str(elsewhere)) as node:
        assert asyncio.run(read(node.url)) == EXPECTED
        assert "no valid durable position: there is none" in node.said()
    assert (elsewhere / "log-0" / NAME).exists()


def test_tools_see_what_is_gone_and_a_restored_backup_begins_another_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    with start_node(data, tmp_path, **TINY) as node:
        asyncio.run(fill(node.url))
    assert main(["inspect", str(data), "--verify"]) == 0
    assert "sound: all below position" in capsys.readouterr().out
    assert main(["backup", str(data), "--to", str(tmp_path / "backup")]) == 0
    assert main(["restore", str(tmp_path / "backup"), "--data", str(tmp_path / "back")]) == 0
    assert not (tmp_path / "back" / "log-0" / NAME).exists()
    # The position of what the node wrote after the backup lies on another disk.
    with start_node(data, tmp_path, **TINY, position_folder=str(elsewhere)) as node:

        async def more() -> None:
            async with weir.connect(node.url) as client, client.producer("doors") as producer:
                await producer.send(b"later")

        asyncio.run(more())
    path, end = tail_of(data / "log-0")
    with start_node(tmp_path / "back", tmp_path, **TINY, position_folder=str(elsewhere)) as node:
        assert asyncio.run(read(node.url)) == EXPECTED
    zeroed(path, end // 2 // 8 * 8, b"")
    capsys.readouterr()
    assert main(["inspect", str(data), "--verify"]) == 1
    assert "DAMAGED" in capsys.readouterr().out
    assert main(["doctor", "--only", "damage", "--data", str(data)]) == 1
    assert "had been durable" in capsys.readouterr().out


@pytest.fixture
def dev(tmp_path: Path) -> Iterator[DevSet]:
    with Signals() as signals:
        found = DevSet(tmp_path, 3, 1)
        try:
            found.start(signals)
            yield found
        finally:
            found.stop()


def test_a_node_that_lost_its_tail_does_not_elect_one_that_lacks_it_too(
    dev: DevSet, tmp_path: Path
) -> None:
    """The two elected a leader, and what only the third still had was gone everywhere."""

    async def topic() -> None:
        async with weir.connect(dev.url, request_timeout=20.0) as client:
            await client.create_topic("doors")
            while not (await client.nodes.status()).settled:
                await asyncio.sleep(0.1)

    asyncio.run(topic())
    dev.kill([3])
    asyncio.run(publish(dev.url))
    folder = tmp_path / "node-1" / "log-0"
    saved(folder)
    dev.kill([1, 2])
    path, end = tail_of(folder)
    zeroed(path, end * 2 // 3 // 8 * 8, b"")
    dev.start_again([1, 3])

    async def asked() -> list[bytes]:
        async with (
            asyncio.timeout(4),
            weir.connect(dev.url, request_timeout=3.0) as client,
            client.reader("doors", follow=False) as reader,
        ):
            return [bytes(message.value) async for message in reader]

    with pytest.raises((WeirError, TimeoutError)):
        asyncio.run(asked())
    dev.start_again([2])
    dev.wait([1, 2, 3], Signals())

    async def settled() -> None:
        async with asyncio.timeout(60), weir.connect(dev.url, request_timeout=20.0) as client:
            while not (await client.nodes.status()).settled:
                await asyncio.sleep(0.1)

    asyncio.run(settled())
    assert asyncio.run(read(dev.url)) == EXPECTED
    dev.kill([2])  # what the two took from it is what is left
    assert asyncio.run(read(dev.url)) == EXPECTED

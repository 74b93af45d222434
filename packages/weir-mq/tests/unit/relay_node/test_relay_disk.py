"""A relay whose disk is full, or fails for a while: readers go on, and it tells an operator. What
the core's disk has lost is a gap.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rigs.relay_nodes import fill, frame, make_small, play, relay, rows, spoken, until_known
from weir.broker.partition.relay_pulls import RelayPulls
from weir.client.client import connect
from weir.errors import DamagedRange
from weir.model.ids import partition_of
from weir.protocol.client import messages as m
from weir.relay.messages import Pull, decode_message
from weir.relay.portion import Plan
from weir.relay.ports import PortionLost
from weir.relay_node import disk as disks
from weir.relay_node import host as hosting
from weir.relay_node import requests
from weir.relay_node.disk import RelayDisk
from weir.server.disk.file_disk import FileDisk
from weir.server.status import Reminder
from weir.storage.log import Flush
from weir.storage.log_reader import Reading
from weir.storage.segment_lifecycle import Removal
from weir.testing.memory_node import Node, node

ALL: dict[str, Any] = {"start": "earliest", "follow": False}
FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    make_small(monkeypatch)
    monkeypatch.setattr(disks, "_AGAIN", 0.01)


@pytest.fixture
def core() -> Iterator[Node]:
    with node() as found:
        yield found


def said(caplog: pytest.LogCaptureFixture, words: str) -> int:
    return sum(words in record.getMessage() for record in caplog.records)


def test_a_full_disk_pauses_pulls_and_readers_go_on(
    core: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries, pulls = list[int](), list[int]()
    ask, flush = hosting.Places.ask, Flush.run

    def full(one: Flush, disk: object) -> None:
        if not isinstance(disk, FileDisk):
            return flush(one, disk)  # type: ignore[arg-type]  # that of the core
        tries.append(len(pulls))
        raise FULL

    async def counted(places: Any, at: int, request: Any, kind: Any, **rest: Any) -> Any:
        asked = request(places[at])
        if isinstance(asked, m.AskRelay) and isinstance(decode_message(asked.message)[0], Pull):
            pulls.append(at)
        return await ask(places, at, request, kind, **rest)

    async def work() -> None:
        await fill(core, 6)
        async with relay(core, tmp_path) as url:
            await until_known(url, 6)
            truth = await rows(core.url, **ALL)
            monkeypatch.setattr(hosting.Places, "ask", counted)
            with monkeypatch.context() as disk:
                disk.setattr(Flush, "run", full)
                await fill(core, 6, 6)
                while len(tries) < 3:
                    await asyncio.sleep(0.01)
                await fill(core, 12, 12)
                while len(tries) < 60:
                    await asyncio.sleep(0.01)
                async with connect(url) as client, client.reader("t", start="earliest") as reader:
                    read = [bytes((await anext(reader)).value) for _ in truth]
                assert read == [row[3] for row in truth]
                # One pull a partition was under way, and nothing is asked for again.
                assert len(pulls) - tries[0] <= 4
                assert said(caplog, "nothing is pulled; readers go on") == 1
            await until_known(url, 24)
            assert await rows(url, **ALL) == await rows(core.url, **ALL)
            assert said(caplog, "the disk works again: flush") == 1
            assert not said(caplog, "relay-upper-silent")

    play(work)


def test_a_chore_that_fails_is_done_once_the_disk_allows(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, fails = list[tuple[str, ...]](), [True]

    def run(removal: Removal, disk: object) -> None:
        if fails[0]:
            raise FULL
        done.append(removal.names)

    chores = [Removal(("two",)), Removal(("one",))]
    store: Any = type("Store", (), {})()
    store.checkpoint = lambda states: object()
    store.saved = lambda: None
    store.log = type("Log", (), {"next_chore": lambda _: chores.pop() if chores else None})()
    monkeypatch.setattr(Removal, "run", run)
    monkeypatch.setattr(disks.checkpoint, "save", lambda disk, data: 1)

    async def work() -> None:
        disk = RelayDisk(None, store, disks.ThreadPool(), Reminder())  # type: ignore[arg-type]
        await disk.save_checkpoint({})
        running = asyncio.ensure_future(disk.run_chores())
        while "files" not in disk.troubles.now:
            await asyncio.sleep(0.01)
        assert not running.done()
        fails[0] = False
        while len(done) < 2:
            await asyncio.sleep(0.01)
        assert done == [("one",), ("two",)]
        while disk.troubles.now:
            await asyncio.sleep(0.01)
        running.cancel()
        disk.close()

    play(work)
    assert said(caplog, "are not removed") == 1


def test_a_checkpoint_that_is_not_saved_ends_nothing(
    core: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    save = disks.checkpoint.save

    def full(disk: Any, data: Any) -> int:
        if not isinstance(disk, FileDisk):
            return save(disk, data)  # that of the core
        raise FULL

    async def work() -> None:
        await fill(core, 3)
        monkeypatch.setattr(disks.checkpoint, "save", full)
        async with relay(core, tmp_path) as url:
            await until_known(url, 3)
        async with relay(core, tmp_path) as url:  # all that came is durable without one
            assert await rows(url, **ALL) == await rows(core.url, **ALL)

    play(work)
    assert said(caplog, "no checkpoint is saved") == 2


def test_what_the_disk_does_not_give_is_refused_and_then_pulled_again(
    core: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Reading.run

    def unread(reading: Reading, disk: Any) -> list[bytes]:
        if not isinstance(disk, FileDisk):
            return run(reading, disk)  # that of the core
        raise OSError(errno.EIO, "Input/output error")

    async def work() -> None:
        await fill(core, 3)
        async with relay(core, tmp_path) as url:
            await until_known(url, 3)
        async with relay(core, tmp_path) as url:  # its memory holds nothing
            await until_known(url, 3)
            async with connect(url) as client:
                addresses = (await client.describe("t")).addresses
            fetches = [frame(m.Fetch(one, 0, 1 << 20, equal_stamps=True)) for one in addresses]
            with monkeypatch.context() as broken:
                broken.setattr(Reading, "run", unread)
                _, *told = await spoken(url, frame(m.Hello("test")), *fetches)
                refused = [one.message for one in told if isinstance(one, m.Refusal)]
                assert refused
                assert all("Input/output error" in one for one in refused), refused
                broken.setattr(requests, "UNREAD_SECONDS", 0.0)
                assert await rows(url, **ALL) == await rows(core.url, **ALL)  # pulled into memory

    play(work)


def test_what_the_core_has_lost_is_an_error_to_readers_and_the_rest_is_read(
    core: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    read = RelayPulls.__dict__["_read"]

    def damaged(pulls: Any, ticket: int, plan: Plan) -> None:
        """Offsets 1 to 3 of partition 0 are lost."""
        if partition_of(plan.group) or plan.first > 3:
            read(pulls, ticket, plan)
        elif plan.first == 0:
            read(pulls, ticket, plan._replace(until=1))
        else:
            RelayPulls.__dict__["_do"](pulls, PortionLost(ticket, 4))

    async def work() -> None:
        await fill(core, 30)
        monkeypatch.setattr(RelayPulls, "_read", damaged)
        async with relay(core, tmp_path) as url:
            await until_known(url, 30)
            assert said(caplog, "lacks offsets [1, 4)") == 1
            for order in ("partition", "total"):
                with pytest.raises(DamagedRange, match="offsets 1 to 3 of t are lost"):
                    await rows(url, start="earliest", order=order)
            behind = {"start": {0: 4}, "order": "partition", "follow": False, "partitions": [0]}
            found = await rows(url, **behind)
            assert found
            assert found == await rows(core.url, **behind)

    play(work)

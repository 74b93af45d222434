"""Nodes of a real set that come back without what they wrote: an empty disk, a folder made anew."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

import weir
from weir.cli.demo.signals import Signals
from weir.cli.dev_set import DevSet
from weir.client.client import Client
from weir.client.nodes import Nodes
from weir.server.folder import NodeFolder, Part

_VALUES = [b"%d" % number for number in range(50)]


@pytest.fixture
def dev(tmp_path: Path) -> Iterator[DevSet]:
    with Signals() as signals:
        found = DevSet(tmp_path, 3, 1)
        try:
            found.start(signals)
            yield found
        finally:
            found.stop()


def run(url: str, work: Callable[[Client], Awaitable[None]]) -> None:
    async def connected() -> None:
        async with asyncio.timeout(30), weir.connect(url, request_timeout=20.0) as client:
            await work(client)

    asyncio.run(connected())


async def fill(client: Client) -> None:
    await client.create_topic("flights")
    async with client.producer("flights") as producer:
        for value in _VALUES:
            await producer.send(value)
    await settled(client)


async def settled(client: Client) -> None:
    while not (await Nodes(client).status()).settled:
        await asyncio.sleep(0.1)


async def whole(client: Client) -> None:
    await settled(client)
    async with client.reader("flights", follow=False) as reader:
        assert [bytes(message.value) async for message in reader] == _VALUES


def test_a_node_takes_back_from_the_others_what_an_emptied_disk_held(
    dev: DevSet, tmp_path: Path
) -> None:
    run(dev.url, fill)
    dev.kill([3])
    shutil.rmtree(tmp_path / "node-3" / "log-0")
    dev.restart(3, Signals())
    run(dev.url, whole)
    dev.kill([2])  # the two that are left are a majority, and one of them had nothing
    dev.restart(2, Signals())
    run(dev.url, whole)


def test_a_fourth_node_does_so_too_which_only_learns_what_the_set_is(tmp_path: Path) -> None:
    """It waited for ever to be let back."""
    with Signals() as signals:
        dev = DevSet(tmp_path, 4, 1)
        try:
            dev.start(signals)
            run(dev.url, fill)
            for _ in range(2):
                dev.kill([4])
                shutil.rmtree(tmp_path / "node-4" / "log-0")
                dev.restart(4, Signals())
                run(dev.url, whole)
        finally:
            dev.stop()


def test_a_folder_founded_anew_under_a_number_that_was_taken_does_not_serve(
    dev: DevSet, tmp_path: Path
) -> None:
    run(dev.url, fill)
    dev.kill([3])
    shutil.rmtree(tmp_path / "node-3")
    old = NodeFolder(tmp_path / "node-1").founded()
    assert old is not None
    NodeFolder(tmp_path / "node-3").found(old.logs, None, Part(3, old.members, old.system))
    dev.start_again([3])

    async def refused(client: Client) -> None:
        while "another data folder" not in dev.node(3).last_words():
            await asyncio.sleep(0.1)
        # The link of the killed one may not have been missed yet.
        while [one.up for one in (await Nodes(client).status()).nodes] != [True, True, False]:
            await asyncio.sleep(0.1)

    run(dev.url, refused)

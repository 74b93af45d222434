"""Nodes of a real set that come back without what they wrote: an empty disk, a folder made anew."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

import weir
from weir.cli.process import Signals
from weir.client.client import Client
from weir.errors import Disconnected
from weir.server.disk.node_folder import NodeFolder, Part
from weir.spark.blocking_client import BlockingClient
from weir.testing.nodes import NodeSet as DevSet

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
        async with asyncio.timeout(60), weir.connect(url, request_timeout=20.0) as client:
            await work(client)

    asyncio.run(connected())


async def fill(client: Client) -> None:
    await client.create_topic("flights")
    async with client.producer("flights") as producer:
        for value in _VALUES:
            await producer.send(value)
    await settled(client)


async def settled(client: Client) -> None:
    while not (await client.nodes.status()).settled:
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
        while [one.up for one in (await client.nodes.status()).nodes] != [True, True, False]:
            await asyncio.sleep(0.1)

    run(dev.url, refused)


def test_clients_pass_over_a_node_founded_anew_that_is_first_in_the_url(
    dev: DevSet, tmp_path: Path
) -> None:
    run(dev.url, fill)
    dev.kill([1])
    shutil.rmtree(tmp_path / "node-1")
    old = NodeFolder(tmp_path / "node-2").founded()
    assert old is not None
    NodeFolder(tmp_path / "node-1").found(old.logs, None, Part(1, old.members, old.system))
    dev.start_again([1])
    others = "weir://" + ",".join(dev.url.removeprefix("weir://").split(",")[1:])

    async def publish(client: Client) -> None:
        assert (await client.publish("flights", b"x")).partition == 0

    run(others, publish)  # somebody leads
    port = int(dev.url.split(":")[2].split(",")[0])
    until_it_says_that_it_is_unmet(port)

    def seconds() -> float:
        began = time.monotonic()
        run(dev.url, publish)
        return time.monotonic() - began

    # A client that stayed with it for a while would do so each time.
    assert min(seconds() for _ in range(5)) < 1.0


def until_it_says_that_it_is_unmet(port: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with pytest.raises(Disconnected) as caught:
            BlockingClient("127.0.0.1", port)
        if "is not connected to its set" in str(caught.value):
            return
    raise AssertionError("nobody listens there")

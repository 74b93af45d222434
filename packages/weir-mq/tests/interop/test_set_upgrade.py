"""Three real nodes get a new release one by one, under load, and then a new format level.

The new release is this one, told by a `sitecustomize` of the test that it supports a level more.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import weir
from weir.client.client import Client
from weir.client.nodes import SetStatus
from weir.errors import LevelTooHigh
from weir.model.limits import FORMAT_LEVEL
from weir.testing.nodes import NodeFailed, NodeSet, Patient

NEW = FORMAT_LEVEL + 1
_WAIT = 30.0
_RELEASE = """
import os
from weir.model import limits
limits.FORMAT_LEVEL = int(os.environ.get("RELEASE_READS", limits.FORMAT_LEVEL))
"""


@pytest.fixture
def brokers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NodeSet]:
    release = tmp_path / "release"
    release.mkdir()
    (release / "sitecustomize.py").write_text(_RELEASE)
    monkeypatch.setenv("PYTHONPATH", str(release))
    found = NodeSet(tmp_path / "set", 3, 1)
    try:
        found.start(Patient())
        yield found
    finally:
        found.stop()


async def until(client: Client, holds: Callable[[SetStatus], bool]) -> SetStatus:
    async with asyncio.timeout(_WAIT):
        while True:
            status = await client.nodes.status()
            if holds(status):
                return status
            await asyncio.sleep(0.1)


def levels(status: SetStatus) -> list[int]:
    return [one.level for one in status.nodes]


async def upgraded(brokers: NodeSet, client: Client, number: int) -> None:
    """Return once a node runs the new release and the set knows of it."""
    brokers.let(number, {"RELEASE_READS": str(NEW)})
    await asyncio.to_thread(brokers.node(number).stop)
    await asyncio.to_thread(brokers.restart, number, Patient())
    await until(client, lambda status: status.settled and levels(status)[number - 1] == NEW)


def serve(brokers: NodeSet, number: int) -> None:
    """Let a node serve, for a while at least."""
    brokers.restart(number, Patient())
    deadline = time.monotonic() + _WAIT
    while time.monotonic() < deadline:
        brokers.wait([number], Patient())


@pytest.mark.slow  # weir-lab upgrades the wheels of the release before likewise
def test_a_release_and_then_a_level_under_load(brokers: NodeSet) -> None:
    confirmed: list[int] = []

    async def publish(client: Client, stop: asyncio.Event) -> None:
        number = 0
        while not stop.is_set():
            await client.publish("flights", str(number), key=str(number % 16))
            confirmed.append(number)
            number += 1

    async def work() -> list[int]:
        async with weir.connect(brokers.url, request_timeout=20.0) as client:
            await client.create_topic("flights", 3)
            await until(client, lambda status: status.settled)
            await until(client, lambda status: levels(status) == [FORMAT_LEVEL] * 3)
            stop = asyncio.Event()
            publishing = asyncio.create_task(publish(client, stop))
            for number in (1, 2, 3):
                had = len(confirmed)
                with pytest.raises(LevelTooHigh, match=f"supports format level {FORMAT_LEVEL}"):
                    await client.nodes.raise_level(NEW)
                await upgraded(brokers, client, number)
                assert len(confirmed) > had
            # Old and new release were together so far: nothing of the new level is written yet.
            assert (await client.nodes.status()).level <= FORMAT_LEVEL
            await client.nodes.raise_level()
            status = await until(client, lambda status: status.level == NEW)
            assert levels(status) == [NEW] * 3
            had = len(confirmed)
            while len(confirmed) < had + 50:
                await asyncio.sleep(0.05)
            stop.set()
            await publishing
            async with client.reader("flights", follow=False) as reader:
                return [int(bytes(message.value)) async for message in reader]

    values = asyncio.run(work())
    assert sorted(values) == confirmed == [*range(len(confirmed))]

    # Who went back to the old release is told so, and does not serve; the others go on.
    brokers.node(2).stop()
    brokers.let(2, {"RELEASE_READS": str(FORMAT_LEVEL)})
    with pytest.raises(NodeFailed, match=f"reads up to {FORMAT_LEVEL}: upgrade this node"):
        serve(brokers, 2)
    brokers.node(2).kill()
    brokers.let(2, {"RELEASE_READS": str(NEW)})
    brokers.restart(2, Patient())

    async def again() -> int:
        async with weir.connect(brokers.url, request_timeout=20.0) as client:
            await until(client, lambda status: status.settled)
            return (await client.publish("flights", "last")).offset

    assert asyncio.run(again()) >= 0

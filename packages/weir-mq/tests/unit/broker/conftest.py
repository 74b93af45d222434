"""A clock, and a shard whose disk does what it is told at once."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from rigs.broker_rig import Doors, FakeTime, Publisher, Rig
from weir.broker.api.settings import ShardSettings
from weir.testing.simulator.disk import SimDisk


@pytest.fixture
def time() -> FakeTime:
    return FakeTime()


@pytest.fixture
def make_rig(time: FakeTime) -> Callable[..., Rig]:
    """Return a function that founds a node; `cache` bytes 0 makes every read go to the disk."""

    def make(cache: int = 1 << 20, **settings: Any) -> Rig:
        return Rig(SimDisk(random.Random(1)), time, ShardSettings(**settings), cache)

    return make


@pytest.fixture
def rig(make_rig: Callable[..., Rig]) -> Rig:
    """A node that was just founded."""
    return make_rig()


@pytest.fixture
def make_doors(make_rig: Callable[..., Rig]) -> Callable[..., Doors]:
    """Return a function that makes a topic of so many partitions, and what else a rig may be."""

    def make(partitions: int = 1, cache: int = 1 << 20, **settings: Any) -> Doors:
        return Doors(make_rig(cache, **settings), partitions)

    return make


@pytest.fixture
def doors(make_doors: Callable[..., Doors]) -> Doors:
    return make_doors()


@pytest.fixture
def make_publisher() -> Callable[..., Publisher]:
    """Return what opens one more producer: (rig, topic)."""
    return Publisher


@pytest.fixture
def large(rig: Rig) -> tuple[Rig, Publisher]:
    """A node that was just founded, and a producer there."""
    rig.connect()
    return rig, Publisher(rig, rig.topic(1))

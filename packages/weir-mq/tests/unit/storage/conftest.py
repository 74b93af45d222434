"""A small log on a simulated disk, and records for it."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from rigs.small_log import Node
from weir.model.batch import HEADER_SIZE, stamped
from weir.model.batch_builder import encode
from weir.storage.format.frame import Kind
from weir.storage.format.record import Record
from weir.storage.log import Log
from weir.storage.recovery import recover
from weir.storage.segment_files import Settings
from weir.testing.simulator.disk import SimDisk


@pytest.fixture
def make_node(batches: Callable[..., Record]) -> Callable[..., Node]:
    """Return a function that founds a node on a disk of its own."""

    def make(settings: Settings, **shape: int) -> Node:
        return Node(settings, batches, **shape)

    return make


@pytest.fixture
def small() -> Settings:
    return Settings(log=1, system=77, segment_bytes=8192, entry_bytes_max=2000)


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk(random.Random(1))


@pytest.fixture
def log(disk: SimDisk, small: Settings) -> Log:
    return recover(disk, small).log


@pytest.fixture
def batches() -> Callable[..., Record]:
    """A BATCHES record of `count` messages from `offset` on."""

    def make(index: int, offset: int, count: int = 1, group: int = 65536, size: int = 8) -> Record:
        sealed = encode([b"v" * size] * count, group=group)
        payload = stamped(sealed, index, offset) + bytes(sealed[HEADER_SIZE:])
        return Record(
            group,
            1,
            index,
            Kind.BATCHES,
            (payload,),
            len(payload),
            offset,
            offset + count,
            index,
        )

    return make


@pytest.fixture
def control() -> Callable[..., Record]:
    """A CONTROL record of one buffer."""

    def make(index: int, payload: bytes = b"control!", group: int = 65536, term: int = 1) -> Record:
        return Record(group, term, index, Kind.CONTROL, (payload,), len(payload))

    return make


@pytest.fixture
def settle(disk: SimDisk) -> Callable[[Log], tuple[object, ...]]:
    """Flush all that is staged; return the tokens."""

    def run(log: Log) -> tuple[object, ...]:
        flush = log.next_flush()
        assert flush is not None
        flush.run(disk)
        log.flushed(flush)
        return flush.tokens

    return run

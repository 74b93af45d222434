"""What the log's tests share: a small log on a simulated disk, and records for it."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from weir.log.frame import Kind
from weir.log.log import Log
from weir.log.record import Record
from weir.log.recovery import recover
from weir.log.settings import Settings
from weir.model.batch import encode
from weir.model.header import HEADER_SIZE, stamped
from weir.sim.disk import SimDisk


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

"""What a start may say of a log: what recovery made durable, and not what is staged since."""

from __future__ import annotations

import random

from weir.host.logs import open_log, tell_durable
from weir.model.limits import KIB
from weir.storage.format.durable_position import DurablePosition, Owner
from weir.storage.segment_files import Settings
from weir.testing.simulator.disk import SimDisk

SETTINGS = Settings(log=3, system=99, segment_bytes=24 * KIB, entry_bytes_max=6 * KIB)


class Saver:
    """Keeps what it was told."""

    def __init__(self) -> None:
        self.told: list[int] = []

    def reached(self, position: int) -> None:
        self.told.append(position)


def test_what_a_start_stages_is_not_named_durable() -> None:
    disk, other = SimDisk(random.Random(1)), SimDisk(random.Random(2))
    start = open_log(disk, SETTINGS, DurablePosition(other, Owner(3, 99, 1)))
    assert start.opened.log.tail > 0  # a mark is staged for the first flush
    saver = Saver()
    tell_durable([start], {3: saver})
    assert saver.told == [0]

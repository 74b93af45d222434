"""A large state is taken in a moment, and packed in another thread while it goes on changing.

WEIR_STATE_ROWS producers and four times as many devices.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable

import pytest

from weir.broker.records.snapshots import Frozen, Packing, crc_from, pack, pack_onto, taken, unpack
from weir.broker.state.clusters import ClusterState
from weir.broker.state.producers import Answer
from weir.broker.state.state import PartitionState
from weir.codec import crc32c
from weir.testing.simulator.disk import SimDisk

ROWS = int(os.environ.get("WEIR_STATE_ROWS", "40000"))


def write(state: PartitionState, row: int, sequence: int) -> None:
    state.producers.record(row + 1, 1, Answer(sequence, 1, sequence, sequence, 7))
    state.origins.record(row, row % 3, 1, sequence, sequence, 9)


@pytest.fixture(scope="module")
def large() -> PartitionState:
    state = PartitionState()
    state.clusters["c"] = ClusterState(0, 0)
    for row in range(ROWS):
        write(state, row, 0)
    for row in range(ROWS, 4 * ROWS):
        state.origins.record(row, 0, 1, 0, 0, 9)
    return state


def spent(what: Callable[[], object]) -> float:
    """Seconds that this very thread worked: what else the machine does is not counted."""
    began = time.thread_time()
    what()
    return time.thread_time() - began


def test_a_large_state_is_taken_in_a_moment(large: PartitionState) -> None:
    packing = spent(lambda: pack(large.encode()))
    taking = min(spent(lambda: taken(large.encode())) for _ in range(5))
    assert taking < packing / 5
    assert taking < 0.010, "two tables of 256 parts, however large these are"


def test_the_first_write_behind_a_snapshot_copies_a_small_part(large: PartitionState) -> None:
    whole = spent(lambda: pack(large.encode()))

    def writes() -> list[float]:
        large.encode()
        return [spent(lambda row=row: write(large, row, 1)) for row in range(0, ROWS, 97)]

    # What the collector of garbage takes, or the machine below, meets another row each time.
    worst = max(map(min, zip(*(writes() for _ in range(3)), strict=True)))
    assert worst < max(whole / 5, 0.010)


def test_what_was_taken_is_packed_while_the_state_changes(large: PartitionState) -> None:
    before = pack(large.encode())
    state, found = taken(large.encode()), bytearray()
    packer = threading.Thread(target=lambda: pack_onto(state, found))
    write(large, 0, 5)
    packer.start()
    row = 1
    while packer.is_alive():
        write(large, row % ROWS, 5)
        large.clusters["c"].seek(row)
        row += 1
    packer.join()
    assert bytes(found) == before
    assert pack(large.encode()) != before


def test_it_comes_back_as_it_was(large: PartitionState) -> None:
    (packed,) = Packing(0, taken(large.encode())).run(SimDisk(random.Random(1)))
    again = PartitionState.decode(unpack(packed))
    assert pack(again.encode()) == packed
    assert again.producers.known(1) == large.producers.known(1)
    assert again.origins.known(ROWS, 0) == large.origins.known(ROWS, 0)


def test_parts_are_the_same_where_they_say_the_same() -> None:
    assert Frozen(lambda: [1, b"x"]) == Frozen(lambda: (1, memoryview(b"x")))
    assert Frozen(lambda: 1) != Frozen(lambda: 2)
    assert hash(Frozen(lambda: 1)) == hash(Frozen(lambda: 1))


def test_the_sum_of_large_data_is_taken_in_pieces() -> None:
    data = bytearray(os.urandom(3 << 20))
    assert crc_from(data, 5) == crc32c(bytes(data[5:]))

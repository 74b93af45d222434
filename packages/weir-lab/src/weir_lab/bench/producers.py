"""What producer ids cost a replica: memory, and for how long a snapshot of them stops its shard.

The state of a partition and that of a registry get so many ids, each of which has filled its
window, granted at an even rate over the dedupe horizon. Memory is what the process takes more then.
A snapshot stops the loop while it is taken, and afterwards makes writes copy what they share with
it: so as many batches follow as there are parts to copy, and the longest of those counts. Stops are
measured in processor time, since whatever else the machine does is no stop of the snapshot's.
"""

from __future__ import annotations

import gc
import os
import time
from pathlib import Path
from random import Random

import msgspec

from weir.broker.metadata.catalog import Catalog
from weir.broker.records.registry import ProducerOpened
from weir.broker.records.snapshots import pack, taken
from weir.broker.state.producers import PARTS, Answer
from weir.broker.state.state import PartitionState
from weir.model.ids import producer_of
from weir.model.limits import DEDUPE_HORIZON_MS, PIPELINE_WINDOW
from weir.order.clock import stamp_at
from weir_lab.bench.bounds import check_bounds
from weir_lab.bench.harness.machine import Machine, this_machine

#: When the first id was granted, in ms since 1970.
_FROM_MS = 1_700_000_000_000
_SNAPSHOTS = 5
#: So many writes for each part: nearly all are copied by one of them.
_WRITES = 8
_PRINCIPAL = "user:publisher"


class Settings(msgspec.Struct, frozen=True):
    """So many ids, granted with a `window`; 0: without one, as releases before level 3 did."""

    ids: int = 1_000_000
    window: int = 1

    def check(self) -> None:
        """Raise `ValueError` for what cannot be measured."""
        check_bounds(ids=(self.ids, 1_000, 10_000_000), window=(self.window, 0, PIPELINE_WINDOW))


class Result(msgspec.Struct, frozen=True):
    """Bytes of memory of an id, where it wrote to a partition and in a registry, and all of them in
    MB of 10^6 bytes; bytes of an id in a checkpoint. In ms the longest stops of a shard: to take a
    snapshot of both states, and by one write of many that follow.
    """

    settings: Settings
    machine: Machine
    partition_bytes_per_id: float
    registry_bytes_per_id: float
    memory_mb: float
    checkpoint_bytes_per_id: float
    taken_ms: float
    write_ms: float
    stop_ms: float


def measure(settings: Settings) -> Result:
    """Fill the states, and take snapshots of them. Raises `ValueError` if one comes back with other
    ids.
    """
    settings.check()
    gc.collect()
    before = _resident_bytes()
    state = _partition(settings)
    gc.collect()
    with_state = _resident_bytes()
    catalog = _registry(settings)
    gc.collect()
    gc.freeze()  # what was filled is no garbage of what is timed
    with_both = _resident_bytes()
    try:
        stops = [_stops(state, catalog, settings, number) for number in range(_SNAPSHOTS)]
    finally:
        gc.unfreeze()
    packed = pack(state.encode()), pack(catalog.encode())
    _check(packed, settings)
    taken_ms, write_ms = (max(column) for column in zip(*stops, strict=True))
    return Result(
        settings,
        this_machine(),
        (with_state - before) / settings.ids,
        (with_both - with_state) / settings.ids,
        (with_both - before) / 1e6,
        sum(map(len, packed)) / settings.ids,
        taken_ms,
        write_ms,
        max(taken_ms, write_ms),
    )


def _id(settings: Settings, number: int) -> int:
    step = stamp_at(DEDUPE_HORIZON_MS) // settings.ids
    return producer_of(stamp_at(_FROM_MS) + number * step, settings.window)


def _partition(settings: Settings) -> PartitionState:
    state, window = PartitionState(), settings.window or PIPELINE_WINDOW
    record = state.producers.record
    for number in range(settings.ids):
        producer, offset = _id(settings, number), number * window
        for sequence in range(window):
            at = offset + sequence
            record(producer, 0, Answer(sequence, 1, at, stamp_at(_FROM_MS) + at, at))
    return state


def _registry(settings: Settings) -> Catalog:
    catalog = Catalog()
    for number in range(settings.ids):
        catalog.open(ProducerOpened(_id(settings, number), 0, _PRINCIPAL))
    return catalog


def _stops(
    state: PartitionState, catalog: Catalog, settings: Settings, number: int
) -> tuple[float, float]:
    begun = time.thread_time()
    kept = taken(state.encode()), taken(catalog.encode())
    took = time.thread_time() - begun
    dice, longest = Random(number), 0.0
    record, window = state.producers.record, settings.window or PIPELINE_WINDOW
    for _ in range(_WRITES * PARTS):
        producer = _id(settings, dice.randrange(settings.ids))
        answer = Answer(window + number, 1, 0, stamp_at(_FROM_MS), 0)
        begun = time.thread_time()
        record(producer, 0, answer)
        longest = max(longest, time.thread_time() - begun)
    del kept
    return took * 1_000, longest * 1_000


def _check(packed: tuple[bytes, bytes], settings: Settings) -> None:
    state, catalog = map(msgspec.msgpack.decode, packed)
    here = PartitionState.decode(state).producers
    granted = Catalog.decode(catalog)
    for number in range(0, settings.ids, max(1, settings.ids // 1_000)):
        producer = _id(settings, number)
        if here.known(producer) is None or granted.producer(producer) is None:
            raise ValueError(f"producer {producer} is not in the checkpoint")


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")

"""The promise bound of a log: durable before it counts, and never forgotten again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rigs.logs import know_no_bound
from weir.codec import U64
from weir.storage.format.checkpoint import load
from weir.storage.format.frame import HEADER_SIZE
from weir.storage.format.record import Record
from weir.storage.format.segment import BLOCK, SMALL_FRAME
from weir.storage.log import Log
from weir.storage.recovery import recover
from weir.storage.segment_files import Settings
from weir.testing.simulator.disk import SimDisk

Make = Callable[..., Record]
Settle = Callable[[Log], tuple[object, ...]]
HIGH = 111411200000000002


def test_a_bound_counts_once_its_flush_is_durable(
    disk: SimDisk, log: Log, small: Settings, settle: Settle
) -> None:
    assert log.bound == 0
    log.extend_bound(HIGH)
    flush = log.next_flush()
    assert flush is not None
    assert log.bound == 0
    flush.run(disk)
    log.flushed(flush)
    assert log.bound == HIGH
    again = recover(disk, small).log
    assert (again.bound, again.found_bound) == (HIGH, HIGH)


def test_a_bound_alone_is_an_idle_mark(
    log: Log, disk: SimDisk, small: Settings, control: Make, settle: Settle
) -> None:
    log.append(control(1))
    settle(log)
    durable = log.reader.durable
    log.extend_bound(HIGH)
    settle(log)
    log.mark_idle()
    assert log.staged is None
    assert recover(disk, small).mark == durable
    log.extend_bound(HIGH + 1)
    log.append(control(2))
    settle(log)
    log.mark_idle()
    assert log.staged is not None, "more was in that flush than a mark"


def test_a_bound_joins_the_flush_that_is_staged(
    disk: SimDisk, log: Log, small: Settings, control: Make, settle: Settle
) -> None:
    log.append(control(1))
    log.extend_bound(HIGH)
    log.append(control(2))
    settle(log)
    assert not log.staged is not None
    found = recover(disk, small)
    assert found.log.bound == HIGH
    assert found.groups[65536].last_index == 2


def test_every_later_flush_repeats_it(
    disk: SimDisk, log: Log, small: Settings, control: Make, settle: Settle
) -> None:
    log.extend_bound(HIGH)
    settle(log)
    log.append(control(1))
    settle(log)
    log.append(control(2))
    settle(log)
    (name,) = [one for one in disk.names() if one.startswith("segment")]
    disk.write(name, BLOCK, [bytes(SMALL_FRAME)])  # the flush that brought it is gone
    disk.sync(name)
    assert recover(disk, small).log.bound == HIGH


def test_rot_of_the_payload_leaves_it(
    disk: SimDisk, log: Log, small: Settings, control: Make, settle: Settle
) -> None:
    log.extend_bound(HIGH)
    settle(log)
    (name,) = [one for one in disk.names() if one.startswith("segment")]
    disk.write(name, BLOCK + HEADER_SIZE, [U64.pack(1 << 40)])
    disk.sync(name)
    # What proves that it had been durable comes from a release that knew no bounds.
    know_no_bound(log)
    log.append(control(1))
    settle(log)
    log.mark_idle()
    settle(log)
    assert recover(disk, small).log.bound == HIGH


def test_it_outlives_the_segments_that_it_was_written_to(
    make_node: Callable[..., Any], small: Settings
) -> None:
    node = make_node(small)
    node.log.extend_bound(HIGH)
    node.write(1, 5)
    first = node.log.segments.last.generation
    for _ in range(4):
        node.round(3, 5)
    assert node.log.segments.last.generation > first + 2
    found = load(node.disk)
    assert found is not None
    assert found.bound == HIGH
    node.restart()
    assert node.log.bound == HIGH

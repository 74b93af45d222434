"""Rules of the disk that can be taken away: what is written, what counts as durable, what is
believed.
"""

from __future__ import annotations

from typing import Any

import msgspec

from weir.broker.replica.raft_storage import Token
from weir.broker.replica.writer import Writer
from weir.broker.state.state import PartitionState
from weir.errors import BadBatch
from weir.model.batch import parse
from weir.storage import recovery, segment_scan
from weir.storage.disk import Disk
from weir.storage.format import durable_position
from weir.storage.format.frame import HEADER_SIZE, BadFrame, BadPayload, Frame, Kind, place, verify
from weir.storage.format.segment import Segment
from weir.storage.group_index import LostEntries
from weir.storage.log import Flush
from weir.storage.log_reader import LogReader
from weir_lab.sim.mutants.planting import Patch, bug, mutant
from weir_lab.sim.outcome import CRASH
from weir_lab.sim.scenarios.lone_log import play_log
from weir_lab.sim.scenarios.lost_tails import Life, play_tails
from weir_lab.sim.shape import NODE_SINKS, Shape

#: Much rot in the end.
ROTTEN = Shape(rots=(3,))
_MERGE = "weir.order.barrier"
_STAGING = "weir.broker.state.staging"
_PARTITION = "weir.broker.partition.partition"
_WRITER = "weir.broker.replica.writer"


@mutant(seed=0, breaks={"Durable", "OneOffset", "AckedOnce"})
def ack_before_fsync(patch: Patch) -> None:
    """A write counts as durable when it begins (Durable)."""
    start = Writer.start_flush
    believed: list[Flush] = []

    def start_flush(self: Writer) -> None:
        start(self)
        flush = self.log._flight
        if flush is not None and not any(flush is known for known in believed):
            believed.append(flush)
            for token in flush.tokens:
                assert isinstance(token, Token)
                self.groups[token.group].persisted(token.ready)

    def flushed(self: Writer, flush: Flush, rests: bool = False) -> None:
        self.log.flushed(flush)
        self._began_ms, self._rests = None, rests

    patch.setattr(Writer, "start_flush", start_flush)
    patch.setattr(Writer, "flushed", flushed)


@mutant(seed=2, breaks={"Durable"})
def page_cache_believed(patch: Patch) -> None:
    """Recovery neither rewrites nor syncs what lies above the durable mark (counterexample 9)."""

    def believe(disk: Disk, row: list[Segment], rest: list[str], scan: segment_scan.Scan) -> None:
        live = {segment.name for segment in scan.live}
        for name in [*(s.name for s in reversed(row) if s.name not in live), *rest]:
            disk.remove(name)

    patch.setattr(recovery, "_make_durable", believe)


@mutant(seed=1, breaks={"Durable", "Honest", CRASH})
def torn_tail_believed(patch: Patch) -> None:
    """A frame whose payload fails its checksum was cut off by the power (DESIGN §4 Log)."""

    def believed(data: memoryview, at: int, *, generation: int, position: int | None) -> Frame:
        try:
            return verify(data, at, generation=generation, position=position)
        except BadPayload as bad:
            frame = bad.frame
            if frame.kind is not Kind.BATCHES:
                return frame
            try:
                first = last = parse(data, start := at + HEADER_SIZE)
                while (start := start + last.total_size) < at + HEADER_SIZE + frame.length:
                    last = parse(data, start)
            except BadBatch:
                raise bad from None
            behind = last.next_offset
            return msgspec.structs.replace(
                frame, first_offset=first.first_offset, next_offset=behind, stamp=last.stamp
            )

    patch.setattr(segment_scan, "verify", believed)


@mutant(seed=1, breaks={"Durable", "Honest"}, play=play_log)
def old_generation_believed(patch: Patch) -> None:
    """What a file held in an earlier life counts where it lies behind the tail (DESIGN §4 Log)."""

    def believed(data: memoryview, at: int, *, generation: int, position: int | None) -> Frame:
        try:
            return verify(data, at, generation=generation, position=position)
        except BadFrame as bad:
            if position is None or len(data) - at < HEADER_SIZE:
                raise
            known, there, _ = place(data, at)
            if not 0 < known < generation:
                raise bad from None
            frame = verify(data, at, generation=known, position=there)
            return msgspec.structs.replace(frame, position=position)

    patch.setattr(segment_scan, "verify", believed)


@mutant(seed=6, breaks={"Retained"})
def retention_takes_all(patch: Patch) -> None:
    """What is too much goes, and what is not goes with it (DESIGN §4 Log)."""
    honest = LogReader.cut_by_size

    def cut(self: LogReader, group: int, size: int, *beside: Any) -> tuple[int, int] | None:
        found = honest(self, group, size, *beside)
        return (found[0] + 1, 1 << 40) if found is not None else None

    patch.setattr(LogReader, "cut_by_size", cut)


@mutant(seed=7, breaks={"Durable", "Live"})
def a_checkpoint_without_log_start(patch: Patch) -> None:
    """A snapshot does not say which messages are gone (counterexample 13)."""
    honest = PartitionState.encode

    def encode(self: PartitionState) -> object:
        start, self.log_start = self.log_start, 0
        try:
            return honest(self)
        finally:
            self.log_start = start

    patch.setattr(PartitionState, "encode", encode)


@mutant(seed=9, breaks={"Durable", "Honest"}, shape=ROTTEN)
def a_hole_is_mended_behind(patch: Patch) -> None:
    """A sound entry stands in for what a lost one before it held (Honest; seed 49 found it)."""

    def hold(self: LostEntries, lost: int, first_offset: int) -> None:
        behind = self._index.columns.behind
        behind[-1] = max(behind[-1], first_offset)

    patch.setattr(LostEntries, "hold", hold)


@mutant(seed=2, breaks={"Durable", "Live", "Honest", CRASH}, shape=ROTTEN)
def damaged_groups_take_part(patch: Patch) -> None:
    """A group that lost entries it has to apply leads as if nothing were (DESIGN §4 Damage)."""
    honest = segment_scan.Scan.judge

    def judge(self: segment_scan.Scan, read: segment_scan.Read) -> None:
        honest(self, read)
        self.groups.damage.clear()

    patch.setattr(segment_scan.Scan, "judge", judge)


@mutant(seed=0, breaks={"Live"}, play=play_tails)
def a_position_ahead_of_its_flush(patch: Patch) -> None:
    """What is about to be flushed is named as durable (ADR 0036, rule 2)."""
    patch.setattr(Life, "before_flush", Life.save)


@mutant(seed=0, breaks={"Durable"}, play=play_tails)
def the_older_position_is_taken(patch: Patch) -> None:
    """Of two sound blocks the one with the lower count is believed (ADR 0036, rule 4)."""
    patch.setattr(durable_position, "newest", lambda found: min(found, key=lambda one: one.count))


@mutant(seed=0, breaks={"Durable"}, play=play_tails)
def a_position_is_not_compared(patch: Patch) -> None:
    """A log that ends below what the file names goes on as if nothing were (ADR 0036, rule 4)."""
    patch.setattr(segment_scan.Scan, "reach", lambda self, durable: None)


@bug(breaks={"Durable", "OneOffset", CRASH})
def a_flush_counts_before_it_has_returned(patch: Patch) -> None:
    """What waited for a flush is told when that is done, not when it begins."""
    patch.source(
        _WRITER,
        "(self.log.settings.log, flush, rest_ms))\n",
        "(self.log.settings.log, flush, rest_ms))\n"
        "            for token in flush.tokens:\n"
        "                assert isinstance(token, Token)\n"
        "                group = self.groups.get(token.group)\n"
        "                if group is not None and group.node is token.node:\n"
        "                    group.persisted(token.ready)\n",
    )
    patch.source(
        _WRITER,
        "        for token in flush.tokens:\n            assert isinstance",
        "        for token in ():\n            assert isinstance",
    )


@bug(breaks={"Durable"})
def what_a_start_stages_is_named_durable(patch: Patch) -> None:
    """The durable-position file names what recovery made durable: a node that is killed before its
    first flush starts again.
    """
    patch.source(
        "weir.host.logs",
        "log].reached(start.durable)",
        "log].reached(start.opened.log.tail)",
    )


@bug(breaks={"BarrierHolds", "OneOrder"})
def a_promise_counts_before_its_bound_is_written(patch: Patch) -> None:
    """Nobody promises beyond the bound that the disk has."""
    patch.source(
        _WRITER,
        "            self.log.extend_bound(bound)\n",
        "            self.log.extend_bound(bound)\n            self.bound.written(bound)\n",
    )


@bug(breaks={"Live"})
def a_flush_that_failed_to_take_all_is_the_last(patch: Patch) -> None:
    """What could not be cut while leadership is handed over is cut later."""
    patch.source(
        _PARTITION,
        "            self.writer.mark_dirty(self)\n        leading.participant",
        "            pass\n        leading.participant",
    )


@bug(breaks={"OneOrder"})
def the_order_of_one_stamp_is_that_of_arrival(patch: Patch) -> None:
    """Batches of one stamp come in the order of their partitions."""
    patch.source(
        _MERGE,
        "        while heap and heap[0][:2] <= frontier:\n"
        "            merged = Merged(*heapq.heappop(heap))\n",
        "        heap.sort(key=lambda one: one[0])\n"
        "        while heap and heap[0][:2] <= frontier:\n"
        "            merged = Merged(*heap.pop(0))\n",
    )


@mutant(seed=4, breaks={"Durable", "Retained"}, shape=NODE_SINKS)
def what_lies_in_front_of_staged_batches_is_freed(patch: Patch) -> None:
    """A log keeps the first entry that is needed, whether it was staged or not."""
    patch.source(
        _STAGING,
        "        return min([index, *self._indexes[bisect_right(self._behind, offset) :]])",
        "        return min(self._indexes[bisect_right(self._behind, offset) :], default=index)",
    )

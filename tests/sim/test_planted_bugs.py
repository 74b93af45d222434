"""A simulator that cannot fail proves nothing: each bug planted here must be caught.

A bug takes away one rule of DESIGN §4 or §5, at a small seam of the code. The number beside it is
how many seeds, from 0 on, may pass before a checker of one of the named promises complains.

One bug is too rare here: leftovers behind the tail that recovery does not zero (counterexample 8)
need a new frame to end exactly where a dropped one begins. tests/property/test_log_crash.py makes
frames of one size and catches it there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from weir.broker.clusters import ClusterState, Grant
from weir.broker.control import MessagesGranted
from weir.broker.dedupe import OriginTable, ProducerTable
from weir.broker.grants import Grants
from weir.broker.group import Group, Token
from weir.broker.intake import Intake, Pending
from weir.broker.ranges import Ranges
from weir.broker.state import PartitionState
from weir.broker.writer import Writer
from weir.log import recovery
from weir.log.disk import Disk
from weir.log.flush import Flush
from weir.log.log import Log
from weir.log.scan import Scan
from weir.log.segment import Segment
from weir.model.header import Header
from weir.sim.run import run_seed
from weir.wire.messages import Confirm

Plant = Callable[[pytest.MonkeyPatch], None]


def confirm_before_the_flush(patch: pytest.MonkeyPatch) -> None:
    """A write counts as durable when it begins (Durable; reliability.md §3, rule 3)."""
    start = Writer.advance
    believed: list[Flush] = []

    def advance(self: Writer) -> None:
        start(self)
        flush = self.log._flight
        if flush is not None and not any(flush is known for known in believed):
            believed.append(flush)
            for token in flush.tokens:
                assert isinstance(token, Token)
                self.groups[token.group].persisted(token.ready)

    def flushed(self: Writer, flush: Flush) -> None:
        self.log.flushed(flush)
        self._in_flight = False

    patch.setattr(Writer, "advance", advance)
    patch.setattr(Writer, "flushed", flushed)


def checkpoint_without_dedupe(patch: pytest.MonkeyPatch) -> None:
    """A snapshot forgets who wrote what (counterexample 13)."""
    patch.setattr(ProducerTable, "encode", lambda self: [])
    patch.setattr(OriginTable, "encode", lambda self: [])


def page_cache_believed(patch: pytest.MonkeyPatch) -> None:
    """Recovery neither rewrites nor syncs what lies above the durable mark (counterexample 9)."""

    def settle(disk: Disk, row: list[Segment], rest: list[str], scan: Scan) -> None:
        live = {segment.name for segment in scan.live}
        for name in [*(s.name for s in reversed(row) if s.name not in live), *rest]:
            disk.remove(name)

    patch.setattr(recovery, "_settle", settle)


def dedupe_by_applied_state_only(patch: pytest.MonkeyPatch) -> None:
    """What is pending is not looked at (counterexample 14)."""
    honest = Intake.judge

    def judge(self: Intake, header: Header) -> Pending | Confirm | None:
        ahead, flying = self._ahead, self._flying
        self._ahead, self._flying = {}, {}
        try:
            return honest(self, header)
        finally:
            self._ahead, self._flying = ahead, flying

    patch.setattr(Intake, "judge", judge)


def repeat_answered_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    """A repeat of a pending batch is told where it will be, if the power lasts (DESIGN §5)."""
    honest = Intake.judge

    def judge(self: Intake, header: Header) -> Pending | Confirm | None:
        verdict = honest(self, header)
        if isinstance(verdict, Pending):
            return Confirm(verdict.record.offset, verdict.record.stamp, True)
        return verdict

    patch.setattr(Intake, "judge", judge)


def ack_forgotten(patch: pytest.MonkeyPatch) -> None:
    """An acked message goes out again when its lease is over (counterexample 20)."""

    def ack(self: ClusterState, fence: int, first: int, behind: int) -> bool:
        grant = self.grants.get(fence)
        return grant is not None and grant.left.covers(first, behind)

    patch.setattr(ClusterState, "ack", ack)


def grant_past_an_ack_in_line(patch: pytest.MonkeyPatch) -> None:
    """A grant that was proposed behind an ack is made as if that had not come (AckedOnce)."""
    honest = ClusterState.grant

    def grant(self: ClusterState, fence: int, record: MessagesGranted) -> Grant:
        made = honest(self, fence, record)
        whole = Ranges([(record.first, record.next)])
        if made is None:
            return Grant(record.consumer, record.deadline, 2, whole)
        made.left = whole
        return made

    patch.setattr(ClusterState, "grant", grant)


def an_earlier_term_is_taken_for_the_own(patch: pytest.MonkeyPatch) -> None:
    """A leader takes proposals before all it inherited is applied (counterexample 14)."""
    patch.setattr(Group, "begins_own_term", lambda self, index: True)


def retention_takes_all(patch: pytest.MonkeyPatch) -> None:
    """What is too much goes, and what is not goes with it (DESIGN §4 Log)."""
    honest = Log.cut_by_size

    def cut(self: Log, group: int, size: int, *beside: Any) -> tuple[int, int] | None:
        found = honest(self, group, size, *beside)
        return (found[0] + 1, 1 << 40) if found is not None else None

    patch.setattr(Log, "cut_by_size", cut)


def a_checkpoint_without_log_start(patch: pytest.MonkeyPatch) -> None:
    """A snapshot does not say which messages are gone (counterexample 13)."""
    honest = PartitionState.encode

    def encode(self: PartitionState) -> object:
        start, self.log_start = self.log_start, 0
        try:
            return honest(self)
        finally:
            self.log_start = start

    patch.setattr(PartitionState, "encode", encode)


def a_cluster_stays_below_the_start(patch: pytest.MonkeyPatch) -> None:
    """A cluster waits for ever for messages that are gone (DESIGN §5 Consume)."""
    patch.setattr(ClusterState, "drop_below", lambda self, start: None)


def grants_go_on_during_a_seek(patch: pytest.MonkeyPatch) -> None:
    """A grant picked before a seek and committed behind it leaves a gap (DESIGN §5 Consume)."""
    honest = Grants.let_go

    def let_go(self: Grants, name: str, forget: bool) -> None:
        self._changing[name] += 1
        honest(self, name, forget)

    patch.setattr(Grants, "hold", lambda self, name: None)
    patch.setattr(Grants, "let_go", let_go)


def a_seek_spares_old_grants(patch: pytest.MonkeyPatch) -> None:
    """An ack of before a seek marks messages as done behind it (DESIGN §5 Consume)."""

    def seek(self: ClusterState, offset: int) -> None:
        self.cursor = self.frontier = offset
        self.done = Ranges()

    patch.setattr(ClusterState, "seek", seek)


#: The bug, seeds until it must be caught, and the promises of which one must be named.
BUGS: list[tuple[Plant, int, set[str]]] = [
    (confirm_before_the_flush, 20, {"Durable", "OneOffset", "AckedOnce"}),
    (checkpoint_without_dedupe, 60, {"OneOffset", "RisingStamps"}),
    (page_cache_believed, 150, {"Durable"}),
    (dedupe_by_applied_state_only, 40, {"OneOffset", "RisingStamps"}),
    (repeat_answered_before_the_commit, 60, {"Durable"}),
    (ack_forgotten, 5, {"AckedOnce", "Live"}),
    (grant_past_an_ack_in_line, 40, {"AckedOnce"}),
    (an_earlier_term_is_taken_for_the_own, 20, {"Durable", "OneOffset", "RisingStamps"}),
    (retention_takes_all, 10, {"Retained"}),
    (a_checkpoint_without_log_start, 60, {"Durable", "Live"}),
    (grants_go_on_during_a_seek, 150, {"AckedOnce", "Live"}),
    (a_seek_spares_old_grants, 100, {"AckedOnce", "Live"}),
    (a_cluster_stays_below_the_start, 100, {"Live", "AckedOnce"}),
]


@pytest.mark.parametrize(("plant", "seeds", "promises"), BUGS, ids=[b[0].__name__ for b in BUGS])
def test_the_bug_is_caught(
    plant: Plant, seeds: int, promises: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    for seed in range(seeds):
        found = {promise for promise, _ in run_seed(seed).violations}
        if found & promises:
            return
    pytest.fail(f"{seeds} seeds, and nobody noticed: {plant.__doc__}")

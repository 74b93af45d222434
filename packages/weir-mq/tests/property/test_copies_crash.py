"""What goes wrong with copies is found: each bug is planted, and a driven log tells."""

from __future__ import annotations

from typing import Any

import pytest

from rigs.logs import END_COPY, use_again
from weir.storage.compaction import Copies, CopyPiece, _Copy
from weir.storage.disk import Disk
from weir.storage.format.index_file import Rows
from weir.storage.group_scan import Joining
from weir.storage.scrub import Scrubbed


def test_a_copy_believed_before_it_is_synced_is_found(
    drive: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = CopyPiece.run

    def hasty(self: CopyPiece, disk: Disk) -> Scrubbed:
        with monkeypatch.context() as patched:
            patched.setattr(disk, "sync", lambda name: None)
            return honest(self, disk)

    monkeypatch.setattr(CopyPiece, "run", hasty)
    assert drive.caught(300)


def test_a_copy_replayed_as_a_truncation_is_found(
    drive: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counterexample 12: copies taken behind all segments of new frames."""
    honest, finish = Joining.catch_up, Joining.finish

    def late(self: Joining) -> None:
        honest(self, self._replay)
        finish(self)

    monkeypatch.setattr(Joining, "catch_up", lambda self, position: None)
    monkeypatch.setattr(Joining, "finish", late)
    assert drive.caught(300)


def test_a_segment_freed_before_a_checkpoint_names_its_copies_is_found(
    drive: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest = getattr(*END_COPY)

    def early(self: Copies, copy: _Copy) -> None:
        honest(self, copy)
        for move in copy.moves:
            self._groups[move.group].move(move.first, move.positions, move.places)
        self._segments.drop(copy.source)
        use_again(self, copy.source.name)

    monkeypatch.setattr(*END_COPY, early)
    assert drive.caught(300)


def test_copies_that_no_checkpoint_names_are_found(
    drive: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = Copies.name

    def silent(self: Copies, *arguments: object) -> object:
        return (), honest(self, *arguments)[1]  # type: ignore[arg-type]

    monkeypatch.setattr(Copies, "name", silent)
    assert drive.caught(300)


@pytest.mark.parametrize("seed", [40003, 40111, 52594, 3040])
def test_executions_that_went_wrong_once(drive: Any, seed: int) -> None:
    """Superseded entries that came back; index files that knew of a later start, or that a group
    had begun anew.
    """
    drive(seed)


def test_copies_of_what_a_snapshot_took_the_place_of_are_found(
    drive: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Rows, "counts", lambda self, floor: True)
    assert drive.caught(300)

"""What Spark's checkpoint says: where micro-batches end, at one cut."""

from __future__ import annotations

from pathlib import Path

import pytest

from weir.errors import CheckpointMismatch
from weir.spark.pipeline.checkpoints import End, end, is_unfinished, last


def logged(folder: Path, number: int, *offsets: str) -> None:
    (folder / "offsets").mkdir(exist_ok=True)
    (folder / "offsets" / str(number)).write_text("\n".join(["v1", "{}", *offsets]))


def test_a_micro_batch_ends_at_one_cut(tmp_path: Path) -> None:
    assert last(tmp_path, "offsets") == -1
    logged(tmp_path, 9, '{"n": 7, "s": 3}')
    logged(tmp_path, 10, '{"n": 9, "s": 4}', '{"s":4,"n":9}')
    (tmp_path / "offsets" / ".11.crc").touch()
    (tmp_path / "offsets" / "11.tmp").touch()
    assert last(tmp_path, "offsets") == 10
    assert end(tmp_path, 10) == End(4, 9)
    # Each source counts the late rows of its own table.
    logged(tmp_path, 8, '{"n": 9, "s": 4, "w": 5, "l": 2}', '{"n": 9, "s": 4, "l": 3}')
    assert end(tmp_path, 8) == End(4, 9, 5)
    assert is_unfinished(tmp_path)
    (tmp_path / "commits").mkdir()
    (tmp_path / "commits" / "10").touch()
    assert not is_unfinished(tmp_path)


@pytest.mark.parametrize("offset", ["-", '{"e": 7}', "{", "[]", '{"n": 1, "s": null}'])
def test_what_another_source_wrote_is_told(tmp_path: Path, offset: str) -> None:
    logged(tmp_path, 0, offset)
    with pytest.raises(CheckpointMismatch, match="is not what Spark wrote for a lake"):
        end(tmp_path, 0)


def test_two_cuts_are_none(tmp_path: Path) -> None:
    logged(tmp_path, 0, '{"n": 7, "s": 3}', '{"n": 9, "s": 4}')
    with pytest.raises(CheckpointMismatch, match="at 2 cuts and not at one"):
        end(tmp_path, 0)
    (tmp_path / "offsets" / "0").write_text("v2\n{}\n{}")
    with pytest.raises(CheckpointMismatch, match="is not what Spark wrote"):
        end(tmp_path, 0)

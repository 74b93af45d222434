"""Lakes of both formats: a micro-batch is added once, whole, by one query; readers keep files."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rigs.lakes import messages, written
from weir.errors import BadOption, LakeMismatch, NotWritable
from weir.spark.lake import DeltaLake, Format, Home, Lake, ParquetLake, open_lake
from weir.spark.lake.layout import Batch, KeptFile, check_folder, crowded, least_kept_ms, reading

HOME = Home("t", 7)
HOUR_MS = 3_600_000
Add = Callable[..., bool]


@pytest.fixture(params=["delta", "parquet"])
def format(request: pytest.FixtureRequest) -> Format:
    """Each test runs with both."""
    found: Format = request.param
    return found


@pytest.fixture
def lake(tmp_path: Path, format: Format) -> Lake:
    return open_lake(str(tmp_path / "lake"), HOME, format)


def batch(lake: Lake, number: int, *spans: tuple[int, int, int], query: str = "q") -> Batch:
    """Write a file for each (partition, first, behind), and return them as a micro-batch."""
    files = [file for span in spans for file in written(lake.folder, messages(*span))]
    return Batch.of(query, number, files)


def test_a_micro_batch_is_added_once(lake: Lake) -> None:
    first = batch(lake, 0, (0, 0, 10), (1, 0, 5))
    assert not lake.has("q", 0)
    assert lake.add(first)
    assert lake.has("q", 0)
    assert not lake.has("q", 1)
    assert not lake.has("other", 0)
    # The replay of a driver that was killed: other files, the same number.
    assert not lake.add(batch(lake, 0, (0, 0, 10), (1, 0, 5)))
    assert lake.add(batch(lake, 1, (1, 5, 6)))
    now = lake.snapshot()
    assert (now.rows, len(now.files), now.positions) == (16, 3, {0: 10, 1: 6})


def test_it_is_found_again_as_it_was(lake: Lake, format: Format) -> None:
    lake.add(batch(lake, 0, (3, 0, 10)))
    again = open_lake(str(lake.folder))
    assert (again.format, again.home) == (format, HOME)
    assert again.snapshot().positions == {3: 10}
    assert not again.add(batch(again, 0, (3, 0, 10)))
    # A micro-batch says nothing of partitions that it has no message of.
    assert again.add(batch(again, 1, (0, 0, 2)))
    assert again.snapshot().positions == {0: 2, 3: 10}
    other = "parquet" if format == "delta" else "delta"
    with pytest.raises(BadOption, match=f"holds a lake of format {format}"):
        open_lake(str(lake.folder), HOME, other)  # type: ignore[arg-type]


def test_another_query_adds_nothing_that_is_there(lake: Lake) -> None:
    lake.add(batch(lake, 0, (0, 0, 10)))
    with pytest.raises(LakeMismatch, match=r"up to offset 9 already, and .* begins at 5"):
        lake.add(batch(lake, 0, (0, 5, 15), query="other"))
    assert lake.snapshot().rows == 10
    assert lake.add(batch(lake, 0, (0, 10, 15), query="other"))


def test_of_two_that_add_at_the_same_time_one_fails(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = batch(lake, 0, (0, 0, 10)), batch(lake, 0, (0, 0, 10), query="other")
    check = Batch.check
    raced: list[bool] = []

    def checking(self: Batch, home: Home, positions: dict[int, int], folder: Path) -> None:
        check(self, home, positions, folder)
        if not raced:  # behind the look, before the transaction
            raced.append(True)
            assert open_lake(str(lake.folder)).add(two)

    monkeypatch.setattr(Batch, "check", checking)
    with pytest.raises(LakeMismatch):
        lake.add(one)
    assert (raced, lake.snapshot().rows) == ([True], 10)


def test_a_topic_that_was_created_again_is_another(lake: Lake) -> None:
    open_lake(str(lake.folder), Home("t", 0))  # its id is not known
    with pytest.raises(LakeMismatch, match="deleted and created"):
        open_lake(str(lake.folder), Home("t", 8))
    with pytest.raises(LakeMismatch, match="keeps topic 't'"):
        open_lake(str(lake.folder), Home("u", 7))
    foreign = written(lake.folder, messages(0, 0, 3, topic="u"))
    with pytest.raises(LakeMismatch, match="messages of 'u'"):
        lake.add(Batch.of("q", 0, foreign))


def test_a_file_that_is_gone_is_not_added(lake: Lake) -> None:
    one = batch(lake, 0, (0, 0, 10))
    (lake.folder / one.files[0].path).unlink()
    with pytest.raises(LakeMismatch, match="not there as an executor wrote it"):
        lake.add(one)
    cut = batch(lake, 0, (0, 0, 10))
    os.truncate(lake.folder / cut.files[0].path, 10)
    with pytest.raises(LakeMismatch, match="not there as an executor wrote it"):
        lake.add(cut)
    assert lake.snapshot().rows == 0


def test_rows_that_are_missing_or_twice_are_no_micro_batch(tmp_path: Path) -> None:
    files = written(tmp_path, messages(0, 0, 4), messages(0, 5, 8))
    with pytest.raises(LakeMismatch, match="offsets 0 to 7 came as 7 rows"):
        Batch.of("q", 0, files)
    # A stream leaves out what was aborted, and says what else is missing.
    assert Batch.of("q", 0, files, may_lack=True).messages == 7
    files = written(tmp_path, messages(0, 0, 4)) + written(tmp_path, messages(0, 3, 8))
    for may_lack in (False, True):
        with pytest.raises(LakeMismatch, match="offsets 0 to 7 came as 9 rows"):
            Batch.of("q", 0, files, may_lack)


def age(lake: Lake, hours: float) -> None:
    """Let all files of a lake be written so long ago."""
    then = time.time() - hours * 3_600
    for path in lake.folder.glob("day=*/*.parquet"):
        os.utime(path, (then, then))


def test_vacuum_deletes_what_no_driver_came_to_name(lake: Lake) -> None:
    lake.add(batch(lake, 0, (0, 0, 10)))
    orphan = lake.folder / batch(lake, 1, (0, 10, 20)).files[0].path
    assert lake.vacuum(24 * HOUR_MS) == 0
    assert orphan.exists()  # a micro-batch may be under way
    age(lake, 30)
    assert lake.vacuum(48 * HOUR_MS) == 0
    assert lake.vacuum(24 * HOUR_MS) == 1
    assert not orphan.exists()
    assert all((lake.folder / file.path).exists() for file in lake.snapshot().files)


def test_vacuum_leaves_what_a_reader_began_with(lake: Lake) -> None:
    orphan = lake.folder / batch(lake, 1, (0, 10, 20)).files[0].path
    age(lake, 30)
    with reading(lake.folder, hours=1):
        readers = list((lake.folder / "_weir" / "readers").iterdir())
        told = json.loads(readers[0].read_text())
        readers[0].write_text(json.dumps(told | {"since_ms": told["since_ms"] - 40 * HOUR_MS}))
        assert lake.vacuum(24 * HOUR_MS) == 0
        assert orphan.exists()
    assert lake.vacuum(24 * HOUR_MS) == 1


def test_a_reader_that_was_killed_holds_files_for_its_time(tmp_path: Path) -> None:
    now = int(time.time() * 1_000)
    readers = tmp_path / "_weir" / "readers"
    readers.mkdir(parents=True)
    told = {"since_ms": now - 50 * HOUR_MS, "until_ms": now + HOUR_MS}
    (readers / "a.json").write_text(json.dumps(told))
    assert least_kept_ms(tmp_path, 24 * HOUR_MS, now) == 50 * HOUR_MS + 60_000
    assert least_kept_ms(tmp_path, 72 * HOUR_MS, now) == 72 * HOUR_MS
    assert least_kept_ms(tmp_path, 24 * HOUR_MS, now + 2 * HOUR_MS) == 24 * HOUR_MS
    assert list(readers.iterdir()) == []
    (readers / "b.json").write_text("{")
    assert least_kept_ms(tmp_path, HOUR_MS, now + 3 * HOUR_MS) > 2 * HOUR_MS
    assert least_kept_ms(tmp_path / "none", 5, now) == HOUR_MS


@pytest.mark.parametrize("hours", [0, -1, float("nan"), 24 * 32])
def test_a_reader_says_how_long(tmp_path: Path, hours: float) -> None:
    with pytest.raises(BadOption, match="hours="), reading(tmp_path, hours):
        pass


def test_crowded_days_have_enough_small_files() -> None:
    def kept(day: str, size: int) -> KeptFile:
        return KeptFile(f"{day}/{size}", day, 1, size)

    files = [kept("a", 1), kept("a", 2), kept("b", 1), kept("b", 1 << 30), kept("c", 3)]
    assert crowded(files, 2) == {"a": files[:2]}
    assert crowded(files, 1) == {"a": files[:2]}
    assert crowded(files, 3) == {}


def test_a_folder_is_a_local_path(tmp_path: Path) -> None:
    assert check_folder(f"file://{tmp_path}") == tmp_path
    with pytest.raises(BadOption, match="a lake is a folder"):
        check_folder("s3://bucket/lake")
    with pytest.raises(BadOption, match="in a path as something else"):
        check_folder(str(tmp_path / "day={1}"))
    (tmp_path / "file").write_text("")
    with pytest.raises(BadOption, match="is no folder"):
        check_folder(str(tmp_path / "file"))
    with pytest.raises(BadOption, match="holds no lake"):
        open_lake(str(tmp_path / "none"))
    with pytest.raises(BadOption, match="no format of a lake"):
        open_lake(str(tmp_path / "none"), HOME, "iceberg")  # type: ignore[arg-type]


def test_a_delta_table_of_somebody_else_is_refused(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    import pyarrow as pa

    deltalake.write_deltalake(str(tmp_path / "foreign"), pa.table({"a": [1]}))
    with pytest.raises(LakeMismatch, match="keeps no topic"):
        open_lake(str(tmp_path / "foreign"), HOME)


def test_a_manifest_of_a_later_release_is_refused(tmp_path: Path) -> None:
    lake = open_lake(str(tmp_path), HOME, "parquet")
    manifests = tmp_path / "_manifest"
    first = json.loads((manifests / f"{0:020}.json").read_text())
    (manifests / f"{1:020}.json").write_text(json.dumps(first | {"format": 2, "version": 1}))
    with pytest.raises(LakeMismatch, match="a newer weir can read it"):
        lake.snapshot()
    (manifests / f"{2:020}.json").write_text("{}")
    with pytest.raises(LakeMismatch, match="is no manifest"):
        lake.snapshot()


def test_a_writer_that_was_slower_sees_what_the_other_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = open_lake(str(tmp_path / "lake"), HOME, "parquet")
    one, two = batch(lake, 0, (0, 0, 10)), batch(lake, 0, (1, 0, 10), query="other")
    link = os.link
    raced: list[bool] = []

    def linking(source: Path, target: Path) -> None:
        if not raced:
            raced.append(True)
            assert open_lake(str(lake.folder)).add(two)
        link(source, target)

    monkeypatch.setattr(os, "link", linking)
    assert lake.add(one)
    now = lake.snapshot()
    assert (now.version, now.rows, now.positions) == (2, 20, {0: 10, 1: 10})
    assert not list(tmp_path.rglob("*.part"))


def test_what_was_replaced_lately_stays(tmp_path: Path) -> None:
    lake = open_lake(str(tmp_path), HOME, "parquet")
    lake.add(batch(lake, 0, (0, 0, 10)))
    (old,) = lake.snapshot().files
    now_ms = int(time.time() * 1_000)
    for version, hours_ago in ((2, 1), (3, 30)):
        told = json.loads((tmp_path / "_manifest" / f"{1:020}.json").read_text())
        told |= {
            "version": version,
            "files": [],
            "gone": [[old.path, now_ms - hours_ago * HOUR_MS]],
        }
        (tmp_path / "_manifest" / f"{version:020}.json").write_text(json.dumps(told))
        age(lake, 40)
        assert lake.vacuum(24 * HOUR_MS) == (0 if hours_ago == 1 else 1)
        assert (tmp_path / old.path).exists() == (hours_ago == 1)
    # What is deleted is forgotten.
    told = json.loads(max((tmp_path / "_manifest").iterdir()).read_text())
    assert (told["version"], told["gone"]) == (4, [])


def test_old_versions_of_the_manifest_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weir.spark.lake.parquet._VERSIONS_KEPT", 2)
    lake = open_lake(str(tmp_path), HOME, "parquet")
    one = batch(lake, 0, (0, 0, 1))
    for number in range(6):
        lake.add(replace(one, number=number, spans={}))
    assert len(list((tmp_path / "_manifest").iterdir())) == 3
    assert len(lake.snapshot().files) == 6


def test_both_formats_are_what_they_say(tmp_path: Path) -> None:
    assert isinstance(open_lake(str(tmp_path / "new"), HOME), DeltaLake)
    shutil.rmtree(tmp_path / "new")
    assert isinstance(open_lake(str(tmp_path / "new"), HOME, "parquet"), ParquetLake)


def test_what_cannot_be_written_names_the_folder_and_is_added_later(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    first, second = batch(lake, 0, (0, 0, 10)), batch(lake, 1, (0, 10, 12))
    assert lake.add(first)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(NotWritable, match=rf"{lake.folder}/_\S+ cannot be written"):
            lake.add(second)
    # Whether it was added then or is now: it is there once, and nothing else is left.
    lake.add(second)
    assert not lake.add(second)
    assert (lake.snapshot().rows, lake.snapshot().positions) == (12, {0: 12})
    assert list(lake.folder.rglob("*.part")) == []


def test_a_lake_cannot_be_founded_where_nothing_can_be_written(
    tmp_path: Path, format: Format
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotWritable, match=rf"{tmp_path}/file.* cannot be written"):
        open_lake(str(tmp_path / "file/lake"), HOME, format)

"""A log goes on in the folder that holds it; in an empty one it is a log that was lost."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from weir.broker.api.settings import Member
from weir.server.disk.file_disk import FileDisk
from weir.server.disk.node_folder import BadFolder, NodeFolder, Part, begin_log
from weir.storage.recovery import Recovered, recover
from weir.storage.segment_files import Settings

_SET = tuple(Member(node, f"host{node}", 6800) for node in (1, 2, 3))
_BYTES = 64 * 1024


@pytest.fixture
def folder(tmp_path: Path) -> NodeFolder:
    """A node of a set of three, of one log that has begun."""
    folder = NodeFolder(tmp_path / "node")
    folder.found(1, part=Part(2, _SET, 7))
    opened(folder)
    return folder


@contextlib.contextmanager
def disk_of(folder: NodeFolder) -> Iterator[FileDisk]:
    founded = folder.founded()
    assert founded is not None
    with contextlib.closing(FileDisk(folder.log(0, founded))) as disk:
        begin_log(folder, founded, 0, disk)
        yield disk


def opened(folder: NodeFolder) -> Recovered:
    """Open the log, and write something if it is new."""
    with disk_of(folder) as disk:
        settings = Settings(log=0, system=7, segment_bytes=_BYTES, entry_bytes_max=16 * 1024)
        found = recover(disk, settings)
        if (flush := found.log.next_flush()) is not None:
            flush.run(disk)
        return found


def test_a_log_that_is_there_goes_on(folder: NodeFolder) -> None:
    assert opened(folder).log.groups.lost_of(5) is None


def test_a_folder_that_was_emptied_is_a_log_that_was_lost_at_every_start(
    folder: NodeFolder,
) -> None:
    shutil.rmtree(folder.log(0))
    for _ in range(3):
        assert opened(folder).log.groups.lost_of(5) is not None


def test_a_lone_node_does_not_begin_its_log_anew(tmp_path: Path) -> None:
    folder = NodeFolder(tmp_path)
    folder.found(1)
    with disk_of(folder):
        pass
    shutil.rmtree(folder.log(0))
    for _ in range(2):
        with pytest.raises(BadFolder, match="mount the disk"), disk_of(folder):
            pass


def test_a_log_that_was_missing_is_refused_once_another_has_begun(
    folder: NodeFolder, tmp_path: Path
) -> None:
    missing = shutil.move(folder.log(0), tmp_path / "missing")
    opened(folder)
    shutil.rmtree(folder.log(0))
    shutil.move(missing, folder.log(0))
    with pytest.raises(BadFolder, match="the right disk"):
        opened(folder)


def test_a_crash_while_a_log_begins_anew_leaves_it_lost(
    folder: NodeFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(folder.log(0))
    replaced = FileDisk.replace
    for kept in range(3):
        left = [kept]

        def replace(disk: FileDisk, name: str, data: bytes, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise OSError("the power is gone")
            replaced(disk, name, data)

        with monkeypatch.context() as patch:
            patch.setattr(FileDisk, "replace", replace)
            with pytest.raises(OSError, match="power"), disk_of(folder):
                pass
    assert opened(folder).log.groups.lost_of(5) is not None


def test_a_log_from_a_backup_may_be_put_into_a_new_folder(
    folder: NodeFolder, tmp_path: Path
) -> None:
    restored = NodeFolder(tmp_path / "restored")
    shutil.copytree(folder.log(0), restored.log(0))
    shutil.copy(folder.path / "node.json", restored.path)
    assert opened(restored).log.groups.lost_of(5) is None

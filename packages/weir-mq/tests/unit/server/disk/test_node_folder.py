"""The data folder: an identity drawn once, and an endpoint while a process runs."""

import os
from pathlib import Path

import pytest

from rigs.logs import CHECK_FREE
from weir.model.ids import LIMIT_MAX, NODE_MAX
from weir.server.disk.file_disk import FolderInUse
from weir.server.disk.node_folder import BadFolder, NodeFolder, Part


def test_an_identity_is_drawn_once(tmp_path: Path) -> None:
    first = NodeFolder(tmp_path / "a").found()
    assert first.system > 0
    assert NodeFolder(tmp_path / "a").found() == first
    assert NodeFolder(tmp_path / "b").found() != first


def test_the_set_of_a_node_is_kept_for_good(tmp_path: Path) -> None:
    folder = NodeFolder(tmp_path / "a")
    assert folder.found(part=Part(brokerset=7)).brokerset == 7
    assert folder.found(part=Part(brokerset=8)).brokerset == 7
    assert NodeFolder(tmp_path / "a").found().identity(1).brokerset == 7
    with pytest.raises(BadFolder, match="ids from 0 to 65,535, not 65536"):
        NodeFolder(tmp_path / "b").found(part=Part(brokerset=65_536))
    assert not (tmp_path / "b").exists()


def test_a_folder_with_logs_and_no_identity_is_refused(tmp_path: Path) -> None:
    folder = NodeFolder(tmp_path)
    folder.log(0).mkdir()
    with pytest.raises(BadFolder, match="restore it"):
        folder.found()
    assert list(tmp_path.iterdir()) == [folder.log(0)]


def test_a_folder_of_other_files_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    for name in ("passwd", "hosts", "fstab", "shadow"):
        (tmp_path / name).write_text("not a node's")
    with pytest.raises(BadFolder, match=r"other files \(fstab, hosts, passwd, \.\.\.\)"):
        NodeFolder(tmp_path).found()
    assert len(list(tmp_path.iterdir())) == 4


def test_a_log_is_not_placed_among_other_files(tmp_path: Path) -> None:
    place = tmp_path / "disk"
    place.mkdir()
    (place / "fstab").write_text("not a log's")
    folder = NodeFolder(tmp_path / "data")
    with pytest.raises(BadFolder, match=r"other files \(fstab\): give log 1 an empty folder"):
        folder.found(2, {1: str(place)})
    assert folder.founded() is None
    assert [one.name for one in place.iterdir()] == ["fstab"]


def test_what_an_interrupted_founding_left_is_no_hindrance(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "lock").touch()
    (tmp_path / "node.json.new").write_text("{")
    assert NodeFolder(tmp_path).found().node == 1


def test_births_are_noted_for_the_owner_alone(tmp_path: Path) -> None:
    folder = NodeFolder(tmp_path)
    assert folder.births() == {}
    (tmp_path / "births.json.new").write_text("what an interrupted note left, for all to read")
    for births in ({1: (1 << 62) - 1, 2: 7}, {3: 8}):
        folder.note_births(births)
        assert folder.births() == births
        assert (tmp_path / "births.json").stat().st_mode & 0o777 == 0o600
    for damaged in (b"", b'{"1": "x"}', b"[1]", b'{"1": ' + b"1" * 300_000):
        (tmp_path / "births.json").write_bytes(damaged)
        with pytest.raises(BadFolder, match="remove it, and this node learns them anew"):
            folder.births()


def test_numbers_that_are_no_births_are_refused(tmp_path: Path) -> None:
    """A hello is proved by 8 bytes of a birth: other numbers ended the shard that got one."""
    folder = NodeFolder(tmp_path)
    folder.note_births({1: 1, NODE_MAX: LIMIT_MAX})
    assert folder.births() == {1: 1, NODE_MAX: LIMIT_MAX}
    for node, birth in ((2, -5), (2, 0), (2, LIMIT_MAX + 1), (2, 1 << 70), (0, 7), (1 << 70, 7)):
        folder.note_births({1: 1, node: birth})
        with pytest.raises(BadFolder, match="remove it, and this node learns them anew"):
            folder.births()


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), None])
def test_births_that_cannot_be_read_say_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError | None
) -> None:
    """Those of another user (root may read all, so that is given), or a folder in their place."""
    (tmp_path / "births.json").mkdir()
    if error is not None:

        def deny(path: Path, mode: str) -> None:
            raise error

        monkeypatch.setattr(Path, "open", deny)
    with pytest.raises(
        BadFolder, match=r"births\.json cannot be read \(.+\): .* mode 0600; or rem"
    ):
        NodeFolder(tmp_path).births()


def test_the_number_of_logs_is_fixed_when_it_is_founded(tmp_path: Path) -> None:
    folder = NodeFolder(tmp_path)
    founded = folder.found(3)
    assert founded.logs == 3
    assert folder.found() == folder.found(3) == founded
    with pytest.raises(BadFolder, match="founded with 3 logs, for good"):
        folder.found(4)
    assert NodeFolder(tmp_path / "b").found().logs >= 2


def test_logs_may_lie_elsewhere(tmp_path: Path) -> None:
    folder = NodeFolder(tmp_path / "node")
    founded = folder.found(2, {1: str(tmp_path / "disk")})
    assert folder.log(0, founded) == tmp_path / "node" / "log-0"
    assert folder.log(1, founded) == tmp_path / "disk"
    assert folder.founded() == founded
    with pytest.raises(BadFolder, match="for good"):
        folder.found(2, {0: str(tmp_path / "other")})


@pytest.mark.parametrize(("logs", "folders"), [(-1, {}), (257, {}), (2, {2: "x"}), (2, {-1: "x"})])
def test_logs_that_cannot_be_are_refused(
    tmp_path: Path, logs: int, folders: dict[int, str]
) -> None:
    with pytest.raises(BadFolder, match="logs"):
        NodeFolder(tmp_path).found(logs, folders)
    assert not (tmp_path / "node.json").exists()


def test_a_folder_of_another_release_is_refused(tmp_path: Path) -> None:
    (tmp_path / "node.json").write_text('{"system":5,"brokerset":0,"node":1,"shard":0}')
    with pytest.raises(BadFolder, match="logs"):
        NodeFolder(tmp_path).found()


def test_a_folder_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    with (
        NodeFolder(tmp_path).held(),
        pytest.raises(FolderInUse, match="in use"),
        NodeFolder(tmp_path).held(),
    ):
        pass
    with NodeFolder(tmp_path).held():
        pass


def test_a_broken_identity_is_refused_and_kept(tmp_path: Path) -> None:
    (tmp_path / "node.json").write_text("{")
    with pytest.raises(BadFolder, match=r"node\.json"):
        NodeFolder(tmp_path).found()
    assert (tmp_path / "node.json").read_text() == "{"


def test_the_endpoint_is_there_while_it_is_announced(tmp_path: Path) -> None:
    folder = NodeFolder(tmp_path)
    assert folder.endpoint() is None
    folder.announce("127.0.0.1", 6800)
    endpoint = folder.endpoint()
    assert endpoint is not None
    assert (endpoint.host, endpoint.port, endpoint.pid) == ("127.0.0.1", 6800, os.getpid())
    folder.withdraw()
    assert folder.endpoint() is None


def test_a_backup_and_a_file_are_no_places_for_a_node(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(BadFolder, match="holds a backup: weir restore"):
        NodeFolder(tmp_path).found()
    for place in (tmp_path / "manifest.json", tmp_path / "manifest.json" / "below"):
        with pytest.raises(BadFolder, match="is a file, or lies below one: give --data a folder"):
            NodeFolder(place).found()
    assert [one.name for one in tmp_path.iterdir()] == ["manifest.json"]


def test_a_folder_is_founded_once_though_two_begin_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = NodeFolder(tmp_path), NodeFolder(tmp_path)
    check, founded = getattr(*CHECK_FREE), []

    def found_meanwhile(folder: NodeFolder, logs: int, folders: dict[int, str]) -> None:
        check(folder, logs, folders)
        if folder is second:
            founded.append(first.found(2))

    monkeypatch.setattr(*CHECK_FREE, found_meanwhile)
    assert second.found(2) == founded[0] == NodeFolder(tmp_path).founded()
    (tmp_path / "node.json").unlink()
    with pytest.raises(BadFolder, match="founded with 2 logs"):
        second.found(3)


def test_a_folder_that_another_process_founds_is_in_use(tmp_path: Path) -> None:
    with NodeFolder(tmp_path).held(), pytest.raises(FolderInUse):
        NodeFolder(tmp_path).found()
    assert NodeFolder(tmp_path).founded() is None

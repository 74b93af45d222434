"""Backups as files: what they hold, and how every damage is found and named."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
from pathlib import Path

import pytest

import weir
from weir import sync, testing
from weir.cli.backup import folders, manifest, topics
from weir.cli.backup.manifest import BadBackup
from weir.cli.main import main
from weir.cli.survey import NotALog
from weir.client.client import Client
from weir.errors import UnknownOpcode
from weir.model.batch import HEADER_SIZE, stamped
from weir.model.batch_builder import encode
from weir.model.ids import group_of
from weir.server.disk.node_folder import NodeFolder

GROUP = group_of(3, 1)


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A stopped node's folder with two logs, one of them elsewhere."""
    folder, elsewhere = tmp_path / "node", tmp_path / "disk"
    NodeFolder(folder).found(2, {1: str(elsewhere)})
    for log in (folder / "log-0", elsewhere):
        log.mkdir()
        (log / "segment-00000001").write_bytes(os.urandom(3 << 20))
        (log / "lock").write_bytes(b"")
        (log / "checkpoint.new").write_bytes(b"of a crash")
    (folder / "endpoint.json").write_text("{}")
    return folder


@pytest.fixture
def backup(node: Path, tmp_path: Path) -> Path:
    folders.back_up(node, tmp_path / "backup")
    return tmp_path / "backup"


def test_a_folder_holds_all_logs_wherever_they_lay(
    node: Path, backup: Path, tmp_path: Path
) -> None:
    back = tmp_path / "back"
    folders.restore(backup, manifest.read(backup), back)
    names = sorted(path.relative_to(back).as_posix() for path in back.rglob("*") if path.is_file())
    assert names == ["log-0/segment-00000001", "log-1/segment-00000001", "node.json"]
    for number, log in enumerate((node / "log-0", tmp_path / "disk")):
        there = back / f"log-{number}" / "segment-00000001"
        assert there.read_bytes() == (log / "segment-00000001").read_bytes()
    was, now = NodeFolder(node).founded(), NodeFolder(back).founded()
    assert was is not None
    assert now is not None
    assert (now.system, now.logs, now.folders) == (was.system, 2, {})


def test_a_log_that_is_not_there_is_not_left_out(
    node: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The backup of a node whose disk was not mounted was "verified", and lacked a whole log; the
    node that it was put back to began that log anew.
    """
    home, elsewhere = NodeFolder(node), tmp_path / "disk"
    for number, log in enumerate((node / "log-0", elsewhere)):
        (log / "life").write_text(f"life of {number}")
        home.remember_life(number, f"life of {number}")
    folders.back_up(node, tmp_path / "whole")
    folders.restore(tmp_path / "whole", manifest.read(tmp_path / "whole"), tmp_path / "back")
    back = NodeFolder(tmp_path / "back")
    lives = [back.life(n) for n in (0, 1)]
    assert lives == [(back.log(n) / "life").read_text() for n in (0, 1)]
    assert not {"life of 0", "life of 1", ""}.intersection(lives), "it may lack what came later"
    (elsewhere / "life").write_text("of another node")
    for there in (True, False):
        if not there:
            shutil.rmtree(elsewhere)
        assert main(["backup", str(node), "--to", str(tmp_path / "part")]) == 1
        assert f"log 1 of this node has begun, and is not in {elsewhere}" in capsys.readouterr().err
        assert not (tmp_path / "part").exists()


def test_what_a_log_has_not_used_yet_takes_no_room(node: Path, tmp_path: Path) -> None:
    mib = 1 << 20
    contents = {
        "segment-00000002": bytes(3 * mib),
        "segment-00000003": b"begin" + bytes(2 * mib) + b"end" + bytes(3 * mib),
        "segment-00000004": bytes(mib) + b"x",
        "segment-00000005": b"",
    }
    for name, data in contents.items():
        (node / "log-0" / name).write_bytes(data)
    there, back = tmp_path / "backup", tmp_path / "back"
    made = folders.back_up(node, there)
    sizes = {Path(file.path).name: file.bytes for file in made.files}
    assert [sizes[name] for name in contents] == [0, 2 * mib + 8, mib + 1, 0]
    folders.restore(there, manifest.read(there), back)
    for name, data in contents.items():
        assert (back / "log-0" / name).read_bytes() == data
        assert (back / "log-0" / name).stat().st_blocks * 512 >= len(data), "not left out"


def test_a_failed_backup_removes_what_it_made(
    node: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(manifest.Writing, "put", fail)
    (tmp_path / "empty").mkdir()
    for there in (tmp_path / "backup", tmp_path / "empty"):
        with pytest.raises(OSError, match="No space"):
            folders.back_up(node, there)
    assert not (tmp_path / "backup").exists()
    assert os.listdir(tmp_path / "empty") == []


def test_what_is_no_node_is_not_backed_up(tmp_path: Path) -> None:
    for folder in (tmp_path / "absent", tmp_path):
        with pytest.raises(NotALog, match=r"has no node\.json"):
            folders.back_up(folder, tmp_path / "backup")
    assert os.listdir(tmp_path) == []


def test_nothing_is_overwritten(node: Path, backup: Path, tmp_path: Path) -> None:
    with pytest.raises(BadBackup, match="backup is there already"):
        folders.back_up(node, backup)
    with pytest.raises(BadBackup, match="node is there already"):
        folders.restore(backup, manifest.read(backup), node)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(BadBackup, match="file is there already"):
        folders.restore(backup, manifest.read(backup), tmp_path / "file")
    (tmp_path / "empty").mkdir()
    folders.restore(backup, manifest.read(backup), tmp_path / "empty")


@pytest.mark.parametrize(
    "damage", ["flip", "shorten", "remove", "manifest", "cut short", "climb", "newer"]
)
def test_a_damaged_backup_is_refused_by_name_and_leaves_nothing(
    damage: str, backup: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = tmp_path / "there"
    shutil.copytree(backup, there / "backup")
    paper = there / "backup" / "manifest.json"
    text = paper.read_text()
    victim = there / "backup" / "files" / "log-1" / "segment-00000001"
    data = victim.read_bytes()
    if damage == "flip":
        victim.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    elif damage == "shorten":
        victim.write_bytes(data[:-1])
    elif damage == "remove":
        victim.unlink()
    elif damage == "manifest":
        paper.write_text(text[:-20])
    elif damage == "cut short":
        paper.unlink()
    elif damage == "climb":
        paper.write_text(text.replace("files/node.json", "../node.json"))
    else:
        paper.write_text(text.replace('"format": 2', '"format": 3'))
    named = victim if damage in ("flip", "shorten", "remove") else paper
    for arguments in (["--verify"], ["--data", str(there / "back")]):
        assert main(["restore", str(there / "backup"), *arguments]) == 1
        out, err = capsys.readouterr()
        assert out == ""
        assert str(named) in err
        assert err.count("\n") == 1
    assert os.listdir(there) == ["backup"]


def test_each_kind_goes_where_it_can(
    backup: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["restore", str(backup), "--to", "weir://127.0.0.1:1"]) == 1
    assert "is a node's folder: put it back with --data" in capsys.readouterr().err
    paper = backup / "manifest.json"
    found = {**json.loads(paper.read_text()), "kind": "topics", "files": []}
    paper.write_text(json.dumps(found))
    assert main(["restore", str(backup), "--data", str(tmp_path / "back")]) == 1
    assert "holds topics: start a node" in capsys.readouterr().err


def written(path: Path) -> list[int]:
    """Three stamped batches one behind the other; returns where each begins."""
    begins, data = [], b""
    for offset in range(3):
        sealed = encode([b"value %d" % offset], group=GROUP)
        begins.append(len(data))
        data += stamped(sealed, 9 + offset, offset) + bytes(sealed[HEADER_SIZE:])
    path.write_bytes(data)
    return begins


def test_batches_are_read_one_behind_the_other(tmp_path: Path) -> None:
    written(tmp_path / "0.batches")
    batches = [*topics.read_batches(tmp_path / "0.batches", GROUP)]
    assert [batch.values() for batch in batches] == [[b"value 0"], [b"value 1"], [b"value 2"]]


@pytest.mark.parametrize("at", [0, 8, 11, 90, -1])
def test_a_damaged_batch_is_named_by_file_and_place(at: int, tmp_path: Path) -> None:
    path = tmp_path / "0.batches"
    begins = written(path)
    data = bytearray(path.read_bytes())
    data[at if at < 0 else begins[1] + at] ^= 0x80
    path.write_bytes(data)
    begin = begins[2] if at < 0 else begins[1]
    with pytest.raises(BadBackup, match=re.escape(f"{path} is damaged at byte {begin:,}: ")):
        [*topics.read_batches(path, GROUP)]


def test_a_file_that_ends_within_a_batch_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "0.batches"
    begins = written(path)
    for size in (begins[2] + 10, begins[2] + HEADER_SIZE + 1):
        written(path)
        os.truncate(path, size)
        with pytest.raises(BadBackup, match=f"damaged at byte {begins[2]:,}"):
            [*topics.read_batches(path, GROUP)]


def test_the_one_order_of_all_partitions_is_put_back(tmp_path: Path) -> None:
    """Partitions were published one after the other, and who replayed a topic in total order read
    all of the first one before anything of the second.
    """

    async def scenario() -> None:
        with testing.node() as node, testing.node() as another:
            async with weir.connect(node.url) as w, weir.connect(another.url) as to:
                await w.create_topic("moves", partitions=3, order="total")
                for number in range(30):
                    await w.publish("moves", b"%d" % number, partition=number * 7 % 3)
                await w.publish("moves", b"x" * (2 << 20), partition=1)
                await w.publish("moves", b"with a header", headers={"a": b"b"}, partition=0)
                await w.end_partition("moves", 2)

                async def seen(client: Client) -> list[tuple[int, int, bytes]]:
                    reader = client.reader("moves", follow=False)
                    return [(one.partition, one.offset, one.value[:20]) async for one in reader]

                shown: list[int] = []
                await topics.back_up(w, ["moves"], tmp_path / "b", lambda _: None)
                made = manifest.read(tmp_path / "b")
                assert not await topics.restore(to, tmp_path / "b", made, shown.append)
                assert shown[-1] == 32
                before = await seen(w)
                assert len(before) == 32
                assert await seen(to) == before
                assert (await to.describe("moves")).closed == {2}, "it had ended"

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_topics_are_restored_to_another_namespace_with_all_their_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = str(tmp_path / "b")
    with testing.node() as node, sync.connect(node.url) as w:
        w.create_topic(
            "shop/t", 2, retention="1h", scatter_with=["u", "shop/other"], key_by="device"
        )
        w.create_topic("u", retention_bytes=5, until_done=["c"], scatter_with=["shop/t"])
        w.publish("u", b"x")
        assert main(["backup", "--to", to, "--url", node.url]) == 0
    for is_old in (False, True):  # a broker of a release before knows no such request
        with testing.node() as node, sync.connect(node.url) as w:
            if is_old:
                monkeypatch.setattr(Client, "restore_topic", unknown)
            assert main(["restore", to, "--to", node.url, "--namespace", "new"]) == 0
            (t, u) = sorted(w.topics(), key=lambda info: info.name)
            assert (t.full_name, u.full_name) == ("new/t", "new/u")
            assert (len(t.addresses), t.settings.retention_ms, t.key_by) == (2, 3_600_000, "device")
            assert t.settings.scatter_with == ("new/u", "shop/other")
            assert (u.settings.retention_bytes, u.settings.until_done) == (5, ("c",))
            assert u.settings.scatter_with == ("new/t",)
            assert w.positions("new/u") == ([0], [1])
            assert main(["restore", to, "--to", node.url, "--namespace", "new"]) == 1


async def unknown(*_: object, **__: object) -> None:
    raise UnknownOpcode("opcode 103 is not known here", 103)


def test_two_topics_of_one_name_are_not_mixed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to = str(tmp_path / "b")
    with testing.node() as node, sync.connect(node.url) as w:
        w.create_topic("a/t")
        w.create_topic("b/t")
        assert main(["backup", "--to", to, "--url", node.url]) == 0
    with testing.node() as node, sync.connect(node.url) as w:
        assert main(["restore", to, "--to", node.url, "--namespace", "new"]) == 1
        assert "two topics t" in capsys.readouterr().err
        assert not w.topics()


def test_what_only_brokers_write_stays_in_the_backup(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A backup with an audit topic could not be restored, wherever it was to go."""
    to = str(tmp_path / "b")
    with testing.node() as node:
        with sync.connect(node.url) as w:
            w.create_topic("_weir/audit")
            w.create_topic("t")
            w.publish("t", b"x")
        assert main(["backup", "--to", to, "--url", node.url]) == 0
    with testing.node() as node, sync.connect(node.url) as w:
        w.create_topic("_weir/audit")
        capsys.readouterr()
        assert main(["restore", to, "--to", node.url]) == 0
        assert "_weir/audit: not restored" in capsys.readouterr().out
        assert w.positions("t") == ([0], [1])

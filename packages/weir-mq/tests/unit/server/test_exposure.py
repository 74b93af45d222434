"""A node that anyone in a network could use starts only where that is meant, and says so."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from weir.broker.metadata.placement import Nodes
from weir.broker.records.registry import NodeChanged, NodeJoined
from weir.broker.shard import Shard
from weir.server import exposure, status
from weir.server.config import AccessConfig, BadConfig, Config, NodeConfig
from weir.server.disk.node_folder import NodeFolder
from weir.server.exposure import ExposureWatch, check_exposure, is_reachable


def config(folder: Path, host: str = "0.0.0.0", insecure: bool = False) -> Config:
    return Config(
        node=NodeConfig(data=str(folder), host=host), access=AccessConfig(insecure=insecure)
    )


@pytest.mark.parametrize(
    ("host", "reachable"),
    [
        ("127.0.0.1", False), ("127.1.2.3", False), ("::1", False), ("localhost", False),
        ("0.0.0.0", True), ("::", True), ("192.0.2.1", True), ("fe80::1", True),
        ("no.such.host.invalid", False),
    ],
)  # fmt: skip
def test_what_others_reach(host: str, reachable: bool) -> None:
    assert is_reachable(host) is reachable


@pytest.mark.parametrize("mode", ["", "open", "watch"])
def test_a_node_that_is_not_closed_needs_to_be_meant(tmp_path: Path, mode: str) -> None:
    folder = NodeFolder(tmp_path)
    if mode:
        folder.note_access_mode(mode)
    check_exposure(config(tmp_path, "127.0.0.1"))
    check_exposure(config(tmp_path, insecure=True))
    with pytest.raises(BadConfig, match=f"mode {mode or 'open'}.*--insecure"):
        check_exposure(config(tmp_path))
    folder.note_access_mode("closed")
    check_exposure(config(tmp_path))


def test_a_note_that_is_no_mode_is_not_taken_for_closed(tmp_path: Path) -> None:
    (tmp_path / "access-mode").write_bytes(b"\xffclosed" * 1_000)
    with pytest.raises(BadConfig):
        check_exposure(config(tmp_path))


def watch(folder: Path, shard: Any, **more: Any) -> ExposureWatch:
    return ExposureWatch(cast(Shard, shard), config(folder, **more))


def first(mode: str, number: int = 0) -> Any:
    nodes = Nodes()
    registry = SimpleNamespace(catalog=SimpleNamespace(nodes=nodes))
    shard = SimpleNamespace(shard=number)
    return SimpleNamespace(access_mode=mode, registry=registry, identity=shard)


def add(shard: Any, *births: tuple[int, int]) -> None:
    """Let a shard know nodes, by number and birth."""
    for node, birth in births:
        shard.registry.catalog.nodes.apply(NodeJoined(node, "host", 6800 + node, birth=birth))


def looked(*watches: ExposureWatch) -> None:
    async def look() -> None:
        for one in watches:
            with one:
                pass

    asyncio.run(look())


def test_the_mode_is_noted_once_it_is_known(tmp_path: Path) -> None:
    folder, shard = NodeFolder(tmp_path), first("open")
    looked(watch(tmp_path, shard))
    assert folder.access_mode() == "", "a node that was never closed has no note"
    shard.access_mode = "closed"
    looked(watch(tmp_path, shard))
    assert folder.access_mode() == "closed"
    shard.access_mode = ""  # it starts again, and has not heard of the others yet
    begun = watch(tmp_path, shard)
    looked(begun)
    assert folder.access_mode() == "closed"
    assert not begun.is_exposed
    shard.access_mode = "watch"
    looked(begun)
    assert begun.is_exposed
    assert folder.access_mode() == "watch"
    other = first("closed", number=1)
    heard = watch(tmp_path, other)
    looked(heard)
    other.access_mode = ""
    assert heard.mode == "closed"
    assert folder.access_mode() == "watch", "the first shard notes it for all"


def test_births_are_noted_in_a_closed_set_before_the_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, shard = NodeFolder(tmp_path), first("watch")
    add(shard, (1, 5), (2, 1 << 61), (3, 0), (4, 9))
    shard.registry.catalog.nodes.apply(NodeChanged(4, "removed"))
    watching = watch(tmp_path, shard)
    looked(watching)
    assert folder.births() == {}
    shard.access_mode = "closed"

    def full(_: NodeFolder, mode: str) -> None:
        raise OSError(28, "no space")

    with monkeypatch.context() as patch:
        patch.setattr(NodeFolder, "note_access_mode", full)
        looked(watching)
    assert (folder.births(), folder.access_mode()) == ({1: 5, 2: 1 << 61}, "watch")
    looked(watching)
    assert folder.access_mode() == "closed"
    add(shard, (3, 7))
    looked(watching)
    assert folder.births() == {1: 5, 2: 1 << 61, 3: 7}, "a node has come"
    looked(watch(tmp_path, first("")))
    assert len(folder.births()) == 3, "it starts again, and has not heard of the others yet"
    looked(watch(tmp_path, first("closed", number=1)))
    assert len(folder.births()) == 3, "the first shard notes them for all"


def test_it_warns_each_minute_while_anyone_may_do_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 1_000.0
    monkeypatch.setattr(status, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(exposure, "_LOOK_SECONDS", 3_600.0)
    shard = first("open")
    told = watch(tmp_path, shard, insecure=True)
    for _ in range(121):
        looked(told)
        now += 1.0
    assert len(caplog.messages) == 3
    assert "anyone who reaches 0.0.0.0 may do everything" in caplog.messages[0]
    assert "will not start again" not in caplog.messages[0]
    caplog.clear()
    shard.access_mode = "closed"
    looked(told)
    assert caplog.messages == []
    shard.access_mode = "open"
    looked(watch(tmp_path, shard))
    assert "without --insecure it will not start again" in caplog.messages[0]
    caplog.clear()
    looked(watch(tmp_path, shard, host="127.0.0.1"))
    assert caplog.messages == []


def test_a_mode_that_cannot_be_noted_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    told = watch(tmp_path / "not there", first("closed"))
    looked(told, told)
    assert len(caplog.messages) == 1
    assert "cannot be noted" in caplog.messages[0]

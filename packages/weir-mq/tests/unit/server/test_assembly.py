"""What a start of a node leaves behind, whenever it is killed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from weir.server import assembly
from weir.server.config import Config, LogConfig, NodeConfig
from weir.server.disk.flushes import PositionSaver
from weir.server.disk.node_folder import NodeFolder
from weir.server.network.tls import TlsPolicy


def never_started(*given: object) -> SimpleNamespace:
    """Stand in for `assemble`: nothing is flushed, and what was told is saved."""
    savers = given[4]
    assert isinstance(savers, Mapping)
    assert len(savers) == 2
    for saver in savers.values():
        assert isinstance(saver, PositionSaver)
        saver.stop()
    return SimpleNamespace(tls=None)


def test_a_node_that_is_killed_before_its_first_flush_starts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a log stages as it is opened is not durable: the position file must not name it."""
    monkeypatch.setattr(assembly, "assemble", never_started)
    config = Config(node=NodeConfig(data=str(tmp_path), logs=2), log=LogConfig(segment_mib=32))
    founded = NodeFolder(tmp_path).found(2)

    async def start() -> None:
        async with assembly.hosting(config, founded, assembly.ShardSlot()):
            pass

    for _ in range(3):
        asyncio.run(start())


@pytest.mark.parametrize(("noted", "named_only"), [("closed", True), ("watch", False), ("", False)])
def test_a_node_of_a_closed_set_guards_its_links_before_it_knows_the_registry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, noted: str, named_only: bool
) -> None:
    policies: list[TlsPolicy] = []

    def assembled(*given: object) -> SimpleNamespace:
        policies.extend(one for one in given if isinstance(one, TlsPolicy))
        return never_started(*given)

    monkeypatch.setattr(assembly, "assemble", assembled)
    config = Config(node=NodeConfig(data=str(tmp_path), logs=2), log=LogConfig(segment_mib=32))
    folder = NodeFolder(tmp_path)
    founded = folder.found(2)
    if noted:
        folder.note_access_mode(noted)

    async def start() -> None:
        async with assembly.hosting(config, founded, assembly.ShardSlot()):
            pass

    asyncio.run(start())
    assert [one.named_only for one in policies] == [named_only]

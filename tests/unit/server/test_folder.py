"""The data folder: an identity drawn once, and an endpoint while a process runs."""

import os
from pathlib import Path

import pytest

from weir.server.folder import BadFolder, NodeFolder


def test_an_identity_is_drawn_once(tmp_path: Path) -> None:
    first = NodeFolder(tmp_path / "a").found()
    assert first.system > 0
    assert NodeFolder(tmp_path / "a").found() == first
    assert NodeFolder(tmp_path / "b").found() != first


def test_a_folder_with_logs_and_no_identity_is_refused(tmp_path: Path) -> None:
    folder = NodeFolder(tmp_path)
    folder.log(0).mkdir()
    with pytest.raises(BadFolder, match="restore it"):
        folder.found()
    assert list(tmp_path.iterdir()) == [folder.log(0)]


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

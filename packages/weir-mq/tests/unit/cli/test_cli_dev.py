"""`weir dev` in folders that hold something already."""

from pathlib import Path

import pytest

from weir.cli.dev import _logs
from weir.cli.main import main
from weir.server.disk.node_folder import BadFolder, NodeFolder


def test_a_node_that_is_there_keeps_its_logs(tmp_path: Path) -> None:
    assert _logs(tmp_path / "new") == 1
    NodeFolder(tmp_path / "old").found(4)
    assert _logs(tmp_path / "old") == 0


def test_a_set_is_not_begun_in_a_nodes_folder_nor_a_node_in_a_sets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    NodeFolder(tmp_path / "node").found()
    before = sorted((tmp_path / "node").iterdir())
    assert main(["dev", "--nodes", "3", "--data", str(tmp_path / "node")]) == 1
    assert capsys.readouterr().err.endswith("no set of them: give another folder\n")
    assert sorted((tmp_path / "node").iterdir()) == before
    NodeFolder(tmp_path / "set" / "node-1").found()
    with pytest.raises(BadFolder, match="say how many by --nodes"):
        _logs(tmp_path / "set")


@pytest.mark.parametrize("option", [["--json"], ["--shards", "2"], ["--restart", "1"]])
def test_what_a_single_node_does_not_have_is_refused(
    option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dev", *option]) == 2
    assert "go with --nodes 2 and more" in capsys.readouterr().err

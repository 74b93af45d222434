"""Three real nodes go from the wheels of the release before to this one, back and forth, under load
by clients of both.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from weir.errors import WeirError
from weir.model.limits import FORMAT_LEVEL
from weir_lab.bench.faults.upgrade import releases
from weir_lab.bench.faults.upgrade.releases import NoRelease, Release, release_before
from weir_lab.bench.faults.upgrade.run import NODES, upgrade
from weir_lab.bench.faults.upgrade.spark import spark_upgrade

ROOT = Path(__file__).parents[4]


@pytest.fixture(scope="module")
def before() -> Release:
    try:
        return release_before(ROOT)
    except NoRelease as error:  # a source archive, or a shallow clone
        pytest.skip(str(error))


def test_the_release_before_is_another_one(before: Release) -> None:
    said = before.run("import weir; from weir.model.limits import *; print(FORMAT_LEVEL)")
    assert int(said) == releases.BEFORE_LEVEL == FORMAT_LEVEL - 1
    assert before.run("import weir; print(weir.__file__)").startswith(str(before.site))
    with pytest.raises(WeirError, match="no such thing"):
        before.run("raise SystemExit('no such thing')")


@pytest.mark.parametrize("back", [1, pytest.param(NODES, marks=pytest.mark.slow)])
def test_nothing_is_lost_or_repeated(before: Release, tmp_path: Path, back: int) -> None:
    found = asyncio.run(upgrade(tmp_path, before, back))
    assert (found.lost, found.repeated, found.reordered, found.differing) == (0, 0, 0, 0)
    assert found.steps == NODES + 2 * back
    assert found.messages > 100
    # What the release before cannot read is not written before the level is raised, and refused.
    assert found.levels == (releases.BEFORE_LEVEL, FORMAT_LEVEL)
    assert found.early == found.asked
    assert found.asked > 4 * found.steps
    assert "start this node with the release that wrote it" in found.refused["node"]
    # Clients of the release before go on: they read what sinks publish, too, and at a relay.
    assert found.refused["reader"] == ""
    assert found.at_relay == found.messages


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_query_goes_on_under_its_checkpoint(before: Release, tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    found = spark_upgrade(tmp_path, before)
    assert (found.lost, found.repeated, found.differing) == (0, 0, 0)
    assert (found.runs, found.replayed, found.level) == (3, 2, FORMAT_LEVEL)
    assert found.messages > 0


def test_without_history_there_is_no_release_before(tmp_path: Path) -> None:
    with pytest.raises(NoRelease, match=r"has no commit af8008c7d934.*use a full clone"):
        release_before(tmp_path)
    assert not [*(tmp_path / "build" / "releases").iterdir()]
